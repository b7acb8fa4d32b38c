//! Several cores: distribution, mailboxes, wake-ups.

use crate::service::*;
use reactor::*;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use sys::real_disk::RealDisk;

#[test]
fn connections_go_to_the_core_with_the_fewest() {
    let running = run(3, Limits::default());
    let mut streams: Vec<_> = (0..9).map(|_| running.connect()).collect();
    for stream in &mut streams {
        ask(stream, &frame(100, b"abc"));
    }
    let loads: Vec<u64> = running.seen.per_core[..3].iter().map(|count| count.load(SeqCst)).collect();
    assert_eq!(loads, [3, 3, 3]);
    assert!(running.engine.stop());
}

#[test]
fn a_listener_may_keep_its_connections_on_core_0() {
    let running = run(3, Limits::default());
    let (socket, addr) = listener();
    running.engine.listen(vec![(ListenerSpec { id: ListenerId(1), addr, spread: false }, socket)]);
    for _ in 0..6 {
        let mut stream = std::net::TcpStream::connect(addr).unwrap();
        ask(&mut stream, &frame(100, b"abc"));
    }
    assert_eq!(running.seen.per_core[0].load(SeqCst), 6);
    assert!(running.engine.stop());
}

#[test]
fn requests_cross_to_another_core_and_back_in_order() {
    let running = run(2, Limits { mailbox_slots: 16, ..Limits::default() });
    let mut streams: Vec<_> = (0..4).map(|_| running.connect()).collect();
    for stream in &mut streams {
        use std::io::Write;
        let sent: Vec<Vec<u8>> = (0..2000u32).map(|n| frame(OTHER_CORE, &n.to_be_bytes())).collect();
        stream.write_all(&sent.concat()).unwrap();
        for expected in &sent {
            assert_eq!(&read_frame(stream).unwrap(), expected);
        }
    }
    assert!(running.engine.stop());
}

/// Passes numbers between two cores: each core sends `count` of them and checks those of the other.
struct PingPong {
    count: u64,
    sent: u64,
    expected: u64,
    unsent: VecDeque<u64>,
    answered: u64,
    window: u64,
    finished: mpsc::Sender<u16>,
}

enum Ball {
    Start,
    Ping(u64),
    Pong(u64),
}

impl PingPong {
    fn serve(&mut self, cx: &mut Context<Ball>) {
        let other = CoreId(1 - cx.core().0);
        while let Some(number) = self.unsent.front() {
            if cx.try_post(other, Ball::Pong(*number)).is_err() {
                return;
            }
            self.unsent.pop_front();
        }
        while self.sent < self.count && self.sent - self.answered < self.window {
            if cx.try_post(other, Ball::Ping(self.sent)).is_err() {
                return;
            }
            self.sent += 1;
        }
    }
}

impl Service for PingPong {
    type Message = Ball;
    fn connected(&mut self, _: &mut Context<Ball>, _: ConnectionId, _: ListenerId, _: SocketAddr) {}
    fn frame(&mut self, _: &mut Context<Ball>, _: ConnectionId, _: &[u8]) {}
    fn closed(&mut self, _: &mut Context<Ball>, _: ConnectionId, _: CloseReason) {}
    fn completed(&mut self, _: &mut Context<Ball>, _: Token, _: io::Result<JobOutput>) {}
    fn timer(&mut self, _: &mut Context<Ball>, _: Token) {}

    fn message(&mut self, cx: &mut Context<Ball>, from: Option<CoreId>, message: Ball) {
        match message {
            Ball::Start => assert_eq!(from, None),
            Ball::Ping(number) => {
                assert_eq!((from, number), (Some(CoreId(1 - cx.core().0)), self.expected), "once and in order");
                self.expected += 1;
                self.unsent.push_back(number);
            }
            Ball::Pong(number) => {
                assert_eq!(number, self.answered, "once and in order");
                self.answered += 1;
                if self.answered == self.count {
                    self.finished.send(cx.core().0).unwrap();
                }
            }
        }
    }

    fn turn_end(&mut self, cx: &mut Context<Ball>) {
        if cx.counters().turns > 0 && self.window > 0 {
            self.serve(cx);
        }
    }

