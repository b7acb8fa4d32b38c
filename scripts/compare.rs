//! RingMQ and the Java broker side by side: the same load, one after the other, in alternating rounds. The broker has one
//! processor, the load another; whoever is not measured is stopped (SIGSTOP) or not there. Every round is kept.

use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::client::Connection;
use crate::project;
use crate::reference::{self, Java, Reference};
use crate::report::Report;
use crate::server::{self, Server};

const TOPIC: &str = "LoadTopic";
const QUEUES: u32 = 8;
const BROKER_CPU: &str = "0";
const LOAD_CPU: &str = "1";

/// How to compare.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Alternating rounds of each row.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measured seconds of a round.
    #[arg(long, default_value_t = 10)]
    secs: u64,
    /// Seconds of load before the Java broker is measured.
    #[arg(long, default_value_t = 30)]
    warm_up: u64,
    /// Two short rounds and little warm-up: shows that it works, proves nothing, keeps nothing.
    #[arg(long)]
    quick: bool,
    /// Only rows whose name contains this; may be repeated.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Garbage collector of the Java broker.
    #[arg(long, default_value = "Serial")]
    gc: String,
    /// A binary to measure instead of the release build of this checkout.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Java on both sides: the ratios are then those of nothing but chance.
    #[arg(long)]
    reference_only: bool,
}

/// A kind of load, and how much better RingMQ has to be.
struct Row {
    name: &'static str,
    flush: &'static str,
    load: &'static [&'static str],
    pull: bool,
    /// RingMQ's rate over Java's, at least.
    rate_floor: f64,
    /// Java's CPU time of a request over RingMQ's, at least.
    cpu_floor: f64,
}

const ROWS: [Row; 4] = [
    Row {
        name: "send 128 B, 8 x 64",
        flush: "ASYNC_FLUSH",
        load: &["--size", "128", "--conns", "8", "--window", "64"],
        pull: false,
        rate_floor: 8.0,
        cpu_floor: 10.0,
    },
    Row {
        name: "send 1 KiB, 8 x 64",
        flush: "ASYNC_FLUSH",
        load: &["--size", "1024", "--conns", "8", "--window", "64"],
        pull: false,
        rate_floor: 0.0,
        cpu_floor: 8.0,
    },
    Row {
        name: "pull 32 x 128 B, 8 x 64",
        flush: "ASYNC_FLUSH",
        load: &["--mode", "pull", "--batch", "32", "--conns", "8", "--window", "64"],
        pull: true,
        rate_floor: 0.0,
        cpu_floor: 2.5,
    },
    Row {
        name: "SYNC_FLUSH send 128 B, 8 x 64",
        flush: "SYNC_FLUSH",
        load: &["--size", "128", "--conns", "8", "--window", "64"],
        pull: false,
        rate_floor: 5.0,
        cpu_floor: 0.0,
    },
];

const IDLE_MEMORY_LIMIT_MIB: f64 = 100.0;
const EMPTY_START_LIMIT_S: f64 = 0.3;

/// Measures everything, prints the comparison and adds the rounds to `perf/results`.
pub fn run(arguments: &Arguments) -> Result<Report> {
    let mut a = arguments.clone();
    if a.quick {
        (a.rounds, a.secs, a.warm_up) = (2, 3, 5);
    }
    ensure!(thread_count()? >= 2, "a broker and a load generator need a processor each");
    let mut bench = Bench::new(&a)?;
    let mut report = Report::default();
    for flush in ["ASYNC_FLUSH", "SYNC_FLUSH"] {
        let rows: Vec<&Row> = ROWS.iter().filter(|r| r.flush == flush && wanted(&a, r.name)).collect();
        if !rows.is_empty() {
            bench.rows(&rows, flush, &mut report)?;
        }
    }
    if wanted(&a, "idle and start") {
        bench.idle_and_start(&mut report)?;
    }
    println!("every round: {}", bench.results.display());
    fs::remove_dir_all(&bench.folder)?;
    Ok(report)
}

fn wanted(a: &Arguments, name: &str) -> bool {
    a.only.is_empty() || a.only.iter().any(|only| name.contains(only.as_str()))
}

