//! A run from the command line to its result: find the broker, make what is needed, fill, load, check, delete, report.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cli::{Args, Header, Workload};
use crate::draw::Distribution;
use crate::engine::{Clock, Failures, Stop};
use crate::load::{Load, Loaded};
use crate::proc::Process;
use crate::report::{page_of, to_hgrm, to_json, to_text, units};
use crate::result::{DISCONNECTED, FORMAT, Latency, Mode, RunOptions, RunResult, Step, TIMED_OUT, Totals};
use crate::setup::{Setup, Wanted};
use crate::signals;
use crate::work::pull::QueueEnd;
use crate::work::target::Budget;
use crate::workloads::{Parts, Works, delay_ms, producer_group};

/// A step of a search is sustained when so much of its rate came.
const SUSTAINED: f64 = 0.99;
/// A search ends when it knows the rate by this part.
const FINE: f64 = 0.03;
/// No load is longer than this: what fills ends by itself.
const LONG_S: f64 = 3_600.0;

/// Runs it and reports. What went wrong is told on stderr.
pub fn command(args: &Args) -> ExitCode {
    let stop = Stop::default();
    match signals::watch(stop.clone()).and_then(|()| run(args, &stop)) {
        Ok(result) => match report(args, &result) {
            Ok(()) if stop.is_set() => ExitCode::from(signals::INTERRUPTED),
            Ok(()) if is_lossy(args, &result) || result.totals.operations == 0 => ExitCode::FAILURE,
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        },
        Err(error) => fail(&error),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("ringmq bench: {error:#}");
    ExitCode::FAILURE
}

/// A run whose acknowledged messages are not all there has failed, whatever its figures; so has one in which nothing worked.
fn is_lossy(args: &Args, result: &RunResult) -> bool {
    !args.oneway && result.notes.iter().any(|note| note.starts_with(LOST))
}

const LOST: &str = "LOST";

/// One run.
///
/// # Errors
/// The broker is not there, refuses what a run needs, goes away or goes silent; or nothing was measured.
pub fn run(args: &Args, stop: &Stop) -> Result<RunResult> {
    let wanted = Wanted {
        broker: args.broker.clone(),
        namesrv: args.namesrv.clone(),
        broker_name: args.broker_name.clone(),
        topic: args.topic.clone(),
        topics: args.topic_count(),
        queues: args.queues,
        groups: match args.workload {
            Workload::FanOut => args.groups,
            Workload::Produce | Workload::ManyTopics | Workload::Transaction => 0,
            _ => 1,
        },
        vary: args.vary,
        keep: args.keep,
        patience: Duration::from_secs(args.timeout),
    };
    let process = args.pid.map(Process::new).transpose()?;
    let mut setup = Setup::find(&wanted)?;
    setup.check_disk(args.max_bytes)?;
    let made = setup.make();
    let result = made.and_then(|()| {
        Run { args, stop, clock: Clock::start(), process, budget: Budget::new(args.max_bytes), notes: Vec::new() }
            .measure(&mut setup)
    });
    for problem in setup.clean_up() {
        eprintln!("ringmq bench: {problem}");
    }
    result
}

/// The measured load, and the search before it.
struct Measured {
    steps: Vec<Step>,
    /// Messages that the steps sent.
    sent: u64,
    loaded: Loaded,
    /// Operations a second that were asked for.
    rate: Option<f64>,
}

struct Run<'r> {
    args: &'r Args,
    stop: &'r Stop,
    clock: Clock,
    process: Option<Process>,
    budget: Arc<Budget>,
    notes: Vec<String>,
}

