//! One load from its first connection to its last answer: threads, intervals, the broker's process, the progress line.
//!
//! Role: the coordinator. It sends nothing itself; it puts together what the threads have counted.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;

use crate::engine::{Clock, Driver, Failures, NAP, Plan, RunError, Stop, Tick, Times, Work};
use crate::proc::{Process, Usage};
use crate::report::units;
use crate::result::{Kind, Sample, histogram};
use crate::work::target::Budget;

/// From the order to begin until it is begun by all.
const LEAD_NS: u64 = 10_000_000;

/// One load.
pub struct Load {
    /// The broker.
    pub address: SocketAddr,
    /// Threads; connections are dealt out to them in turn.
    pub threads: u32,
    /// Processors to stay on, in turn; may be empty.
    pub cpus: Vec<usize>,
    /// The time of the run.
    pub clock: Clock,
    /// Seconds that are not measured.
    pub warm_up_s: f64,
    /// Seconds that are.
    pub seconds: f64,
    /// Operations a second; `None`: a closed loop.
    pub rate: Option<f64>,
    /// How long an answer may take.
    pub patience: Duration,
    /// How long what was begun may take to end.
    pub settle: Duration,
    /// What counts as operation.
    pub main: Kind,
    /// Bytes that may be written.
    pub budget: Arc<Budget>,
    /// The broker's process.
    pub process: Option<Process>,
    /// Ends it early.
    pub stop: Stop,
    /// What the progress line calls it; none without.
    pub progress: Option<&'static str>,
}

/// What came of it.
#[derive(Default)]
pub struct Loaded {
    /// Measured seconds.
    pub measured_s: f64,
    /// Operations of the main kind.
    pub operations: u64,
    /// Messages in them.
    pub messages: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// What failed, in and after the measured time.
    pub failures: Failures,
    /// Latencies by kind.
    pub latencies: BTreeMap<Kind, Histogram<u64>>,
    /// One for each measured second.
    pub samples: Vec<Sample>,
    /// The broker's processor time in the measured time.
    pub broker_cpu_ns: Option<u64>,
    /// That of the load.
    pub load_cpu_ns: u64,
    /// Messages that were acknowledged from the first second to the last.
    pub acknowledged: u64,
    /// Messages that arrived.
    pub received: u64,
    /// Messages before their time, and the largest advance in nanoseconds.
    pub early: (u64, u64),
    /// The budget ended it.
    pub is_out_of_bytes: bool,
}

type Works = Vec<(Box<dyn Work>, usize)>;

struct Threads {
    ready: Receiver<Result<(), RunError>>,
    begin: Vec<Sender<Times>>,
    ticks: Receiver<Tick>,
    handles: Vec<JoinHandle<Result<(), RunError>>>,
}

impl Load {
    /// Runs it; ends early when so many messages were acknowledged. Errors: no connection, or the broker is gone or silent.
    pub fn run(&self, works: Works, enough: Option<u64>) -> Result<Loaded> {
        // What one load is told to end with shall not end the next.
        let stop = Stop::default();
        let threads = self.start(works, &stop)?;
        for _ in &threads.begin {
            match threads.ready.recv() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => break,
            }
        }
        let start_ns = self.clock.now().ns + LEAD_NS;
        let span = |seconds: f64| (seconds * 1e9) as u64;
        let measure_ns = start_ns + span(self.warm_up_s);
        let times = Times { start_ns, measure_ns, end_ns: measure_ns + span(self.seconds).max(1) };
        for thread in &threads.begin {
            // One that is gone says why when it is joined.
            let _ = thread.send(times);
        }
        let mut tally = Tally::new(self, times);
        self.collect(&threads.ticks, &mut tally, &stop, enough);
        for handle in threads.handles {
            handle.join().map_err(|_| anyhow!("a thread of the load panicked"))??;
        }
        let mut loaded = tally.finish();
        loaded.is_out_of_bytes = self.budget.is_over();
        Ok(loaded)
    }

    fn start(&self, works: Works, stop: &Stop) -> Result<Threads> {
        let count = self.threads.clamp(1, works.len().max(1) as u32);
        let mut shares: Vec<Works> = (0..count).map(|_| Vec::new()).collect();
        for (n, work) in works.into_iter().enumerate() {
            shares[n % count as usize].push(work);
        }
        let (tick_out, ticks) = channel();
        let (ready_out, ready) = channel();
        let mut threads = Threads { ready, begin: Vec::new(), ticks, handles: Vec::new() };
        for (thread, share) in shares.into_iter().enumerate() {
            let (begin_out, begin) = channel::<Times>();
            let cpu = self.cpus.get(thread % self.cpus.len().max(1)).copied();
            let plan = Plan {
                address: self.address,
                thread: thread as u32,
                threads: count,
                cpu,
                clock: self.clock,
                rate: self.rate,
                patience: self.patience,
                settle: self.settle,
                main: self.main,
                stop: stop.clone(),
            };
            let (ticks, ready) = (tick_out.clone(), ready_out.clone());
            let body = move || drive(plan, share, ticks, &ready, &begin);
            threads.begin.push(begin_out);
            let name = format!("load-{thread}");
            threads.handles.push(std::thread::Builder::new().name(name).spawn(body).context("starting a thread")?);
        }
        Ok(threads)
    }

    /// Takes ticks until the last thread has ended.
    fn collect(&self, ticks: &Receiver<Tick>, tally: &mut Tally<'_>, stop: &Stop, enough: Option<u64>) {
        loop {
            match ticks.recv_timeout(NAP.min(tally.until_boundary())) {
                Ok(tick) => tally.take(tick),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            tally.pass_boundaries();
            let is_enough = enough.is_some_and(|enough| tally.acknowledged() >= enough);
            if self.stop.is_set() || self.budget.is_over() || is_enough {
                stop.set();
            }
        }
    }
}