/// A broker under measurement: RingMQ for one round, Java for all rounds of a flush mode.
pub enum Side {
    /// RingMQ.
    Ours(Server),
    /// The Java broker.
    Theirs(Box<Reference>),
}

impl Side {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        match self {
            Side::Ours(s) => s.broker,
            Side::Theirs(r) => r.broker,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> Result<u32> {
        match self {
            Side::Ours(s) => s.pid(),
            Side::Theirs(r) => r.pid(),
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.pid()?.cast_signed()).context("a process id of 0")?;
        Ok(kill_process(pid, signal)?)
    }
}

struct Bench<'a> {
    arguments: &'a Arguments,
    folder: PathBuf,
    results: PathBuf,
    java: Java,
    binary: PathBuf,
    load: PathBuf,
}

impl Bench<'_> {
    fn new(a: &Arguments) -> Result<Bench<'_>> {
        let load_target = project::target()?.join("load");
        let shared = project::shared().context("the load generator is in ../shared, which is not there")?;
        let mut build = project::cargo(["build", "--release", "--locked", "--manifest-path"])?;
        build.arg(shared.join("load/Cargo.toml")).arg("--target-dir").arg(&load_target);
        project::run(&mut build)?;
        let folder = project::work_folder("compare")?;
        let date = project::output(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
        let kept = project::root().join("perf/results").join(format!("{}-compare.jsonl", date.trim()));
        let results = if a.quick || a.reference_only { project::target()?.join("compare.jsonl") } else { kept };
        fs::create_dir_all(results.parent().context("a file without folder")?)?;
        let binary = match &a.binary {
            Some(binary) => binary.clone(),
            None if a.reference_only => PathBuf::new(),
            None => project::ringmq()?,
        };
        let bench = Bench {
            arguments: a,
            folder,
            results,
            java: Java::build()?,
            binary,
            load: load_target.join("release/rmq-load"),
        };
        bench.keep(machine()?)?;
        Ok(bench)
    }

    /// Adds a line to the results.
    fn keep(&self, line: Value) -> Result<()> {
        let mut file = File::options().create(true).append(true).open(&self.results)?;
        Ok(writeln!(file, "{line}")?)
    }

    fn start_ours(&self, flush: &str) -> Result<Side> {
        if self.arguments.reference_only {
            let mut side = self.start_theirs(flush, "second")?;
            self.warm_up(&mut side)?;
            return Ok(side);
        }
        let folder = self.folder.join("ringmq");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let options = server::Options {
            settings: vec![format!("flushDiskType={flush}")],
            wrapper: ["taskset", "-c", BROKER_CPU].map(String::from).to_vec(),
            ..server::Options::default()
        };
        let server = Server::start(&self.binary, &folder, &options)?;
        Connection::open(server.broker)?.create_topic(TOPIC, QUEUES)?;
        Ok(Side::Ours(server))
    }

    fn start_theirs(&self, flush: &str, name: &str) -> Result<Side> {
        let folder = self.folder.join(format!("java-{flush}-{name}"));
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let sizes = ["mappedFileSizeCommitLog=1073741824", "mappedFileSizeConsumeQueue=6000000"].map(String::from);
        let options = reference::Options {
            settings: sizes.into_iter().chain([format!("flushDiskType={flush}")]).collect(),
            jvm: vec!["-Xmx4g".into(), "-Xms4g".into(), format!("-XX:+Use{}GC", self.arguments.gc)],
            wrapper: ["taskset", "-c", BROKER_CPU].map(String::from).to_vec(),
            ..reference::Options::default()
        };
        let reference = Reference::start(&self.java, &folder, &options)?;
        Connection::open(reference.broker)?.create_topic(TOPIC, QUEUES)?;
        Ok(Side::Theirs(Box::new(reference)))
    }

    fn warm_up(&self, side: &mut Side) -> Result<()> {
        let secs = self.arguments.warm_up.to_string();
        let words = ["--size", "128", "--conns", "8", "--window", "64", "--warm", "1", "--secs", &secs];
        self.run_load(side, &words).map(drop)
    }

    /// All rows of a flush mode: one Java broker for all of them, warmed up once; a RingMQ with an empty store for each round.
    fn rows(&mut self, rows: &[&Row], flush: &str, report: &mut Report) -> Result<()> {
        println!("\nstarting and warming up the Java broker, {flush}");
        let mut theirs = self.start_theirs(flush, "first")?;
        self.warm_up(&mut theirs)?;
        for row in rows {
            println!("\n== {}", row.name);
            let mut rounds: [Vec<Value>; 2] = Default::default();
            for round in 0..self.arguments.rounds {
                rounds[0].push(self.round(row, round, "java", &mut theirs)?);
                theirs.signal(Signal::STOP)?;
                let mut ours = self.start_ours(flush)?;
                rounds[1].push(self.round(row, round, "ringmq", &mut ours)?);
                drop(ours);
                theirs.signal(Signal::CONT)?;
            }
            judge(row, &rounds, report)?;
        }
        Ok(())
    }

    fn round(&self, row: &Row, round: usize, name: &str, side: &mut Side) -> Result<Value> {
        let secs = self.arguments.secs.to_string();
        let mut words: Vec<&str> = row.load.to_vec();
        words.extend(["--secs", &secs]);
        let max_offset = if row.pull { self.fill(side)?.to_string() } else { String::new() };
        if row.pull {
            words.extend(["--max-offset", &max_offset]);
        }
        let result = self.run_load(side, &words)?;
        ensure!(result["failed"] == 0, "{name} refused requests: {result}");
        let words = words.join(" ");
        self.keep(
            json!({"row": row.name, "flush": row.flush, "side": name, "round": round, "load": words, "result": result}),
        )?;
        println!("{name:>7} {round}: {}", summary(&result));
        Ok(result)
    }

    /// Makes sure that each queue holds some thousand messages of 128 bytes; gives how many there are to pull.
    fn fill(&self, side: &mut Side) -> Result<u64> {
        let shortest = |side: &Side| -> Result<u64> {
            let mut connection = Connection::open(side.address())?;
            (0..QUEUES)
                .map(|q| connection.max_offset(TOPIC, q))
                .collect::<Result<Vec<_>>>()
                .map(|all| all.into_iter().min().unwrap_or(0))
        };
        if shortest(side)? < 20_000 {
            let words = ["--size", "128", "--conns", "8", "--window", "64", "--warm", "1", "--secs", "5"];
            self.run_load(side, &words)?;
            sleep(Duration::from_secs(1));
        }
        let filled = shortest(side)?.min(20_000);
        ensure!(filled >= 1_000, "only {filled} messages in a queue to pull");
        Ok(filled)
    }

    fn run_load(&self, side: &mut Side, words: &[&str]) -> Result<Value> {
        let mut command = Command::new("taskset");
        command.args(["-c", LOAD_CPU]).arg(&self.load).args(["--json", "--topic", TOPIC, "--queues", "8"]);
        command.args(["--addr", &side.address().to_string(), "--server-pid", &side.pid()?.to_string()]).args(words);
        serde_json::from_str(&project::output(&mut command)?).context("reading the result of the load generator")
    }

    /// Start of an empty broker, and its memory and processor time while nothing happens.
    fn idle_and_start(&mut self, report: &mut Report) -> Result<()> {
        println!("\n== idle and start");
        let mut medians = Vec::new();
        for name in ["java", "ringmq"] {
            let (mut starts, mut memory, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
            // A start of Java takes many seconds and varies little.
            let rounds = if name == "java" { 1 } else { self.arguments.rounds };
            for round in 0..rounds {
                let side = if name == "java" {
                    self.start_theirs("ASYNC_FLUSH", "idle")?
                } else {
                    self.start_ours("ASYNC_FLUSH")?
                };
                Connection::open(side.address())?.runtime_info()?;
                let started_in = match &side {
                    Side::Ours(s) => s.started_in,
                    Side::Theirs(r) => r.started_in,
                };
                sleep(Duration::from_secs(2));
                let (before, since) = (cpu_seconds(side.pid()?)?, Instant::now());
                sleep(Duration::from_secs(5));
                let used = (cpu_seconds(side.pid()?)? - before) / since.elapsed().as_secs_f64();
                starts.push(started_in.as_secs_f64());
                memory.push(anonymous_mib(side.pid()?)?);
                cpu.push(used * 100.0);
                let result =
                    json!({"start_s": starts.last(), "anonymous_mib": memory.last(), "cpu_percent": cpu.last()});
                self.keep(json!({"row": "idle and start", "side": name, "round": round, "result": result}))?;
                println!("{name:>7} {round}: {result}");
            }
            medians.push((median(&mut starts), median(&mut memory), median(&mut cpu)));
        }
        let (start, memory, cpu) = medians[1];
        println!(
            "java: {:.2} s, {:.0} MiB, {:.1} % idle; ringmq: {start:.3} s, {memory:.1} MiB, {cpu:.2} %",
            medians[0].0, medians[0].1, medians[0].2
        );
        report.test("empty start", at_most("seconds", start, EMPTY_START_LIMIT_S));
        report.test("idle memory", at_most("MiB", memory, IDLE_MEMORY_LIMIT_MIB));
        report.test("idle processor time", at_most("percent of a core", cpu, 1.0));
        Ok(())
    }
}

