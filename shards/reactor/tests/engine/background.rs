//! Syncs, cold reads, tasks and timers, through the engine and through the executors themselves.

use crate::service::*;
use reactor::*;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use sys::disk::{Disk, DiskFile};
use sys::real_disk::RealDisk;

/// Counts up in steps, and fails at a step if it is to.
struct Steps {
    left: u32,
    fails: bool,
    pause: Duration,
}

impl BackgroundTask for Steps {
    fn step(&mut self, _: &dyn Disk) -> io::Result<Step> {
        std::thread::sleep(self.pause);
        if self.left == 0 {
            if self.fails {
                return Err(io::Error::new(io::ErrorKind::StorageFull, "no room"));
            }
            return Ok(Step::Done(Box::new("done")));
        }
        self.left -= 1;
        Ok(Step::More)
    }
}

fn steps(left: u32, fails: bool) -> Box<dyn BackgroundTask> {
    Box::new(Steps { left, fails, pause: Duration::ZERO })
}

fn ask_background(background: &dyn Background, job: Job) -> mpsc::Receiver<io::Result<JobOutput>> {
    let (tx, rx) = mpsc::channel();
    background.submit(BackgroundRequest { job, reply: Reply::new(move |result| drop(tx.send(result))) });
    rx
}

fn answer(rx: &mpsc::Receiver<io::Result<JobOutput>>) -> io::Result<JobOutput> {
    rx.recv_timeout(Duration::from_secs(20)).expect("each job is answered")
}

fn check_executor(background: &dyn Background) {
    let content: Vec<u8> = (0..9_000_000u32).map(|n| (n >> 8) as u8).collect();
    let (_dir, file) = file_with(&content);
    let ranges = vec![0..10, 5_000..5_000_001, 8_999_990..9_000_100, 10_000_000..10_000_001];
    let read = ask_background(background, Job::Read { file: file.clone(), ranges });
    let Ok(JobOutput::Read(bytes)) = answer(&read) else { panic!("reads succeed") };
    assert_eq!(bytes.iter().map(|bytes| bytes.len()).collect::<Vec<_>>(), [10, 4_995_001, 10, 0]);
    assert!(bytes[1] == content[5_000..5_000_001] && bytes[2] == content[8_999_990..]);

    std::fs::remove_file(file.path()).unwrap();
    let read = ask_background(background, Job::Read { file, ranges: vec![0..1000, 5..6] });
    let Ok(JobOutput::Read(bytes)) = answer(&read) else { panic!("an open file that was removed can be read") };
    assert!(bytes[0] == content[..1000]);

    for class in [JobClass::Waited, JobClass::Upkeep] {
        let done = ask_background(background, Job::Task { class, task: steps(100, false) });
        let Ok(JobOutput::Task(output)) = answer(&done) else { panic!("the task ends") };
        assert_eq!(*output.downcast::<&str>().unwrap(), "done");
        let failed = ask_background(background, Job::Task { class, task: steps(3, true) });
        assert_eq!(answer(&failed).err().unwrap().kind(), io::ErrorKind::StorageFull);
    }
}

#[test]
fn the_inline_executor_gives_results_and_failures() {
    check_executor(&InlineBackground::new(Arc::new(RealDisk)));
}

#[test]
fn the_glommio_executor_gives_results_and_failures() {
    let background = GlommioBackground::start(Arc::new(RealDisk));
    check_executor(&background);
    // Many more than run at once.
    let jobs: Vec<_> = (0..500)
        .map(|n| {
            let class = if n % 2 == 0 { JobClass::Waited } else { JobClass::Upkeep };
            ask_background(&background, Job::Task { class, task: steps(n % 7, n % 5 == 0) })
        })
        .collect();
    for (n, job) in jobs.iter().enumerate() {
        assert_eq!(answer(job).is_err(), n % 5 == 0);
    }
}

#[test]
fn a_job_that_comes_while_the_executor_falls_asleep_is_done() {
    // Each job follows the end of the one before, at another distance: the thread is falling asleep, asleep, or busy.
    let background = GlommioBackground::start(Arc::new(RealDisk));
    for n in 0..5_000_u32 {
        for _ in 0..(n % 97) * 40 {
            std::hint::spin_loop();
        }
        let job = ask_background(&background, Job::Task { class: JobClass::Waited, task: steps(0, false) });
        assert!(answer(&job).is_ok());
    }
}

#[test]
fn reads_go_before_long_upkeep() {
    let background = GlommioBackground::start(Arc::new(RealDisk));
    let (_dir, file) = file_with(&[3; 4096]);
    let long = || Steps { left: 200, fails: false, pause: Duration::from_millis(3) };
    let upkeep: Vec<_> = (0..2)
        .map(|_| ask_background(&background, Job::Task { class: JobClass::Upkeep, task: Box::new(long()) }))
        .collect();
    std::thread::sleep(Duration::from_millis(20));
    let asked = Instant::now();
    let read = ask_background(&background, Job::Read { file, ranges: vec![0..4000, 4000..4096] });
    assert!(answer(&read).is_ok());
    assert!(asked.elapsed() < Duration::from_millis(300), "a read waited {:?}", asked.elapsed());
    assert!(upkeep[0].try_recv().is_err(), "the upkeep still runs");
    drop(background);
    for job in upkeep {
        let text = answer(&job).err().expect("stopped").to_string();
        assert!(text.contains("stopped"), "{text}");
    }
}

