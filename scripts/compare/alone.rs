//! What only RingMQ is asked: starts, memory, and how the processor time of a send changes with topics, names and cores.
//! Ratios are of two loads in alternating rounds, each on an empty store.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bench::report::units;
use serde_json::json;

use super::load::Which;
use super::machine::{anonymous_mib, cpu_seconds};
use super::rows::{self, Figure, Flush, Kind, Pace, Work};
use super::sides::{self, BROKER_CPU, QUEUES, Side, TOPIC};
use super::verdict::{Spread, Verdict};
use super::{Bench, settle};
use crate::client::Connection;
use crate::server::{Options, Server};

/// A row that has no other side, or none with a floor.
pub struct Alone {
    /// What `--only` also selects by.
    pub group: &'static str,
    pub name: &'static str,
    pub measure: fn(&mut Bench) -> Result<Vec<Verdict>>,
}

/// All of them.
pub const ROWS: [Alone; 7] = [
    Alone { group: "varied", name: VARIED, measure: varied },
    Alone { group: "topics", name: TOPICS, measure: many_topics },
    Alone { group: "backlog", name: BACKLOG, measure: backlog },
    Alone { group: "cores", name: CORES, measure: crossing },
    Alone { group: "memory", name: MEMORY, measure: loaded_memory },
    Alone { group: "start", name: START_FULL, measure: start_full },
    Alone { group: "start", name: IDLE, measure: idle_and_start },
];

const VARIED: &str = "names, lengths and field order varied, against the first row";
const TOPICS: &str = "10,000 topics x 8 queues, against 1 topic";
const BACKLOG: &str = "5 GiB backlog read from the disk, producers at half load";
const CORES: &str = "queues on the other core, against the same core";
const MEMORY: &str = "memory under load";
const START_FULL: &str = "start on 5 million messages after a clean stop";
const IDLE: &str = "idle, and start on an empty folder";

/// Writes a figure.
type Text = fn(f64) -> String;

fn times(value: f64) -> String {
    format!("{} times", units::number(value))
}

fn mib(value: f64) -> String {
    format!("{} MiB", units::number(value))
}

fn seconds(value: f64) -> String {
    units::duration(value * 1e9)
}

fn spread(figures: Vec<f64>) -> Result<Spread> {
    Spread::of(figures).context("nothing was measured")
}

impl Bench<'_> {
    fn ours(&self) -> Result<Server> {
        match sides::start_ours(&self.binary, &self.folder.join("ringmq"), Flush::Async)? {
            Side::Ours(server) => Ok(server),
            Side::Theirs(_) => bail!("the Java broker instead of RingMQ"),
        }
    }

    /// Processor time of a request on an empty store.
    fn cost(&mut self, row: &str, what: &str, round: usize, work: &Work) -> Result<f64> {
        sides::ensure_space(&self.folder, work.most_bytes() + super::SPACE)?;
        let side = Side::Ours(self.ours()?);
        self.cost_on(&side, row, what, round, work)
    }

    fn cost_on(&mut self, side: &Side, row: &str, what: &str, round: usize, work: &Work) -> Result<f64> {
        ensure!(self.load.can(work), "the neutral load cannot do it");
        let measured = self.load.run(side, work, self.arguments.secs)?;
        let cost = measured.figure(Figure::Cpu).context("the load told no processor time")?;
        println!("{what:>7} {round}: {}", super::summary(&measured));
        self.loaded_mib.push(anonymous_mib(side.pid()?)?);
        self.keep(&json!({"row": row, "side": what, "round": round, "result": measured.kept}))?;
        Ok(cost)
    }

    /// The processor time of one load over that of another, round by round.
    fn against(&mut self, row: &'static str, base: &Work, work: &Work, limit: f64) -> Result<Verdict> {
        let (mut ratios, mut costs) = (Vec::new(), Vec::new());
        for round in 0..self.arguments.rounds {
            let before = self.cost(row, "base", round, base)?;
            let cost = self.cost(row, "this", round, work)?;
            ratios.push(cost / before);
            costs.push(cost);
        }
        println!("{}", (super::verdict::text_of(Figure::Cpu))(spread(costs)?.median));
        Ok(Verdict::alone(row, "CPU per request over the base's", spread(ratios)?, limit, times))
    }
}