impl Run<'_> {
    fn measure(mut self, setup: &mut Setup) -> Result<RunResult> {
        let args = self.args;
        if args.workload == Workload::Transaction {
            setup.register_producer(&producer_group(setup.run))?;
        }
        let before = setup.ends()?;
        let filled = self.fill(setup)?;
        let ends = setup.ends()?;
        if args.drop_page_cache {
            drop_page_cache()?;
        }
        let started = jiff::Timestamp::now();
        let Measured { steps, sent, loaded, rate } = {
            let budget = self.budget.clone();
            let mut parts = Parts::new(args, setup, &budget);
            let measured = self.load_all(&mut parts, ends.as_deref().unwrap_or_default())?;
            let missing = parts.flow.missing();
            if missing > 0 && args.workload.is_stamped() {
                self.notes.push(format!("{missing} messages were sent and did not reach their consumers in time"));
            }
            measured
        };
        ensure!(
            loaded.measured_s > 0.0,
            "nothing was measured: {}",
            if loaded.is_out_of_bytes { "--max-bytes was used up in the warm-up" } else { "it ended too early" }
        );
        let sum = |ends: Option<Vec<QueueEnd>>| ends.map(|ends| ends.iter().map(|queue| queue.end).sum::<u64>());
        self.check_stored(setup, sum(before), filled + sent + loaded.acknowledged)?;
        self.note(&loaded);
        Ok(self.result(setup, started, loaded, steps, rate))
    }

    /// Fills what is to be read, when it is not there yet; gives how many messages that were.
    fn fill(&self, setup: &mut Setup) -> Result<u64> {
        let there: u64 = setup.ends()?.unwrap_or_default().iter().map(|queue| queue.end).sum();
        let mut parts = Parts::new(self.args, setup, &self.budget);
        let Some(count) = parts.fill_count().filter(|count| *count > there) else { return Ok(0) };
        let works = parts.fillers(count - there);
        let load = Load {
            warm_up_s: 0.0,
            seconds: LONG_S,
            rate: None,
            main: crate::result::Kind::Send,
            ..self.load(setup, None, "fill")
        };
        let loaded = load.run(works, Some(count - there))?;
        ensure!(!loaded.is_out_of_bytes, "--max-bytes is too small to fill in {count} messages");
        ensure!(
            loaded.failures.is_empty(),
            "filling in messages failed: {}",
            failure_texts(&loaded.failures).join("; ")
        );
        Ok(loaded.acknowledged)
    }

    fn load(&self, setup: &Setup, rate: Option<f64>, name: &'static str) -> Load {
        let args = self.args;
        Load {
            address: setup.address,
            threads: args.threads,
            cpus: args.cpu.clone(),
            clock: self.clock,
            warm_up_s: warm_up_s(args),
            seconds: args.seconds,
            rate,
            patience: Duration::from_secs(args.timeout),
            settle: Duration::from_secs(args.timeout),
            main: crate::result::Kind::Send,
            budget: self.budget.clone(),
            process: self.process.clone(),
            stop: self.stop.clone(),
            progress: (!args.quiet).then_some(name),
        }
    }

    /// The measured load; with a search before it, its steps and the messages that they sent.
    fn load_all(&self, parts: &mut Parts<'_>, ends: &[QueueEnd]) -> Result<Measured> {
        let args = self.args;
        let base = Load { main: parts.main(), ..self.load(parts.setup(), args.rate, args.workload.name()) };
        let settle = base.settle + Duration::from_millis(u64::from(delay_ms(args)));
        let base = Load { settle, ..base };
        if !args.find_max {
            let works = parts.works(ends)?;
            let loaded = base.run(works, None)?;
            return Ok(Measured { steps: Vec::new(), sent: 0, loaded, rate: args.rate });
        }
        let (mut steps, mut sent) = (Vec::new(), 0);
        let (warm_up_s, seconds) = (args.step_seconds / 4.0, args.step_seconds);
        let mut step = |rate: Option<f64>, parts: &mut Parts<'_>| -> Result<Loaded> {
            let works: Works = parts.works(ends)?;
            let load = Load {
                warm_up_s,
                seconds,
                rate,
                settle: Duration::from_secs(3),
                ..self.load(parts.setup(), rate, "step")
            };
            let loaded = Load { main: parts.main(), ..load }.run(works, None)?;
            sent += loaded.acknowledged;
            ensure!(!loaded.is_out_of_bytes, "--max-bytes was used up by the search: give it more, or shorter steps");
            ensure!(!self.stop.is_set(), "interrupted");
            Ok(loaded)
        };
        // The most that the broker does in a closed loop is what the search begins under.
        let closed = step(None, parts)?;
        let mut high = closed.operations as f64 / closed.measured_s.max(1e-9) * 1.05;
        let mut low = 0.0;
        let mut rate = high / 1.05;
        for _ in 0..args.steps {
            let done = judge(rate, &step(Some(rate), parts)?, parts.main(), args.p99_limit);
            if done.is_sustained {
                low = rate
            } else {
                high = rate
            }
            steps.push(done);
            if high - low < high * FINE {
                break;
            }
            rate = (low + high) / 2.0;
        }
        ensure!(low > 0.0, "no rate was sustained: the last one tried was {} per second", units::number(rate));
        let works = parts.works(ends)?;
        let loaded = Load { rate: Some(low), ..base }.run(works, None)?;
        Ok(Measured { steps, sent, loaded, rate: Some(low) })
    }

    /// Messages that were acknowledged must be found in the queues.
    fn check_stored(&mut self, setup: &mut Setup, before: Option<u64>, acknowledged: u64) -> Result<()> {
        let args = self.args;
        // Acknowledged delayed messages are not all there yet; of oneway sends nobody knows what arrived.
        let Some(before) = before.filter(|_| args.workload != Workload::Delay) else { return Ok(()) };
        let Some(stored) = setup.stored(before + acknowledged)? else { return Ok(()) };
        let stored = stored.saturating_sub(before);
        if args.oneway {
            self.notes.push(format!("{acknowledged} messages were sent without an answer, {stored} were stored"));
        } else if stored < acknowledged {
            self.notes
                .push(format!("{LOST}: {acknowledged} messages were acknowledged and {stored} are in the queues"));
        } else if acknowledged > 0 {
            self.notes.push(format!(
                "{acknowledged} messages acknowledged from the first to the last, {stored} found in the queues"
            ));
        }
        Ok(())
    }

    fn note(&mut self, loaded: &Loaded) {
        if self.stop.is_set() {
            self.notes.push("interrupted".into());
        } else if loaded.is_out_of_bytes {
            let most = units::bytes(self.args.max_bytes as f64);
            self.notes.push(format!("ended early: the {most} of --max-bytes were used up"));
        }
        if loaded.early.0 > 0 {
            let (count, most) = (loaded.early.0, units::duration(loaded.early.1 as f64));
            self.notes.push(format!("{count} messages came before their time, by {most} at most"));
        }
        self.notes.extend(failure_texts(&loaded.failures));
    }

    fn result(
        self,
        setup: &Setup,
        started: jiff::Timestamp,
        loaded: Loaded,
        steps: Vec<Step>,
        rate: Option<f64>,
    ) -> RunResult {
        let args = self.args;
        let main = Parts::new(args, setup, &self.budget).main();
        let mut latencies: Vec<Latency> = loaded.latencies.iter().map(|(kind, h)| Latency::of(*kind, h)).collect();
        latencies.sort_by_key(|latency| latency.kind != main);
        let each = |ns: u64| (loaded.operations > 0).then(|| ns as f64 / loaded.operations as f64);
        RunResult {
            format: FORMAT,
            tool: concat!("ringmq ", env!("CARGO_PKG_VERSION")).into(),
            command: args.command.clone(),
            label: args.label.clone().unwrap_or_else(|| args.workload.name().into()),
            workload: args.workload.name().into(),
            broker: setup.address.to_string(),
            options: options(args, setup, rate),
            started: started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            warm_up_s: warm_up_s(args),
            measured_s: loaded.measured_s,
            totals: Totals {
                operations: loaded.operations,
                messages: loaded.messages,
                bytes: loaded.bytes,
                errors: loaded.failures.iter().map(|(code, (count, _))| (*code, *count)).collect(),
            },
            rate: loaded.operations as f64 / loaded.measured_s,
            latencies,
            broker_cpu_ns_per_operation: loaded.broker_cpu_ns.and_then(each),
            load_cpu_ns_per_operation: each(loaded.load_cpu_ns),
            samples: loaded.samples,
            steps,
            notes: self.notes,
        }
    }
}

