//! The load generators: the project's own (`ringmq bench`) and the neutral one of `../shared/load`, which shares no code with
//! it. Both have the processor that the broker has not.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use bench::report::from_json;
use bench::result::{Latency, RunResult};
use serde_json::{Value, json};

use super::rows::{Figure, Kind, Pace, Work, first};
use super::sides::Side;
use crate::client::Connection;
use crate::project;

/// Bytes of a body from which on a run writes gigabytes.
const LARGE: u32 = 16_384;
/// Seconds of load before the measured ones of each run.
const WARM: u64 = 3;

/// Which load generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Which {
    /// `ringmq bench` of the measured build.
    Own,
    /// `../shared/load`: closed loops of sends and pulls only.
    Neutral,
}

/// A load generator that is built.
#[derive(Debug)]
pub struct Load {
    which: Which,
    program: PathBuf,
}

/// A load that runs; it ends by itself.
#[derive(Debug)]
pub struct Running {
    which: Which,
    words: Vec<String>,
    child: Child,
}

impl Running {
    /// Waits for its end. Errors: it failed, or the broker refused requests.
    pub fn finish(self) -> Result<Measured> {
        let output = self.child.wait_with_output()?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let line = out.lines().rev().find(|l| l.starts_with('{'));
        let line = line.with_context(|| format!("`{}` gave no result: {err}", self.words.join(" ")))?;
        let measured = match self.which {
            Which::Own => own(from_json(line).context("reading the result of ringmq bench")?, &self.words),
            Which::Neutral => neutral(&serde_json::from_str(line)?, &self.words)?,
        };
        ensure!(measured.failed == 0, "the broker refused {} requests: {}", measured.failed, measured.kept);
        ensure!(output.status.success(), "`{}` ended with {}: {err}", self.words.join(" "), output.status);
        Ok(measured)
    }
}

/// What a run gave.
#[derive(Debug, Clone)]
pub struct Measured {
    cpu_ns: Option<f64>,
    rate: f64,
    /// p50, p99, p99.9 and max, nanoseconds.
    latencies: [f64; 4],
    /// Operations that failed.
    pub failed: u64,
    /// What is kept of it.
    pub kept: Value,
    /// All of it, when the project's own load generator measured it.
    pub run: Option<RunResult>,
}

impl Measured {
    /// One of its figures, when it was measured.
    pub fn figure(&self, figure: Figure) -> Option<f64> {
        let value = match figure {
            Figure::Cpu => return self.cpu_ns,
            Figure::Rate => self.rate,
            Figure::P50 => self.latencies[0],
            Figure::P99 => self.latencies[1],
            Figure::P999 => self.latencies[2],
            Figure::Max => self.latencies[3],
        };
        Some(value)
    }
}

impl Load {
    /// Builds the neutral load generator, or takes the one that a binary of RingMQ holds.
    pub fn new(which: Which, ringmq: &Path) -> Result<Load> {
        let program = match which {
            Which::Own => ringmq.to_path_buf(),
            Which::Neutral => {
                let target = project::target()?.join("load");
                let shared = project::shared().context("the neutral load is in ../shared, which is not there")?;
                let mut build = project::cargo(["build", "--release", "--locked", "--manifest-path"])?;
                build.arg(shared.join("load/Cargo.toml")).arg("--target-dir").arg(&target);
                project::run(&mut build)?;
                target.join("release/rmq-load")
            }
        };
        Ok(Load { which, program })
    }

    /// Whether it can do such a work.
    pub fn can(&self, work: &Work) -> bool {
        let known = matches!(work.kind, Kind::Send | Kind::Pull);
        let plain = known && work.pace == Pace::Closed && !work.varied && work.topics == 1;
        self.which == Which::Own || plain
    }

    /// Puts a load on a broker and waits for its end.
    pub fn run(&self, side: &Side, work: &Work, secs: u64) -> Result<Measured> {
        self.start(side, work, secs)?.finish()
    }

