//! `cargo xtask costs`: what the broker's processor time for one operation of each kind is, and its ratio to a plain send or
//! pull. The broker has processor 0 and one shard, the load processor 1; each round of each row starts with an empty store.
//! Counted is all that the operation causes: deliveries, op messages and expired check points included, the time of an idle
//! broker not, nor what the messages that are pulled or popped cost when they were sent. Pulls and pops read the same backlog,
//! each message once. With `--against` or `--commit` a plain send of two builds is compared in alternating rounds, by processor time or,
//! with `--instructions`, by instructions under callgrind.

mod instructions;
mod load;
mod works;

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::{Value, json};

use crate::client::Connection;
use crate::compare::{HeldMemory, Side, machine, median};
use crate::project;
use crate::reference::{self, Java, Reference};
use crate::report::Report;
use crate::server::{Options, Server};
use load::{Run, Work};
use works::{BATCH, POP_GROUP, PRODUCER_GROUP, Pops, Pulls, QUEUES, Sends, Transactions};

const TOPIC: &str = "costs";
const BROKER_CPU: &str = "0";
const LOAD_CPU: usize = 1;
/// Deliveries and commits that are late by more are missing.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(60);
/// Messages that are pulled or popped: some 260 MB, of which a broker gives 32 at a time as long as it has the memory.
const FILLED: u64 = 1_562 * (works::WINDOW * load::LINKS) as u64;
const FILL_LIMIT: Duration = Duration::from_secs(60);
/// A broker that takes no more than this of a processor is at rest (on top of what it takes when idle).
const REST: f64 = 0.01;
/// How long it may take until then.
const REST_LIMIT: Duration = Duration::from_secs(60);
/// A send of the other build may take so much less.
const AGAINST_LIMIT: f64 = 1.05;

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Rounds of each row; their medians are compared.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of load of a round.
    #[arg(long, default_value_t = 5)]
    secs: u64,
    /// Only rows whose name contains this; may be repeated. The rows that they are compared with are measured too.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// A binary to measure instead of the release build of this checkout.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Compare a plain send with this binary instead: 5 % more at most.
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// The same with the build of another commit, which is checked out and built aside.
    #[arg(long, value_name = "COMMIT", conflicts_with = "against")]
    commit: Option<String>,
    /// Compare instructions instead of processor time. Needs valgrind, and builds both sides so that they run under it:
    /// binaries that are given must be built with RUSTFLAGS="--cfg rustix_use_libc".
    #[arg(long)]
    instructions: bool,
    /// The Java broker instead, as it is right after its start: shows that the load is right, not what Java can do.
    #[arg(long)]
    reference: bool,
    /// Where the rounds are added, one JSON object a line; `perf/results/<date>-costs.jsonl` unless given.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// A kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    Transaction,
    Timer,
    Level,
    Pull,
    PopAndAck,
}