/// Seconds before measuring: of delayed messages, until as many arrive as are sent.
fn warm_up_s(args: &Args) -> f64 {
    args.warm_up.max(f64::from(delay_ms(args)) / 1e3 * 1.1)
}

/// Whether a step's rate was sustained.
fn judge(target_rate: f64, loaded: &Loaded, main: crate::result::Kind, p99_limit_ns: u64) -> Step {
    let rate = loaded.operations as f64 / loaded.measured_s.max(1e-9);
    let p99_ns = loaded.latencies.get(&main).map_or(0, |h| h.value_at_quantile(0.99));
    let failed = loaded.failures.values().map(|(count, _)| *count).sum();
    let is_sustained = failed == 0 && rate >= target_rate * SUSTAINED && p99_ns <= p99_limit_ns;
    Step { target_rate, rate, p99_ns, failed, is_sustained }
}

fn failure_texts(failures: &Failures) -> Vec<String> {
    let text = |(code, (count, remark)): (&i32, &(u64, String))| match *code {
        TIMED_OUT => format!("{count} x no answer: {remark}"),
        DISCONNECTED => format!("{count} x {remark}"),
        code => format!("{count} x response code {code}, for example: {remark}"),
    };
    failures.iter().map(text).collect()
}

fn options(args: &Args, setup: &Setup, rate: Option<f64>) -> RunOptions {
    let mut other = BTreeMap::new();
    let mut note = |is_there: bool, name: &str, value: String| {
        if is_there {
            other.insert(name.to_owned(), value);
        }
    };
    note(args.oneway, "oneway", "yes".into());
    note(args.header == Header::Rocketmq, "header", "rocketmq".into());
    note(args.compressible, "compressible", "yes".into());
    note(args.vary, "varied", "yes".into());
    note(args.keys, "keys", "yes".into());
    note(args.tags != 1, "tags", args.tags.to_string());
    note(args.distribution != Distribution::Uniform, "distribution", args.distribution.to_string());
    note(args.threads > 1, "threads", args.threads.to_string());
    note(args.rollback > 0.0, "rollback", args.rollback.to_string());
    note(args.single_ack, "single-ack", "yes".into());
    note(args.find_max, "p99-limit", units::duration(args.p99_limit as f64));
    if args.workload == Workload::Delay {
        let delay = args.delay_ms.map_or_else(|| format!("level {}", args.delay_level), |ms| format!("{ms} ms"));
        note(true, "delay", delay);
    }
    RunOptions {
        size: size_text(args),
        connections: args.connections,
        window: args.window,
        batch: args.batch(),
        topics: setup.topics.len() as u32,
        queues: setup.queues,
        groups: setup.groups.len() as u32,
        flush: setup.settings.get("flushDiskType").cloned(),
        mode: if rate.is_some() { Mode::Open } else { Mode::Closed },
        target_rate: rate,
        other,
    }
}