    fn stopping(&mut self, _: &mut Context<Ball>) -> Drain {
        if self.answered == self.count && self.unsent.is_empty() { Drain::Done } else { Drain::Busy }
    }
}

fn ping_pong(count: u64, window: u64, limits: Limits) -> Duration {
    let (finished, all) = mpsc::channel();
    let background = Arc::new(InlineBackground::new(Arc::new(RealDisk)));
    let start_time = Instant::now();
    let engine = start::<PingPong, _>(options(2, limits), background, move |_, _| {
        Ok(PingPong {
            count,
            sent: 0,
            expected: 0,
            unsent: VecDeque::new(),
            answered: 0,
            window,
            finished: finished.clone(),
        })
    })
    .unwrap();
    engine.handles().iter().for_each(|handle| handle.post(Ball::Start));
    let mut cores = [(); 2].map(|()| all.recv_timeout(Duration::from_secs(60)).expect("no message is lost"));
    cores.sort_unstable();
    assert_eq!(cores, [0, 1]);
    let took = start_time.elapsed();
    assert!(engine.stop());
    took
}

#[test]
fn messages_pass_once_and_in_order_under_load() {
    ping_pong(300_000, 1000, Limits { mailbox_slots: 64, ..Limits::default() });
}

#[test]
fn a_wake_up_is_never_lost() {
    // One message at a time and no spinning: every one finds its peer asleep, or just falling asleep. A lost wake-up
    // would stop the exchange until the longest sleep of a minute.
    let took = ping_pong(30_000, 1, Limits { spin_us: 0, ..Limits::default() });
    assert!(took < Duration::from_secs(30), "took {took:?}");
    ping_pong(30_000, 2, Limits::default());
}

/// Counts what other threads post.
struct Count(Arc<AtomicU64>);

impl Service for Count {
    type Message = u64;
    fn connected(&mut self, _: &mut Context<u64>, _: ConnectionId, _: ListenerId, _: SocketAddr) {}
    fn frame(&mut self, _: &mut Context<u64>, _: ConnectionId, _: &[u8]) {}
    fn closed(&mut self, _: &mut Context<u64>, _: ConnectionId, _: CloseReason) {}
    fn completed(&mut self, _: &mut Context<u64>, _: Token, _: io::Result<JobOutput>) {}
    fn timer(&mut self, _: &mut Context<u64>, _: Token) {}
    fn turn_end(&mut self, _: &mut Context<u64>) {}

    fn message(&mut self, _: &mut Context<u64>, _: Option<CoreId>, message: u64) {
        self.0.fetch_add(message, SeqCst);
    }

    fn stopping(&mut self, _: &mut Context<u64>) -> Drain {
        Drain::Done
    }
}

#[test]
fn other_threads_post_and_wake() {
    let sum = Arc::new(AtomicU64::new(0));
    let of_service = sum.clone();
    let background = Arc::new(InlineBackground::new(Arc::new(RealDisk)));
    let engine =
        start::<Count, _>(options(1, Limits::default()), background, move |_, _| Ok(Count(of_service.clone())))
            .unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let handle = engine.handles()[0].clone();
            std::thread::spawn(move || {
                for n in 0..5000 {
                    handle.post(1);
                    if n % 100 == 0 {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    until("all arrived", || sum.load(SeqCst) == 20_000);
    assert!(engine.stop());
}

#[test]
fn an_idle_engine_costs_nothing() {
    if ran_alone("cores::an_idle_engine_costs_nothing") {
        return;
    }
    let running = run_with(2, Limits::default(), Arc::new(GlommioBackground::start(Arc::new(RealDisk))));
    let mut streams: Vec<_> = (0..100).map(|_| running.connect()).collect();
    for stream in &mut streams {
        ask(stream, &frame(100, b"abc"));
    }
    std::thread::sleep(Duration::from_millis(300));
    let (turns, cpu) = (running.counters().turns, process_cpu());
    std::thread::sleep(Duration::from_millis(2000));
    let (turns, cpu) = (running.counters().turns - turns, process_cpu() - cpu);
    println!("idle: {turns} turns and {cpu:?} in 2 s");
    assert!(turns < 10, "{turns} turns of a core without work");
    assert!(cpu < Duration::from_millis(20), "{cpu:?} of processor time in 2 s without work");
    assert!(running.engine.stop());
}