fn varied(bench: &mut Bench) -> Result<Vec<Verdict>> {
    let work = Work { varied: true, ..rows::first() };
    Ok(vec![bench.against(VARIED, &rows::first(), &work, 1.25)?])
}

fn many_topics(bench: &mut Bench) -> Result<Vec<Verdict>> {
    let work = Work { topics: 10_000, topic: "Many", ..rows::first() };
    let cost = bench.against(TOPICS, &rows::first(), &work, 1.5)?;
    let mut starts = Vec::new();
    let server = bench.ours()?;
    let mut side = Side::Ours(server);
    bench.load.run(&side, &work, bench.arguments.secs)?;
    for _ in 0..bench.arguments.rounds {
        side = Side::Ours(restart(side, &bench.binary)?);
        starts.push(side.started_in());
    }
    bench.keep(&json!({"row": TOPICS, "side": "ringmq", "start_s": starts}))?;
    Ok(vec![cost, Verdict::alone(TOPICS, "start", spread(starts)?, 3.0, seconds)])
}

/// Stops a RingMQ in an orderly way and starts it again with the same options.
fn restart(side: Side, binary: &Path) -> Result<Server> {
    let Side::Ours(server) = side else { bail!("only RingMQ is started again") };
    server.stop()?;
    let wrapper = ["taskset", "-c", BROKER_CPU].map(String::from).to_vec();
    sides::answering(server.restart(binary, &Options { wrapper, ..Options::default() })?)
}

/// Fills a broker until its store has so many bytes.
fn fill(bench: &mut Bench, side: &Side, work: &Work, bytes: u64) -> Result<()> {
    sides::ensure_space(&bench.folder, bytes + work.most_bytes() + super::SPACE)?;
    const ROUNDS: usize = 60;
    for _ in 0..ROUNDS {
        if sides::disk_use(&side.store())? >= bytes {
            return settle(&bench.folder);
        }
        bench.load.run(side, work, 2)?;
    }
    bail!("the store did not reach {} MiB", bytes >> 20)
}

/// Producers on a store whose backlog is not in memory, by themselves and beside a reader of it.
fn backlog(bench: &mut Bench) -> Result<Vec<Verdict>> {
    const BYTES: u64 = 5 << 30;
    ensure!(bench.arguments.load == Which::Own, "only ringmq bench reads a backlog beside its producers");
    let fast = bench.ours()?;
    let most = bench.load.run(&Side::Ours(fast), &rows::first(), bench.arguments.secs)?;
    let rate = most.figure(Figure::Rate).context("no rate")? / 2.0;
    let mut side = Side::Ours(bench.ours()?);
    Connection::open(side.address())?.create_topic("Backlog", QUEUES)?;
    fill(bench, &side, &Work { size: 16_384, topic: "Backlog", ..rows::first() }, BYTES)?;
    let producers = Work { pace: Pace::Rate(rate), ..rows::first() };
    let reader = Work {
        kind: Kind::Backlog,
        size: 16_384,
        connections: 1,
        window: 1,
        batch: 32,
        topic: "Backlog",
        ..rows::first()
    };
    let mut ratios = Vec::new();
    for round in 0..bench.arguments.rounds {
        let Side::Ours(server) = side else { bail!("only RingMQ is measured") };
        server.stop()?;
        sides::drop_from_cache(&server.data())?;
        let wrapper = ["taskset", "-c", BROKER_CPU].map(String::from).to_vec();
        side = Side::Ours(server.restart(&bench.binary, &Options { wrapper, ..Options::default() })?);
        let secs = bench.arguments.secs;
        let by_itself = bench.load.run(&side, &producers, secs)?;
        let beside = bench.load.start(&side, &reader, secs + 4)?;
        sleep(Duration::from_millis(500));
        let with_reader = bench.load.run(&side, &producers, secs)?;
        let read = beside.finish()?;
        let p99 = |m: &super::Measured| m.figure(Figure::P99).context("no p99");
        ratios.push(p99(&with_reader)? / p99(&by_itself)?);
        println!(
            "by itself: {}\nwith reader: {}\nreader: {}",
            super::summary(&by_itself),
            super::summary(&with_reader),
            super::summary(&read)
        );
        for (what, m) in [("by itself", by_itself), ("with reader", with_reader), ("reader", read)] {
            bench.keep(&json!({"row": BACKLOG, "side": what, "round": round, "result": m.kept}))?;
        }
    }
    Ok(vec![Verdict::alone(BACKLOG, "p99 over that without a reader", spread(ratios)?, 1.2, times)])
}