/// An operation, and what it may cost.
struct Row {
    name: &'static str,
    kind: Kind,
    /// So many operations of another row at most.
    limit: Option<(f64, &'static str)>,
    /// What it causes later is over after so long.
    settle: Duration,
}

const SEND: &str = "send 128 B";
const PULL: &str = "pull 32 x 128 B";
const ROWS: [Row; 6] = [
    Row { name: SEND, kind: Kind::Send, limit: None, settle: Duration::from_secs(1) },
    Row {
        name: "transaction, half and commit",
        kind: Kind::Transaction,
        limit: Some((4.0, SEND)),
        settle: Duration::from_secs(4),
    },
    Row {
        name: "timer of 1 s with its delivery",
        kind: Kind::Timer,
        limit: Some((3.0, SEND)),
        settle: Duration::from_secs(1),
    },
    Row {
        name: "delay level 1 with its delivery",
        kind: Kind::Level,
        limit: Some((3.0, SEND)),
        settle: Duration::from_secs(1),
    },
    Row { name: PULL, kind: Kind::Pull, limit: None, settle: Duration::from_secs(1) },
    Row {
        name: "pop 32 x 128 B and batch ack",
        kind: Kind::PopAndAck,
        limit: Some((2.0, PULL)),
        settle: Duration::from_millis(works::INVISIBLE + 1_000),
    },
];

/// Measures all rows, or one against another build.
pub fn run(a: &Arguments) -> Result<Report> {
    ensure!(std::thread::available_parallelism()?.get() >= 2, "a broker and its load need a processor each");
    let build = if a.reference {
        Build::Java(Java::build()?)
    } else if let Some(binary) = &a.binary {
        Build::Ringmq(binary.clone())
    } else if a.instructions {
        Build::Ringmq(instructions::build_for_valgrind(&project::root(), "this")?)
    } else {
        Build::Ringmq(project::ringmq()?)
    };
    let other = match &a.commit {
        Some(commit) => Some(instructions::build_commit(commit, a.instructions)?),
        None => a.against.clone(),
    };
    let _memory = if a.instructions { None } else { HeldMemory::hold()? };
    let folder = project::work_folder("costs")?;
    let bench = Bench { secs: a.secs, folder: folder.clone(), results: results(a)? };
    bench.keep(&machine()?)?;
    let mut own_cpu = CpuSet::new();
    own_cpu.set(LOAD_CPU);
    sched_setaffinity(None, &own_cpu).context("running the load on a processor of its own")?;
    let report = match other {
        Some(other) => bench.against(&build, &Build::Ringmq(other), a)?,
        None if a.instructions => {
            bail!("--instructions compares two builds: tell the other with --commit or --against")
        }
        None => bench.rows(&build, a)?,
    };
    println!("every round: {}", bench.results.display());
    fs::remove_dir_all(folder)?;
    Ok(report)
}

fn results(a: &Arguments) -> Result<PathBuf> {
    if let Some(out) = &a.out {
        return Ok(out.clone());
    }
    let date = project::output(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
    Ok(project::root().join("perf/results").join(format!("{}-costs.jsonl", date.trim())))
}

/// What is measured.
enum Build {
    Ringmq(PathBuf),
    Java(Java),
}

struct Bench {
    secs: u64,
    folder: PathBuf,
    results: PathBuf,
}

impl Bench {
    fn keep(&self, line: &Value) -> Result<()> {
        let mut file = File::options().create(true).append(true).open(&self.results)?;
        Ok(writeln!(file, "{line}")?)
    }

    fn rows(&self, build: &Build, a: &Arguments) -> Result<Report> {
        let named = |name: &str| a.only.is_empty() || a.only.iter().any(|only| name.contains(only.as_str()));
        let is_base = |name| ROWS.iter().any(|r| named(r.name) && r.limit.is_some_and(|(_, base)| base == name));
        let rows: Vec<&Row> = ROWS.iter().filter(|r| named(r.name) || is_base(r.name)).collect();
        let mut costs: Vec<Vec<f64>> = vec![Vec::new(); rows.len()];
        let mut report = Report::default();
        for round in 0..a.rounds {
            for (row, costs) in rows.iter().zip(&mut costs) {
                // A row that cannot be measured must not hide the others.
                match self.round(row, round, "this", build) {
                    Ok(cost) => costs.push(cost),
                    Err(why) => report.fail(format!("{}, round {round}", row.name), &why),
                }
            }
        }
        println!();
        let medians: Vec<Option<f64>> =
            costs.iter_mut().map(|costs| (!costs.is_empty()).then(|| median(costs))).collect();
        let of = |name: &str| rows.iter().zip(&medians).find(|(r, _)| r.name == name).and_then(|(_, m)| *m);
        for (row, cost) in rows.iter().zip(&medians) {
            let Some(cost) = cost else { continue };
            println!("{:<34} {cost:>9.0} ns", row.name);
            let Some((limit, base)) = row.limit else { continue };
            let Some(base_cost) = of(base) else { continue };
            let ratio = cost / base_cost;
            println!("{:<34} {ratio:>9.2} times {base}", "");
            let result = if ratio <= limit { Ok(()) } else { Err(anyhow::anyhow!("{ratio:.2} times")) };
            report.test(&format!("{}: {limit} times {base} at most", row.name), result);
        }
        Ok(report)
    }

    fn against(&self, build: &Build, other: &Build, a: &Arguments) -> Result<Report> {
        let unit = if a.instructions { "instructions" } else { "ns" };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..a.rounds {
            for (side, build, costs) in [("other", other, &mut theirs), ("this", build, &mut ours)] {
                costs.push(match a.instructions {
                    true => self.instructions(round, side, build)?,
                    false => self.round(&ROWS[0], round, side, build)?,
                });
            }
        }
        let (cost, before) = (median(&mut ours), median(&mut theirs));
        let ratio = cost / before;
        println!("\n{SEND}: {cost:.0} {unit}, the other build {before:.0}, {ratio:.3} times");
        let mut report = Report::default();
        let result = if ratio <= AGAINST_LIMIT { Ok(()) } else { Err(anyhow::anyhow!("{ratio:.3} times")) };
        report.test(&format!("{SEND}: {AGAINST_LIMIT} times the {unit} of the other build at most"), result);
        Ok(report)
    }

    /// Instructions of a send, from a short and a long run: what is done once is in both.
    fn instructions(&self, round: usize, side: &str, build: &Build) -> Result<f64> {
        let Build::Ringmq(binary) = build else { bail!("instructions of the Java broker are not counted") };
        let window = (works::WINDOW * load::LINKS) as u64;
        let (short, long) = (40 * window, 240 * window);
        let count = |sends| instructions::count(binary, &self.folder.join("broker"), TOPIC, sends);
        let cost = (count(long)? as f64 - count(short)? as f64) / (long - short) as f64;
        println!("{side:>7} {round}: {SEND:<34} {cost:>9.0} instructions");
        let result = json!({"operations": long - short, "instructions_per_operation": cost.round()});
        self.keep(&json!({"row": SEND, "side": side, "round": round, "result": result}))?;
        Ok(cost)
    }

    /// A broker with an empty store, on its own processor.
    fn start(&self, build: &Build) -> Result<Side> {
        let folder = self.folder.join("broker");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let wrapper = ["taskset", "-c", BROKER_CPU].map(String::from).to_vec();
        Ok(match build {
            Build::Ringmq(binary) => {
                let options = Options { cores: Some(BROKER_CPU.into()), wrapper, ..Options::suite(1) };
                Side::Ours(Server::start(binary, &folder, &options)?)
            }
            Build::Java(java) => {
                let options = reference::Options { wrapper, ..reference::Options::default() };
                Side::Theirs(Box::new(Reference::start(java, &folder, &options)?))
            }
        })
    }

    /// One measurement on an empty store; gives nanoseconds of processor time for an operation.
    fn round(&self, row: &Row, round: usize, side: &str, build: &Build) -> Result<f64> {
        let server = self.start(build)?;
        let mut connection = Connection::open(server.address())?;
        connection.create_topic(TOPIC, QUEUES)?;
        connection.create_group(POP_GROUP)?;
        connection.heartbeat("costs", Some(PRODUCER_GROUP), None)?;
        let pid = server.pid()?;
        sleep(Duration::from_secs(1));
        let idle = cores_in_use(pid, Duration::from_secs(2))?;
        let filled = if matches!(row.kind, Kind::Pull | Kind::PopAndAck) { self.fill(&server)? } else { 0 };
        await_rest(pid, idle)?;
        let (before, since) = (cpu_seconds(pid)?, Instant::now());
        let run = self.work(row, &server, filled)?;
        if matches!(row.kind, Kind::Transaction | Kind::Timer | Kind::Level) {
            await_arrival(&mut connection, run.operations)?;
        }
        sleep(row.settle);
        let idle_time = (since.elapsed().as_secs_f64() - run.seconds).max(0.0);
        let used = cpu_seconds(pid)? - before - idle * idle_time;
        let cost = used * 1e9 / run.operations as f64;
        let rate = run.operations as f64 / run.seconds;
        println!("{side:>7} {round}: {:<34} {cost:>9.0} ns, {rate:>9.0}/s", row.name);
        let result = json!({
            "operations": run.operations, "seconds": run.seconds, "rate": rate.round(),
            "server_cpu_ns_per_operation": cost.round(), "idle_cores": idle,
        });
        self.keep(&json!({"row": row.name, "side": side, "round": round, "result": result}))?;
        match server {
            Side::Ours(server) => server.finish()?,
            Side::Theirs(mut reference) => reference.stop()?,
        }
        Ok(cost)
    }

    /// Fills all queues; gives the messages of the shortest.
    fn fill(&self, server: &Side) -> Result<u64> {
        let run = load::run(server.address(), &mut Sends::new(TOPIC, "").up_to(FILLED), FILL_LIMIT)?;
        ensure!(run.operations == FILLED, "only {} messages were sent", run.operations);
        let mut connection = Connection::open(server.address())?;
        await_arrival(&mut connection, FILLED)?;
        let ends = (0..QUEUES).map(|queue| connection.max_offset(TOPIC, queue)).collect::<Result<Vec<u64>>>()?;
        Ok(ends.into_iter().min().unwrap_or(0))
    }

    fn work(&self, row: &Row, server: &Side, filled: u64) -> Result<Run> {
        let length = Duration::from_secs(self.secs);
        let run = |work: &mut dyn Work| load::run(server.address(), work, length);
        match row.kind {
            Kind::Send => run(&mut Sends::new(TOPIC, "")),
            Kind::Timer => run(&mut Sends::new(TOPIC, "TIMER_DELAY_MS\u{1}1000\u{2}")),
            Kind::Level => run(&mut Sends::new(TOPIC, "DELAY\u{1}1\u{2}")),
            Kind::Transaction => run(&mut Transactions::new(TOPIC)),
            Kind::Pull => {
                let mut pulls = Pulls::new(TOPIC, filled);
                let done = run(&mut pulls)?;
                let each = pulls.messages_per_pull();
                ensure!(each > BATCH as f64 - 1.0, "a pull gave {each:.1} messages on average");
                Ok(done)
            }
            Kind::PopAndAck => {
                let mut pops = Pops::new(TOPIC, filled * u64::from(QUEUES));
                let done = run(&mut pops)?;
                let each = pops.messages_per_pop();
                ensure!(each > BATCH as f64 - 1.0, "a pop gave {each:.1} messages on average");
                if pops.empty() > 0 {
                    println!("        {} pops gave nothing; their cost is counted too", pops.empty());
                }
                Ok(done)
            }
        }
    }
}

/// User and system time of the threads of a process so far; those of the broker live as long as it does.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let mut nanoseconds = 0.0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(thread?.path().join("schedstat"))?;
        let time: f64 = text.split(' ').next().unwrap_or_default().parse().context("reading a thread's time")?;
        nanoseconds += time;
    }
    Ok(nanoseconds / 1e9)
}