fn judge(row: &Row, rounds: &[Vec<Value>; 2], report: &mut Report) -> Result<()> {
    let figures = |side: usize, key: &str| -> Result<Vec<f64>> {
        rounds[side].iter().map(|r| r[key].as_f64().with_context(|| format!("a round without {key}"))).collect()
    };
    for (key, better, floor) in [("rate", 1, row.rate_floor), ("server_cpu_ns_per_request", 0, row.cpu_floor)] {
        let (mut java, mut ours) = (figures(0, key)?, figures(1, key)?);
        let (java_median, our_median) = (median(&mut java), median(&mut ours));
        let ratio = if better == 1 { our_median / java_median } else { java_median / our_median };
        println!("{key}: java {} | ringmq {} | {ratio:.2} times better", spread(&java), spread(&ours));
        if floor > 0.0 {
            let name = format!("{}: {key} {floor} times better", row.name);
            let result = if ratio >= floor { Ok(()) } else { Err(anyhow::anyhow!("{ratio:.2} times")) };
            report.test(&name, result);
        }
    }
    Ok(())
}

fn at_most(what: &str, value: f64, limit: f64) -> Result<()> {
    ensure!(value <= limit, "{value:.3} {what}, {limit} at most");
    Ok(())
}

fn summary(result: &Value) -> String {
    let figure = |key: &str| result[key].as_f64().unwrap_or(f64::NAN);
    format!(
        "{:.0}/s, {:.0} ns CPU, p50 {:.0} us, p99 {:.0} us",
        figure("rate"),
        figure("server_cpu_ns_per_request"),
        figure("p50_us"),
        figure("p99_us")
    )
}