/// One connection that sends to a queue of its own core or of the other. Which of the two it was is told from the
/// processor time of the broker's threads: a crossing makes both work.
fn crossing(bench: &mut Bench) -> Result<Vec<Verdict>> {
    const LIMIT_NS: f64 = 300.0;
    const RATE: f64 = 50_000.0;
    const NAMES: [&str; 16] = [
        "Core0", "Core1", "Core2", "Core3", "Core4", "Core5", "Core6", "Core7", "Core8", "Core9", "CoreA", "CoreB",
        "CoreC", "CoreD", "CoreE", "CoreF",
    ];
    ensure!(bench.arguments.load == Which::Own, "the neutral load has no fixed rate");
    let (mut same, mut other) = (Vec::new(), Vec::new());
    for round in 0..bench.arguments.rounds {
        let folder = bench.folder.join("ringmq");
        sides::clear(&folder)?;
        let options = Options { shards: Some(2), cores: Some("0,1".into()), ..Options::default() };
        let server = Server::start(&bench.binary, &folder, &options)?;
        let pid = server.pid()?;
        let mut connection = Connection::open(server.broker)?;
        let mut topics: [Option<&str>; 2] = [None; 2];
        for name in NAMES {
            connection.create_topic(name, 1)?;
            connection.queue_message(name, 0, "", 0, b"x");
            connection.flush()?;
            let shard = connection.receive()?.ok()?.shard()?;
            topics[usize::try_from(shard)?.min(1)] = Some(name);
        }
        drop(connection);
        let side = Side::Ours(server);
        for topic in topics {
            let topic = topic.context("all topics have their queue on the same core")?;
            let pace = Pace::Rate(RATE);
            let work = Work { topic, queues: 1, connections: 1, pace, cpus: "0,1", ..rows::first() };
            let before = thread_times(pid)?;
            let cost = bench.cost_on(&side, CORES, topic, round, &work)?;
            if both_worked(&before, &thread_times(pid)?) { other.push(cost) } else { same.push(cost) }
        }
    }
    ensure!(same.len() == other.len(), "{} rounds on the same core, {} on the other", same.len(), other.len());
    let more = same.iter().zip(&other).map(|(same, other)| other - same).collect();
    Ok(vec![Verdict::alone(CORES, "CPU ns more per request", spread(more)?, LIMIT_NS, |ns| {
        format!("{} ns", units::number(ns))
    })])
}

/// Processor time of each thread so far.
fn thread_times(pid: u32) -> Result<HashMap<String, f64>> {
    let mut times = HashMap::new();
    for item in fs::read_dir(format!("/proc/{pid}/task"))? {
        let item = item?;
        // A thread may have ended meanwhile.
        let Ok(stat) = fs::read_to_string(item.path().join("schedstat")) else { continue };
        let ns = stat.split_whitespace().next().and_then(|ns| ns.parse().ok()).context("reading a thread's time")?;
        times.insert(item.file_name().to_string_lossy().into_owned(), ns);
    }
    Ok(times)
}

/// Whether the second busiest thread did a good part of what the busiest did.
fn both_worked(before: &HashMap<String, f64>, after: &HashMap<String, f64>) -> bool {
    const GOOD_PART: f64 = 0.25;
    let mut used: Vec<f64> = after.iter().map(|(id, ns)| ns - before.get(id).unwrap_or(&0.0)).collect();
    used.sort_by(|a, b| b.total_cmp(a));
    used.len() > 1 && used[1] > used[0] * GOOD_PART
}

/// The largest anonymous memory that a RingMQ had in any round of this run.
fn loaded_memory(bench: &mut Bench) -> Result<Vec<Verdict>> {
    const LIMIT_MIB: f64 = 256.0;
    if bench.loaded_mib.is_empty() {
        bench.cost(MEMORY, "ringmq", 0, &rows::first())?;
        bench.cost(MEMORY, "ringmq", 1, &Work { connections: 512, window: 4, ..rows::first() })?;
    }
    let most = bench.loaded_mib.iter().copied().fold(0.0, f64::max);
    Ok(vec![Verdict::alone(MEMORY, "largest anonymous resident memory", spread(vec![most])?, LIMIT_MIB, mib)])
}

