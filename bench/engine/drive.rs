//! The loop of a thread.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::Sender;
use std::time::Duration;

use sys::Lent;
use sys::ring::{Event, Ring, RingSizes};

use super::link::{Link, connect};
use super::recorder::{Recorder, Tick};
use super::{Clock, NAP, Now, Outcome, Stop, Work};
use crate::pace::Pace;
use crate::result::{DISCONNECTED, Kind, TIMED_OUT};

/// Most connections of a thread.
pub const MAX_LINKS: usize = 1 << 12;
const SECOND_NS: u64 = 1_000_000_000;
const RETRY_NS: u64 = 200_000_000;
/// Answers that are taken before the next sends leave.
const MAX_EVENTS: usize = 256;

/// What a thread is to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The broker.
    pub address: SocketAddr,
    /// Number of this thread.
    pub thread: u32,
    /// Of so many.
    pub threads: u32,
    /// The processor to stay on.
    pub cpu: Option<usize>,
    /// The time of the run.
    pub clock: Clock,
    /// Operations a second of all threads; `None`: a closed loop.
    pub rate: Option<f64>,
    /// So long an answer may take, and all of them together may be missing.
    pub patience: Duration,
    /// So long what was begun may take to end, after the end.
    pub settle: Duration,
    /// The kind that counts as the operation.
    pub main: Kind,
    /// Ends it early.
    pub stop: Stop,
}

/// When what happens, by the run's clock. Known only when all threads are connected.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// Load begins.
    pub start_ns: u64,
    /// Measuring begins.
    pub measure_ns: u64,
    /// Load ends.
    pub end_ns: u64,
}

impl Times {
    /// The end of the interval that begins at a time: a second later, but none reaches over the begin or the end of
    /// measuring. `u64::MAX` behind the last.
    #[must_use]
    pub fn boundary_after(&self, from_ns: u64) -> u64 {
        let edge = if from_ns < self.measure_ns { self.measure_ns } else { self.end_ns };
        if from_ns >= edge { u64::MAX } else { (from_ns + SECOND_NS).min(edge) }
    }
}