/// Median, smallest and largest of sorted figures.
fn spread(sorted: &[f64]) -> String {
    format!("{:.0} ({:.0} to {:.0})", sorted[sorted.len() / 2], sorted[0], sorted[sorted.len() - 1])
}

/// Sorts the figures and gives the one in the middle.
pub fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn thread_count() -> Result<usize> {
    Ok(std::thread::available_parallelism()?.get())
}

/// What the figures depend on.
pub fn machine() -> Result<Value> {
    let line = |file: &str, key: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().find(|l| l.starts_with(key)).map(|l| l[key.len()..].trim_matches([' ', '\t', ':']).to_string())
    };
    // What a path says of the machine is nobody's business.
    let without_folder = |word: &str| match Path::new(word).file_name() {
        Some(name) if word.starts_with('/') => name.to_string_lossy().into_owned(),
        _ => word.to_owned(),
    };
    let commit =
        project::output(Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(project::root()))?;
    Ok(json!({
        "machine": {
            "processors": thread_count()?,
            "model": line("/proc/cpuinfo", "model name"),
            "memory": line("/proc/meminfo", "MemTotal"),
            "kernel": fs::read_to_string("/proc/sys/kernel/osrelease")?.trim(),
        },
        "commit": commit.trim(),
        "command": std::env::args().skip(1).map(|word| without_folder(&word)).collect::<Vec<_>>().join(" "),
        "time": project::output(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]))?.trim(),
    }))
}

/// User and system time of a process so far.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"))?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok()).context("reading a process's time");
    Ok((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

/// Anonymous resident memory of a process.
fn anonymous_mib(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).context("the kernel does not tell RssAnon")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}