#[test]
fn jobs_of_a_stopped_executor_fail_with_the_reason() {
    let background = GlommioBackground::start(Arc::new(RealDisk));
    let waiting = ask_background(&background, Job::Task { class: JobClass::Waited, task: steps(0, false) });
    assert!(answer(&waiting).is_ok());
    drop(background);
    let dropped = mpsc::channel();
    drop(Reply::new(move |result| drop(dropped.0.send(result.err().map(|error| error.to_string())))));
    assert!(dropped.1.recv().unwrap().unwrap().contains("stopped"));
}

/// Asks for everything once, and reports what completes in order.
struct Asks {
    file: Arc<dyn DiskFile>,
    report: mpsc::Sender<(u64, Result<&'static str, io::ErrorKind>)>,
    asked: bool,
    due_us: u64,
}

impl Service for Asks {
    type Message = ();
    fn connected(&mut self, _: &mut Context<()>, _: ConnectionId, _: ListenerId, _: SocketAddr) {}
    fn frame(&mut self, _: &mut Context<()>, _: ConnectionId, _: &[u8]) {}
    fn closed(&mut self, _: &mut Context<()>, _: ConnectionId, _: CloseReason) {}
    fn message(&mut self, cx: &mut Context<()>, from: Option<CoreId>, (): ()) {
        assert_eq!(from, Some(cx.core()), "posted to itself");
        self.report.send((100, Ok("message"))).unwrap();
    }

    fn completed(&mut self, _: &mut Context<()>, token: Token, result: io::Result<JobOutput>) {
        let what = result.map_err(|error| error.kind()).map(|output| match output {
            JobOutput::Synced => "synced",
            JobOutput::Read(_) => "read",
            JobOutput::Task(_) => "task",
        });
        self.report.send((token.0, what)).unwrap();
    }

    fn timer(&mut self, cx: &mut Context<()>, token: Token) {
        assert!(cx.now().mono_us >= self.due_us + token.0 * 1000, "not before its time");
        self.report.send((token.0, Ok("timer"))).unwrap();
    }

    fn turn_end(&mut self, cx: &mut Context<()>) {
        if std::mem::replace(&mut self.asked, true) {
            return;
        }
        cx.sync(self.file.clone(), Token(1));
        cx.write_back(self.file.clone(), 0, 4096);
        cx.background(Job::Read { file: self.file.clone(), ranges: vec![0..10, 20..30] }, Token(2));
        cx.background(Job::Task { class: JobClass::Waited, task: steps(3, false) }, Token(3));
        cx.background(Job::Task { class: JobClass::Waited, task: steps(3, true) }, Token(4));
        cx.try_post(cx.core(), ()).unwrap();
        self.due_us = cx.now().mono_us;
        for token in [30, 20, 25, 10] {
            cx.timer_at(self.due_us + token * 1000, Token(token));
        }
    }

    fn stopping(&mut self, _: &mut Context<()>) -> Drain {
        Drain::Done
    }
}

#[test]
fn another_executor_takes_over_when_one_does_not_come_back() {
    let background = GlommioBackground::start(Arc::new(RealDisk));
    let upkeep = |pause| {
        let task = Box::new(Steps { left: 0, fails: false, pause });
        ask_background(&background, Job::Task { class: JobClass::Upkeep, task })
    };
    let stuck = upkeep(Duration::from_secs(5));
    std::thread::sleep(Duration::from_millis(100));
    let next = upkeep(Duration::ZERO);
    assert!(matches!(answer(&next), Ok(JobOutput::Task(_))));
    assert!(stuck.try_recv().is_err(), "the first executor is still at its step");
    assert!(matches!(answer(&stuck), Ok(JobOutput::Task(_))));
}

#[test]
fn a_core_gets_every_result_once_and_timers_in_order() {
    let (_dir, file) = file_with(&[3; 8192]);
    let (report, reports) = mpsc::channel();
    let background = Arc::new(GlommioBackground::start(Arc::new(RealDisk)));
    let limits = Limits { background_jobs: 2, ..Limits::default() };
    let engine = start::<Asks, _>(options(1, limits), background, move |_, _| {
        Ok(Asks { file: file.clone(), report: report.clone(), asked: false, due_us: 0 })
    })
    .unwrap();
    let mut got: Vec<_> = (0..9).map(|_| reports.recv_timeout(Duration::from_secs(20)).unwrap()).collect();
    let timers: Vec<u64> = got.iter().filter(|(_, what)| *what == Ok("timer")).map(|(token, _)| *token).collect();
    assert_eq!(timers, [10, 20, 25, 30]);
    got.retain(|(_, what)| *what != Ok("timer"));
    got.sort_by_key(|(token, _)| *token);
    let expected = [
        (1, Ok("synced")),
        (2, Ok("read")),
        (3, Ok("task")),
        (4, Err(io::ErrorKind::ResourceBusy)),
        (100, Ok("message")),
    ];
    assert_eq!(got, expected, "the fourth was one job too many");
    assert!(engine.stop());
    assert!(reports.try_recv().is_err(), "nothing twice");
}