    /// Begins to put a load on a broker.
    pub fn start(&self, side: &Side, work: &Work, secs: u64) -> Result<Running> {
        let mut words = match self.which {
            Which::Own => own_words(work, secs)?,
            Which::Neutral => neutral_words(work, secs),
        };
        if self.which == Which::Neutral && work.kind == Kind::Pull {
            words.extend(["--max-offset".into(), self.fill(side)?.to_string()]);
        }
        let (address, pid) = (side.address().to_string(), side.pid()?.to_string());
        let mut command = Command::new("taskset");
        command.args(["-c", work.cpus]).arg(&self.program);
        match self.which {
            Which::Own => command.arg("bench").args(&words).args(["--broker", &address, "--pid", &pid]),
            Which::Neutral => command.args(&words).args(["--addr", &address, "--server-pid", &pid]),
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().context("starting the load generator")?;
        Ok(Running { which: self.which, words, child })
    }

    /// Makes sure that each queue holds some thousand messages of 128 bytes; gives how many there are to pull.
    fn fill(&self, side: &Side) -> Result<u64> {
        let shortest = || -> Result<u64> {
            let mut connection = Connection::open(side.address())?;
            let ends =
                (0..first().queues).map(|q| connection.max_offset(first().topic, q)).collect::<Result<Vec<_>>>()?;
            Ok(ends.into_iter().min().unwrap_or(0))
        };
        if shortest()? < 20_000 {
            self.run(side, &first(), 5)?;
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
        let filled = shortest()?.min(20_000);
        ensure!(filled >= 1_000, "only {filled} messages in a queue to pull");
        Ok(filled)
    }
}

fn neutral_words(work: &Work, secs: u64) -> Vec<String> {
    let mode = if work.kind == Kind::Pull { "pull" } else { "send" };
    let text = format!(
        "--json --topic {} --queues {} --mode {mode} --size {} --conns {} --window {} --batch {} --warm {WARM} --secs {secs}",
        work.topic, work.queues, work.size, work.connections, work.window, work.batch
    );
    text.split(' ').map(String::from).collect()
}

fn own_words(work: &Work, secs: u64) -> Result<Vec<String>> {
    let workload = match work.kind {
        Kind::Send => "produce",
        Kind::Pull => "consume",
        Kind::EndToEnd => "end-to-end",
        Kind::Backlog => "cold-read",
    };
    let mut text = format!(
        "{workload} --quiet --topic {} --queues {} --size {} --connections {} --window {} --batch {} --seconds {secs} --max-bytes {}",
        work.topic,
        work.queues,
        work.size,
        work.connections,
        work.window,
        work.batch,
        work.most_bytes()
    );
    // Large messages would use up what a run may write before it is measured.
    text += &format!(" --warm-up {}", if work.size >= LARGE { 1 } else { WARM });
    match work.topics {
        1 if work.varied => text += " --vary",
        1 => {}
        // They are still there when the broker is started again.
        several => text += &format!(" --topics {several} --keep"),
    }
    if work.kind == Kind::Backlog {
        // What is to be read lies there.
        text += " --fill 1";
    }
    match work.pace {
        Pace::Closed => {}
        Pace::Rate(rate) => text += &format!(" --rate {rate:.0}"),
        Pace::HalfOfJava => bail!("the rate of an open loop is not known yet"),
    }
    text += " --json";
    Ok(text.split(' ').map(String::from).collect())
}

fn own(run: RunResult, words: &[String]) -> Measured {
    let main: Option<&Latency> = run.latencies.first();
    let ns = |of: fn(&Latency) -> u64| main.map_or(f64::NAN, |l| of(l) as f64);
    // Each round keeps its figures and percentiles; curves and seconds are on the page.
    let mut short = run.clone();
    short.samples.clear();
    short.latencies.iter_mut().for_each(|l| l.steps.clear());
    short.command.clone_from(&words.join(" "));
    short.broker = String::new();
    Measured {
        cpu_ns: run.broker_cpu_ns_per_operation,
        rate: run.rate,
        latencies: [ns(|l| l.p50_ns), ns(|l| l.p99_ns), ns(|l| l.p999_ns), ns(|l| l.max_ns)],
        failed: run.totals.failed(),
        kept: json!(short),
        run: Some(run),
    }
}

pub fn neutral(result: &Value, words: &[String]) -> Result<Measured> {
    const NS_PER_US: f64 = 1_000.0;
    let figure = |key: &str| result[key].as_f64().with_context(|| format!("a result without {key}: {result}"));
    let mut kept = result.clone();
    kept["command"] = words.join(" ").into();
    Ok(Measured {
        cpu_ns: result["server_cpu_ns_per_request"].as_f64(),
        rate: figure("rate")?,
        latencies: [
            figure("p50_us")? * NS_PER_US,
            figure("p99_us")? * NS_PER_US,
            figure("p999_us")? * NS_PER_US,
            figure("max_us")? * NS_PER_US,
        ],
        failed: result["failed"].as_u64().context("a result without failed")?,
        kept,
        run: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neutral_result_is_read_whole() {
        let result = json!({
            "rate": 574935, "server_cpu_ns_per_request": 1694, "p50_us": 716, "p99_us": 5922, "p999_us": 12635,
            "max_us": 14664, "failed": 0,
        });
        let measured = neutral(&result, &["--json".into()]).unwrap();
        assert_eq!(measured.figure(Figure::Cpu), Some(1694.0));
        assert_eq!(measured.figure(Figure::Max), Some(14_664_000.0));
        assert!(neutral(&json!({"rate": 1}), &[]).is_err());
    }

    #[test]
    fn an_open_loop_without_its_rate_is_refused() {
        let words = |pace| own_words(&Work { pace, ..first() }, 10);
        assert!(words(Pace::HalfOfJava).is_err());
        assert!(words(Pace::Rate(20_000.4)).unwrap().join(" ").contains(" --rate 20000 "));
    }
}