/// Why a thread gave up.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No connection.
    #[error("cannot connect to the broker at {address}: {error}")]
    Connect {
        /// Where.
        address: SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// A connection ended and cannot be made again.
    #[error("the broker at {address} closed a connection and took no new one for {seconds} s")]
    Lost {
        /// Where.
        address: SocketAddr,
        /// For how long.
        seconds: u64,
    },
    /// Requests wait and no answer at all comes.
    #[error("the broker at {address} has not answered for {seconds} s ({waiting} requests wait)")]
    Silent {
        /// Where.
        address: SocketAddr,
        /// For how long.
        seconds: u64,
        /// How many requests wait.
        waiting: usize,
    },
    /// The kernel refuses.
    #[error("io_uring: {0}")]
    Ring(#[from] std::io::Error),
}

/// A thread's load.
pub struct Driver {
    plan: Plan,
    times: Times,
    ring: Ring,
    links: Vec<Link>,
    /// Links that may have something to ask.
    listed: Vec<u32>,
    /// Connections that ended; the kernel may still have an operation on them.
    ended: Vec<TcpStream>,
    pace: Option<Pace>,
    /// Links whose operations the pace begins, and the next one of them.
    paced: Vec<u32>,
    cursor: usize,
    recorder: Recorder,
    ticks: Sender<Tick>,
    /// When the last answer came, or nothing waited.
    last_answer_ns: u64,
    next_tick_ns: u64,
    interval: u32,
}

impl Driver {
    /// Connects. To be called, and driven, on the thread of the load. Errors: no ring, no connection.
    pub fn start(plan: Plan, works: Vec<(Box<dyn Work>, usize)>, ticks: Sender<Tick>) -> Result<Driver, RunError> {
        if let Some(cpu) = plan.cpu {
            sys::affinity::pin_current_thread(cpu);
        }
        let buffers = if works.len() > 64 { 256 } else { 64 };
        let mut ring = Ring::new(RingSizes { entries: 1024, buffers, buffer_bytes: 64 << 10 })?;
        let address = plan.address;
        let mut links = Vec::with_capacity(works.len());
        for (index, (work, window)) in works.into_iter().take(MAX_LINKS).enumerate() {
            let stream = connect(address, plan.patience).map_err(|error| RunError::Connect { address, error })?;
            let mut link = Link::new(stream, work, window);
            ring.receive(link.id(index), link.fd())?;
            link.is_receiving = true;
            links.push(link);
        }
        let is_open = plan.rate.is_some();
        let paced = (0..links.len()).filter(|n| is_open && links[*n].work.is_paced()).map(|n| n as u32).collect();
        Ok(Driver {
            recorder: Recorder::new(plan.main),
            next_tick_ns: u64::MAX,
            last_answer_ns: 0,
            times: Times::default(),
            plan,
            ring,
            links,
            listed: Vec::new(),
            ended: Vec::new(),
            pace: None,
            paced,
            cursor: 0,
            ticks,
            interval: 0,
        })
    }

    /// Runs to the end. Errors: the broker is gone or silent.
    pub fn run(mut self, times: Times) -> Result<(), RunError> {
        let Plan { thread, threads, .. } = self.plan;
        self.pace = self.plan.rate.map(|rate| Pace::new(times.start_ns, rate, thread, threads));
        self.next_tick_ns = times.boundary_after(times.start_ns);
        self.times = times;
        let wait = times.start_ns.saturating_sub(self.plan.clock.now().ns);
        std::thread::sleep(Duration::from_nanos(wait));
        self.last_answer_ns = self.plan.clock.now().ns;
        for index in 0..self.links.len() {
            self.list(index);
        }
        loop {
            let now = self.plan.clock.now();
            if now.ns >= self.times.end_ns || self.plan.stop.is_set() || self.is_exhausted() {
                break;
            }
            self.turn(now, true)?;
        }
        self.settle()?;
        self.close();
        Ok(())
    }

    /// Whether nothing is left to do.
    fn is_exhausted(&self) -> bool {
        self.links.iter().all(|link| link.work.is_exhausted() && link.slots.waiting() == 0)
    }

    /// One turn; `asks`: operations may begin.
    fn turn(&mut self, now: Now, asks: bool) -> Result<(), RunError> {
        if now.ns >= self.next_tick_ns {
            self.tick(now)?;
        }
        if asks {
            self.begin_due(now);
        }
        self.fill_listed(now, asks);
        let wait = self.wait_until(now, asks);
        self.ring.enter(wait)?;
        self.ring.reap(MAX_EVENTS);
        // One look at the clock for all that has arrived.
        let now = self.plan.clock.now();
        while let Some(event) = self.ring.next_event() {
            self.handle(event, now)?;
        }
        Ok(())
    }

    /// Begins what the schedule says, on the connections in turn, as far as they have room.
    fn begin_due(&mut self, now: Now) {
        let Some(mut pace) = self.pace.take() else { return };
        while !self.paced.is_empty() && pace.due_ns() <= now.ns {
            let Some(index) = self.next_with_room() else { break };
            let Some(began_ns) = pace.take(now.ns) else { break };
            let link = &mut self.links[index];
            match link.ask(began_ns, now) {
                Some(request) if !request.answered => count_unanswered(&mut self.recorder, &request),
                Some(_) => {}
                None => break,
            }
            self.list(index);
        }
        self.pace = Some(pace);
    }

    fn next_with_room(&mut self) -> Option<usize> {
        for _ in 0..self.paced.len() {
            let index = self.paced[self.cursor] as usize;
            self.cursor = (self.cursor + 1) % self.paced.len();
            if self.links[index].has_room() {
                return Some(index);
            }
        }
        None
    }

    /// Fills the windows of the listed connections and sends what they have.
    fn fill_listed(&mut self, now: Now, asks: bool) {
        let listed = std::mem::take(&mut self.listed);
        for &index in &listed {
            let link = &mut self.links[index as usize];
            link.is_listed = false;
            let paced = self.pace.is_some() && link.work.is_paced();
            if link.follow(now) && !paced && (asks || link.work.outlasts()) {
                while link.has_room() {
                    let Some(request) = link.ask(now.ns, now) else { break };
                    if !request.answered {
                        count_unanswered(&mut self.recorder, &request);
                    }
                }
            }
            self.send(index as usize, now);
        }
        let mut listed = listed;
        listed.clear();
        // What was listed meanwhile (failed sends) comes next.
        listed.append(&mut self.listed);
        self.listed = listed;
    }

    fn send(&mut self, index: usize, now: Now) {
        let link = &mut self.links[index];
        if link.is_sending || !link.is_up() || !link.has_output() {
            return;
        }
        let output = link.take_output();
        link.is_sending = true;
        if self.ring.send(link.id(index), link.fd(), output, 0).is_err() {
            self.lose(index, now);
        }
    }

    fn list(&mut self, index: usize) {
        let link = &mut self.links[index];
        if !link.is_listed {
            link.is_listed = true;
            self.listed.push(index as u32);
        }
    }

    /// How long the kernel may be waited in; `None`: not at all.
    fn wait_until(&mut self, now: Now, asks: bool) -> Option<Duration> {
        if !self.listed.is_empty() || self.ring.has_completions() {
            return None;
        }
        let mut until = now.ns + NAP.as_nanos() as u64;
        until = until.min(self.next_tick_ns);
        if asks {
            until = until.min(self.times.end_ns);
            if let Some(pace) = self.pace.as_ref().filter(|pace| pace.due_ns() > now.ns) {
                until = until.min(pace.sleep_until_ns(now.ns)?);
            }
        }
        let late = self.plan.clock.now().ns;
        (until > late).then(|| Duration::from_nanos(until - late))
    }

    fn handle(&mut self, event: Event, now: Now) -> Result<(), RunError> {
        match event {
            Event::Received { connection, result, armed } => self.received(connection, result, armed, now),
            Event::Sent { connection, gather, from, result } => {
                let Some(index) = self.current(connection) else { return Ok(()) };
                self.links[index].is_sending = false;
                match result {
                    Ok(bytes) if from + bytes < gather.len() && bytes > 0 => {
                        let link = &mut self.links[index];
                        link.is_sending = true;
                        self.ring.send(link.id(index), link.fd(), gather, from + bytes)?;
                    }
                    Ok(bytes) if bytes > 0 => {
                        self.links[index].give_back(gather);
                        self.list(index);
                    }
                    _ => self.lose(index, now),
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The link of a completion, unless it is of a connection that ended.
    fn current(&self, connection: u32) -> Option<usize> {
        let (index, epoch) = ((connection & 0xFFFF) as usize, (connection >> 16) as u16);
        self.links.get(index).filter(|link| link.epoch == epoch).map(|_| index)
    }

    fn received(
        &mut self,
        connection: u32,
        result: std::io::Result<Option<Lent>>,
        armed: bool,
        now: Now,
    ) -> Result<(), RunError> {
        let index = self.current(connection);
        let mut is_good = index.is_some_and(|n| self.links[n].is_up());
        match result {
            Ok(Some(lent)) => {
                if let Some(index) = index.filter(|_| is_good) {
                    let bytes = self.ring.bytes(&lent);
                    is_good = take_answers(&mut self.links[index], bytes, now, &mut self.recorder);
                    self.last_answer_ns = now.ns;
                    self.list(index);
                }
                self.ring.recycle(lent);
            }
            // The buffers were used up for a moment.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {}
            Ok(None) | Err(_) => is_good = false,
        }
        let Some(index) = index else { return Ok(()) };
        let link = &mut self.links[index];
        link.is_receiving = armed;
        if !is_good {
            self.lose(index, now);
        } else if !armed {
            self.ring.receive(link.id(index), link.fd())?;
            link.is_receiving = true;
        }
        Ok(())
    }

    /// A connection ended: what waited on it is lost; it is tried again.
    fn lose(&mut self, index: usize, now: Now) {
        let link = &mut self.links[index];
        if !link.is_up() {
            return;
        }
        let mut lost = 0;
        link.slots.take_all(|asked| lost += u64::from(asked.request.hold_ms == 0));
        link.drop_output();
        link.retry_at_ns = Some(now.ns);
        link.down_since_ns = now.ns;
        let _ = link.stream.shutdown(Shutdown::Both);
        self.recorder.failed(DISCONNECTED, lost.max(1), || "a connection ended".into());
    }

    /// Tries the connections that are down.
    fn reconnect(&mut self, now: Now) -> Result<(), RunError> {
        let address = self.plan.address;
        for index in 0..self.links.len() {
            let link = &mut self.links[index];
            if link.retry_at_ns.is_none_or(|at| at > now.ns) {
                continue;
            }
            match connect(address, Duration::from_millis(100)) {
                Ok(stream) => {
                    let old = link.replace(stream);
                    self.ring.receive(link.id(index), link.fd())?;
                    link.is_receiving = true;
                    self.ended.push(old);
                    self.list(index);
                }
                Err(_) if now.ns - link.down_since_ns > self.plan.patience.as_nanos() as u64 => {
                    return Err(RunError::Lost { address, seconds: self.plan.patience.as_secs() });
                }
                Err(_) => link.retry_at_ns = Some(now.ns + RETRY_NS),
            }
        }
        Ok(())
    }

    /// The end of an interval: what was counted leaves, and what takes too long is seen.
    fn tick(&mut self, now: Now) -> Result<(), RunError> {
        let tick = self.recorder.tick(self.plan.thread, self.interval, thread_cpu_ns(), now.ns);
        // Nobody listens any more when the run was given up.
        if self.ticks.send(tick).is_err() {
            self.plan.stop.set();
        }
        self.interval += 1;
        self.next_tick_ns = self.times.boundary_after(self.next_tick_ns);
        if self.next_tick_ns <= now.ns {
            // The thread itself was held up: intervals keep their places.
            return self.tick(now);
        }
        self.watch(now)
    }

    /// Requests that wait too long, connections that are down, and a broker that says nothing any more.
    fn watch(&mut self, now: Now) -> Result<(), RunError> {
        self.reconnect(now)?;
        let patience = self.plan.patience.as_nanos() as u64;
        let (mut overdue, mut waiting) = (0, 0);
        for index in 0..self.links.len() {
            let link = &mut self.links[index];
            let before = overdue;
            link.slots.take_overdue(now.ns, patience, |_| overdue += 1);
            waiting += link.slots.waiting();
            if overdue > before || link.work.outlasts() {
                self.list(index);
            }
        }
        self.recorder.failed(TIMED_OUT, overdue, || "no answer in time".into());
        if overdue > 0 && now.ns.saturating_sub(self.last_answer_ns) > patience {
            let address = self.plan.address;
            let waiting = waiting + overdue as usize;
            return Err(RunError::Silent { address, seconds: self.plan.patience.as_secs(), waiting });
        }
        Ok(())
    }

    /// Lets end what was begun; what was due and never sent counts with what it has waited so far.
    fn settle(&mut self) -> Result<(), RunError> {
        let end = self.plan.clock.now();
        let is_whole = end.ns >= self.times.end_ns;
        while is_whole && self.next_tick_ns < self.times.end_ns {
            self.tick(end)?;
        }
        if is_whole {
            // What was due in the last moment before the end.
            self.begin_due(Now { ns: self.times.end_ns - 1, ..end });
        }
        let tick = self.recorder.tick(self.plan.thread, self.interval, thread_cpu_ns(), end.ns);
        let _ = self.ticks.send(tick);
        self.next_tick_ns = u64::MAX;
        let limit = end.ns + self.plan.settle.as_nanos() as u64;
        let mut watched = end.ns;
        loop {
            let now = self.plan.clock.now();
            let rests = |link: &Link| {
                let waits = if link.work.outlasts() { !link.work.is_settled() } else { link.slots.waiting() > 0 };
                !waits || !link.is_up()
            };
            if self.links.iter().all(rests) || now.ns >= limit {
                break;
            }
            if now.ns > watched + SECOND_NS {
                watched = now.ns;
                self.watch(now)?;
            }
            self.turn(now, false)?;
        }
        self.count_unended(end.ns.min(self.times.end_ns - 1));
        let tick = self.recorder.tick(self.plan.thread, u32::MAX, thread_cpu_ns(), self.plan.clock.now().ns);
        let _ = self.ticks.send(tick);
        Ok(())
    }

    fn count_unended(&mut self, end_ns: u64) {
        let mut unanswered = 0;
        for link in &mut self.links {
            if !link.work.outlasts() {
                link.slots.take_all(|asked| unanswered += u64::from(asked.request.hold_ms == 0));
            }
        }
        self.recorder.failed(TIMED_OUT, unanswered, || "no answer by the end".into());
        let Some(mut pace) = self.pace.take() else { return };
        let unsent = pace.behind(end_ns);
        while let Some(intended) = pace.take(end_ns) {
            self.recorder.latency(self.plan.main, end_ns - intended);
        }
        self.recorder.failed(TIMED_OUT, unsent, || "due, and not sent by the end: the broker took no more".into());
    }

    /// Gives the connections back and waits until the kernel has let go of them.
    fn close(&mut self) {
        for link in &self.links {
            let _ = link.stream.shutdown(Shutdown::Both);
        }
        for _ in 0..50 {
            let open = self.links.iter().any(|link| link.is_receiving) || self.ring.sends() > 0;
            if !open || self.ring.enter(Some(NAP)).is_err() {
                return;
            }
            self.ring.reap(usize::MAX);
            while let Some(event) = self.ring.next_event() {
                if let Event::Received { connection, result, armed } = event {
                    if let Ok(Some(lent)) = result {
                        self.ring.recycle(lent);
                    }
                    if let Some(index) = self.current(connection) {
                        self.links[index].is_receiving = armed;
                    }
                }
            }
        }
    }
}

/// A request without an answer is done when it is written.
fn count_unanswered(recorder: &mut Recorder, request: &super::Request) {
    recorder.count(request.kind, u64::from(request.messages), u64::from(request.bytes));
}

/// Takes the answers in what was received; `false`: the stream makes no sense.
fn take_answers(link: &mut Link, bytes: &[u8], now: Now, recorder: &mut Recorder) -> bool {
    let Link { work, slots, input, .. } = link;
    let keeps_body = work.keeps_body();
    let mut is_good = true;
    let fed = input.feed(bytes, keeps_body, |answer| {
        let Some(head) = answer.head() else {
            is_good = false;
            return;
        };
        if !head.is_response {
            // A broker asks its clients things (40, 39): nothing of a load's.
            return;
        }
        let Some(asked) = slots.take(head.opaque) else { return };
        let request = asked.request;
        match work.answer(&asked, head.code, &answer, now, recorder) {
            Outcome::Done { messages, bytes } => {
                recorder.done(request.kind, now.ns.saturating_sub(asked.began_ns), messages, bytes);
            }
            Outcome::Nothing => {}
            Outcome::Refused => recorder.failed(head.code, 1, || {
                answer.decode().and_then(|command| command.remark).unwrap_or_default().chars().take(200).collect()
            }),
        }
    });
    fed.is_ok() && is_good
}

/// Processor time of the calling thread.
fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * SECOND_NS + time.tv_nsec as u64
}