/// Processors that a process uses, on average over a time.
fn cores_in_use(pid: u32, time: Duration) -> Result<f64> {
    let (before, since) = (cpu_seconds(pid)?, Instant::now());
    sleep(time);
    Ok((cpu_seconds(pid)? - before) / since.elapsed().as_secs_f64())
}

/// Waits until what was asked of the broker, and what follows from it in the background, is over.
fn await_rest(pid: u32, idle: f64) -> Result<()> {
    let end = Instant::now() + REST_LIMIT;
    while cores_in_use(pid, Duration::from_secs(1))? > idle + REST {
        ensure!(Instant::now() < end, "the broker does not come to rest");
    }
    Ok(())
}

/// Waits until the topic holds so many messages. Errors: it does not, or it holds more.
fn await_arrival(connection: &mut Connection, count: u64) -> Result<()> {
    let end = Instant::now() + ARRIVAL_LIMIT;
    loop {
        let ends = (0..QUEUES).map(|queue| connection.max_offset(TOPIC, queue)).collect::<Result<Vec<u64>>>()?;
        let there: u64 = ends.iter().sum();
        ensure!(there <= count, "{there} messages came of {count}");
        if there == count {
            return Ok(());
        }
        ensure!(Instant::now() < end, "only {there} of {count} messages came");
        sleep(Duration::from_millis(20));
    }
}