/// A thread: connects, says so, waits for the order, runs.
fn drive(
    plan: Plan,
    works: Works,
    ticks: Sender<Tick>,
    ready: &Sender<Result<(), RunError>>,
    begin: &Receiver<Times>,
) -> Result<(), RunError> {
    match Driver::start(plan, works, ticks) {
        Ok(driver) => {
            let _ = ready.send(Ok(()));
            // The order does not come when another thread could not connect.
            begin.recv().map_or(Ok(()), |times| driver.run(times))
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            Ok(())
        }
    }
}

/// What is known of one interval.
#[derive(Default)]
struct Interval {
    ticks: u32,
    operations: u64,
    failed: u64,
    main: Option<Histogram<u64>>,
    load_cpu_ns: u64,
    end_ns: u64,
}

/// Puts ticks and looks at the process together.
struct Tally<'l> {
    load: &'l Load,
    times: Times,
    loaded: Loaded,
    intervals: Vec<Interval>,
    /// The broker at each boundary, the begin included.
    usages: Vec<(u64, Option<Usage>)>,
    next_boundary_ns: u64,
    /// By thread: processor time at the last tick; acknowledged, received, early.
    cpu: BTreeMap<u32, u64>,
    sums: BTreeMap<u32, (u64, u64, (u64, u64))>,
    shown: usize,
}