fn size_text(args: &Args) -> String {
    match &args.size {
        crate::draw::Sizes::Fixed(size) => size.to_string(),
        crate::draw::Sizes::Range(low, high) => format!("{low}-{high}"),
        crate::draw::Sizes::List(sizes) => sizes.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
    }
}

/// Clean pages of all files leave memory. Errors: not allowed.
fn drop_page_cache() -> Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "1").context("dropping the page cache (root may)")
}

fn report(args: &Args, result: &RunResult) -> Result<()> {
    let write =
        |path: &Path, text: String| fs::write(path, text).with_context(|| format!("writing {}", path.display()));
    let line = to_json(result)?;
    match &args.json {
        Some(path) if path.as_os_str() == "-" => println!("{line}"),
        Some(path) => {
            write(path, line + "\n")?;
            print!("{}", to_text(result));
        }
        None => print!("{}", to_text(result)),
    }
    if let (Some(path), Some(main)) = (&args.hgrm, result.latencies.first()) {
        write(path, to_hgrm(main))?;
    }
    if let Some(path) = &args.html {
        write(path, page_of(&format!("{} on {}", result.workload, result.broker), std::slice::from_ref(result)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Kind, histogram};

    fn loaded(operations: u64, slowest_ns: u64, failed: u64) -> Loaded {
        let mut h = histogram();
        h.record_n(1_000, 98).unwrap();
        h.record_n(slowest_ns, 2).unwrap();
        let mut loaded = Loaded { measured_s: 2.0, operations, ..Loaded::default() };
        loaded.latencies.insert(Kind::Send, h);
        if failed > 0 {
            loaded.failures.insert(2, (failed, "busy".into()));
        }
        loaded
    }

    #[test]
    fn a_step_is_sustained_by_rate_latency_and_success() {
        let judge = |loaded: Loaded| judge(1_000.0, &loaded, Kind::Send, 1_000_000).is_sustained;
        assert!(judge(loaded(2_000, 900_000, 0)) && judge(loaded(1_985, 900_000, 0)));
        assert!(!judge(loaded(1_900, 900_000, 0)), "rate");
        assert!(!judge(loaded(2_000, 1_100_000, 0)), "latency");
        assert!(!judge(loaded(2_000, 900_000, 1)), "failure");
    }

    #[test]
    fn failures_have_their_remark() {
        let mut failures = loaded(1, 1, 3).failures;
        failures.insert(TIMED_OUT, (1, "late".into()));
        assert_eq!(failure_texts(&failures), ["1 x no answer: late", "3 x response code 2, for example: busy"]);
    }
}