fn start_full(bench: &mut Bench) -> Result<Vec<Verdict>> {
    const MESSAGES: u64 = 5_000_000;
    const LIMIT_S: f64 = 0.5;
    let mut side = Side::Ours(bench.ours()?);
    let mut connection = Connection::open(side.address())?;
    let mut stored = 0;
    for _ in 0..60 {
        stored = (0..QUEUES).map(|q| connection.max_offset(TOPIC, q)).sum::<Result<u64>>()?;
        if stored >= MESSAGES {
            break;
        }
        bench.load.run(&side, &rows::first(), 5)?;
    }
    ensure!(stored >= MESSAGES, "only {stored} messages");
    drop(connection);
    let mut starts = Vec::new();
    for _ in 0..bench.arguments.rounds {
        side = Side::Ours(restart(side, &bench.binary)?);
        starts.push(side.started_in());
    }
    bench.keep(&json!({"row": START_FULL, "side": "ringmq", "messages": stored, "start_s": starts}))?;
    Ok(vec![Verdict::alone(START_FULL, "start", spread(starts)?, LIMIT_S, seconds)])
}

/// Start of an empty broker, and its memory and processor time while nothing happens.
fn idle_and_start(bench: &mut Bench) -> Result<Vec<Verdict>> {
    const MEMORY_LIMIT_MIB: f64 = 100.0;
    const START_LIMIT_S: f64 = 0.2;
    const CPU_LIMIT_PERCENT: f64 = 1.0;
    let mut figures: [[Vec<f64>; 3]; 2] = Default::default();
    for (name, figures) in ["java", "ringmq"].into_iter().zip(&mut figures) {
        // A start of Java takes many seconds and varies little.
        let rounds = if name == "java" { 1 } else { bench.arguments.rounds };
        for round in 0..rounds {
            let side = match name {
                "java" => bench.start_theirs(Flush::Async, "idle")?,
                _ => Side::Ours(bench.ours()?),
            };
            Connection::open(side.address())?.runtime_info()?;
            sleep(Duration::from_secs(2));
            let (before, since) = (cpu_seconds(side.pid()?)?, Instant::now());
            sleep(Duration::from_secs(5));
            let used = (cpu_seconds(side.pid()?)? - before) / since.elapsed().as_secs_f64();
            let round_figures = [side.started_in(), anonymous_mib(side.pid()?)?, used * 100.0];
            let [start, memory, cpu] = round_figures;
            let result = json!({"start_s": start, "anonymous_mib": memory, "cpu_percent": cpu});
            bench.keep(&json!({"row": IDLE, "side": name, "round": round, "result": result}))?;
            println!("{name:>7} {round}: {result}");
            figures.iter_mut().zip(round_figures).for_each(|(all, one)| all.push(one));
        }
    }
    let [java, ours] = figures;
    let percent = |value: f64| format!("{} %", units::number(value));
    let named: [(&'static str, f64, Text); 3] = [
        ("start on an empty folder", START_LIMIT_S, seconds),
        ("anonymous memory", MEMORY_LIMIT_MIB, mib),
        ("percent of a core", CPU_LIMIT_PERCENT, percent),
    ];
    let verdict = |((java, ours), (figure, limit, text))| -> Result<Verdict> {
        Ok(Verdict { java: Spread::of(java), ..Verdict::alone(IDLE, figure, spread(ours)?, limit, text) })
    };
    java.into_iter().zip(ours).zip(named).map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossing_shows_in_two_threads() {
        let times =
            |a: f64, b: f64| HashMap::from([("1".to_string(), a), ("2".to_string(), b), ("3".to_string(), 0.0)]);
        assert!(both_worked(&times(5.0, 5.0), &times(105.0, 65.0)));
        assert!(!both_worked(&times(5.0, 5.0), &times(105.0, 25.0)));
        assert!(!both_worked(&HashMap::new(), &HashMap::new()));
    }
}