impl<'l> Tally<'l> {
    fn new(load: &'l Load, times: Times) -> Tally<'l> {
        let usage = load.process.as_ref().and_then(|process| process.usage().ok());
        Tally {
            load,
            times,
            loaded: Loaded::default(),
            intervals: Vec::new(),
            usages: vec![(times.start_ns, usage)],
            next_boundary_ns: times.boundary_after(times.start_ns),
            cpu: BTreeMap::new(),
            sums: BTreeMap::new(),
            shown: 0,
        }
    }

    fn acknowledged(&self) -> u64 {
        self.sums.values().map(|sums| sums.0).sum()
    }

    fn until_boundary(&self) -> Duration {
        Duration::from_nanos(self.next_boundary_ns.saturating_sub(self.load.clock.now().ns).max(1_000))
    }

    /// Looks at the broker when an interval ends.
    fn pass_boundaries(&mut self) {
        let now_ns = self.load.clock.now().ns;
        if now_ns < self.next_boundary_ns {
            return;
        }
        let usage = self.load.process.as_ref().and_then(|process| process.usage().ok());
        while now_ns >= self.next_boundary_ns {
            self.usages.push((now_ns, usage));
            self.next_boundary_ns = self.times.boundary_after(self.next_boundary_ns);
        }
    }

    /// Intervals before the measured time.
    fn warm_intervals(&self) -> usize {
        let (mut at, mut count) = (self.times.start_ns, 0);
        while at < self.times.measure_ns {
            at = self.times.boundary_after(at);
            count += 1;
        }
        count
    }

    fn take(&mut self, tick: Tick) {
        let before = self.cpu.insert(tick.thread, tick.cpu_ns).unwrap_or(0);
        self.sums.insert(tick.thread, (tick.acknowledged, tick.received, tick.early));
        let warm = self.warm_intervals();
        let is_measured = tick.interval as usize >= warm;
        if is_measured {
            for (code, (count, remark)) in tick.failures {
                self.loaded.failures.entry(code).or_insert((0, remark)).0 += count;
            }
        }
        if tick.interval == u32::MAX {
            // What ended later than the load: of a closed loop nothing that would not have been seen before.
            let counts = self.load.rate.is_some() || matches!(self.load.main, Kind::EndToEnd | Kind::Delay);
            if counts {
                self.add_latencies(&tick.latencies);
            }
            return;
        }
        if is_measured {
            self.loaded.operations += tick.operations;
            self.loaded.messages += tick.messages;
            self.loaded.bytes += tick.bytes;
            self.loaded.load_cpu_ns += tick.cpu_ns - before.min(tick.cpu_ns);
            self.add_latencies(&tick.latencies);
        }
        let index = tick.interval as usize;
        while self.intervals.len() <= index {
            self.intervals.push(Interval::default());
        }
        let interval = &mut self.intervals[index];
        interval.ticks += 1;
        interval.operations += tick.operations;
        interval.failed += tick.failed;
        interval.load_cpu_ns += tick.cpu_ns - before.min(tick.cpu_ns);
        interval.end_ns = interval.end_ns.max(tick.at_ns);
        for (_, latencies) in tick.latencies.iter().filter(|(kind, _)| *kind == self.load.main) {
            let _ = interval.main.get_or_insert_with(histogram).add(latencies);
        }
        self.show();
    }

    fn add_latencies(&mut self, latencies: &[(Kind, Histogram<u64>)]) {
        for (kind, latencies) in latencies {
            // Both have the same bounds.
            let _ = self.loaded.latencies.entry(*kind).or_insert_with(histogram).add(latencies);
        }
    }

    /// The progress line of each interval that all threads have ended.
    fn show(&mut self) {
        let Some(name) = self.load.progress else { return };
        let threads = self.cpu.len() as u32;
        let warm = self.warm_intervals();
        while self.intervals.get(self.shown).is_some_and(|interval| interval.ticks == threads) {
            let interval = &self.intervals[self.shown];
            let begin_ns = if self.shown == 0 { self.times.start_ns } else { self.intervals[self.shown - 1].end_ns };
            let seconds = interval.end_ns.saturating_sub(begin_ns) as f64 / 1e9;
            let quantiles = interval.main.as_ref().map_or(String::new(), |main| {
                let at = |quantile| units::duration(main.value_at_quantile(quantile) as f64);
                format!(", p50 {}, p99 {}, max {}", at(0.5), at(0.99), units::duration(main.max() as f64))
            });
            let errors = if interval.failed > 0 { format!(", {} failed", interval.failed) } else { String::new() };
            let phase = if self.shown < warm { " (warm-up)" } else { "" };
            let rate = interval.operations as f64 / seconds.max(1e-9);
            let at = interval.end_ns.saturating_sub(self.times.start_ns) as f64 / 1e9;
            eprintln!("{name} {at:5.1} s{phase}: {}/s{quantiles}{errors}", units::number(rate));
            self.shown += 1;
        }
    }

    fn finish(mut self) -> Loaded {
        if self.usages.len() <= self.intervals.len() {
            // It was ended within an interval.
            let usage = self.load.process.as_ref().and_then(|process| process.usage().ok());
            self.usages.push((self.load.clock.now().ns, usage));
        }
        let warm = self.warm_intervals();
        let mut begin_ns = self.times.measure_ns;
        for (n, interval) in self.intervals.iter().enumerate().skip(warm) {
            let (end_ns, main) = (interval.end_ns.max(begin_ns), interval.main.as_ref());
            let length_s = (end_ns - begin_ns) as f64 / 1e9;
            let ends = (self.usages.get(n).and_then(|u| u.1), self.usages.get(n + 1).and_then(|u| u.1));
            let cpu_s = |(from, to): (Usage, Usage)| to.cpu_ns.saturating_sub(from.cpu_ns) as f64 / 1e9;
            self.loaded.samples.push(Sample {
                at_s: (end_ns - self.times.measure_ns) as f64 / 1e9,
                length_s,
                operations: interval.operations,
                errors: interval.failed,
                p50_ns: main.map(|main| main.value_at_quantile(0.5)),
                p99_ns: main.map(|main| main.value_at_quantile(0.99)),
                max_ns: main.map(Histogram::max),
                broker_cpu_s: ends.0.zip(ends.1).map(cpu_s),
                broker_resident_bytes: ends.1.map(|usage| usage.resident_bytes),
                broker_anonymous_bytes: ends.1.map(|usage| usage.anonymous_bytes),
                load_cpu_s: Some(interval.load_cpu_ns as f64 / 1e9),
            });
            begin_ns = end_ns;
        }
        self.loaded.measured_s = begin_ns.saturating_sub(self.times.measure_ns) as f64 / 1e9;
        let measured: Vec<Usage> = self.usages.iter().skip(warm).filter_map(|u| u.1).collect();
        if let [first, .., last] = measured[..] {
            self.loaded.broker_cpu_ns = Some(last.cpu_ns.saturating_sub(first.cpu_ns));
        }
        for (acknowledged, received, early) in self.sums.values() {
            self.loaded.acknowledged += acknowledged;
            self.loaded.received += received;
            self.loaded.early.0 += early.0;
            self.loaded.early.1 = self.loaded.early.1.max(early.1);
        }
        self.loaded
    }
}
