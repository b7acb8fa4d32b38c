//! `cargo xtask soak`: every kind of message at once for minutes - plain, ordered, delayed, transactions, retries to the
//! dead letters, POP with lost acknowledgements - while the broker is killed and started again. At the end everything due
//! comes, all queues are read, and `simulator::history` judges what clients sent and saw. With `--reference` the same runs
//! against the Java broker, without kills: that shows that the soak itself asks for nothing that cannot be had.

mod pops;
mod readers;
mod retries;
mod senders;
mod transactions;
mod world;

use std::path::{Path, PathBuf};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use simulator::history::{Ack, Check, Column, History, Queue, Role, Step, Stored, Tolerance, Topic, Violation};

use crate::client::Connection;
use crate::project;
use crate::reference::{self, Java, Reference};
use crate::report::Report;
use crate::server::{BROKER, Options, Server};
use pops::Popper;
use readers::{Ordered, Steps};
use retries::Retries;
use senders::{Kind, Load};
use transactions::Producer;
use world::{Outcome, Part, Phase, World};

const PLAIN: Topic = "soak-plain";
const ORDERED: Topic = "soak-ordered";
const LEVELS: Topic = "soak-levels";
const TIMERS: Topic = "soak-timers";
const TRANSACTIONS: Topic = "soak-transactions";
const RETRIED: Topic = "soak-retried";
const RETRIES: Topic = "%RETRY%soak-retry-group";
const DEAD_LETTERS: Topic = "%DLQ%soak-retry-group";
const POPPED: Topic = "soak-popped";
const POP_RETRIES: Topic = "%RETRY%soak-pop-group_soak-popped";
const ORDER_GROUP: &str = "soak-order-group";
const RETRY_GROUP: &str = "soak-retry-group";
const POP_GROUP: &str = "soak-pop-group";
const PRODUCER_GROUP: &str = "soak-producer-group";

/// Every topic with its role, its queues, and the name of what it shows.
const TOPICS: [(Topic, Role, u32, &str); 9] = [
    (PLAIN, Role::Log, 4, "plain"),
    (ORDERED, Role::Log, 4, "ordered"),
    (LEVELS, Role::Delayed, 4, "delay levels"),
    (TIMERS, Role::Delayed, 4, "timers"),
    (TRANSACTIONS, Role::Transactions, 4, "transactions"),
    (RETRIED, Role::Log, 2, "to be retried"),
    (RETRIES, Role::Retries, 1, "retries"),
    (DEAD_LETTERS, Role::DeadLetters, 1, "dead letters"),
    (POPPED, Role::Log, 4, "popped"),
];

/// The longest delay that is asked for, with room for the broker's own rounding, in ms.
const LONGEST_DELAY: u64 = 33_000;
/// Longer than any pause between two things that follow from each other.
const QUIET: u64 = 15_000;
const DRAIN_LIMIT: Duration = Duration::from_secs(180);
/// Broken promises that are shown of each kind.
const SHOWN: usize = 5;

/// What to run.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Minutes of load.
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// Shards of the store.
    #[arg(long, default_value_t = 1)]
    shards: u16,
    /// `kill -9` and restart of the broker each so many seconds of load; 0 for never.
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    kill_every: u64,
    /// Every choice of the clients follows from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A binary to judge instead of the release build of this checkout.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// `flushDiskType`.
    #[arg(long, default_value = "ASYNC_FLUSH")]
    flush: String,
    /// The Java broker instead, never killed.
    #[arg(long)]
    reference: bool,
}

/// The broker under test.
enum Broker {
    Ours { server: Option<Server>, binary: PathBuf, options: Box<Options> },
    Theirs(Box<Reference>),
}

/// Runs the load and judges it.
pub fn run(a: &Arguments) -> Result<Report> {
    let folder = project::work_folder("soak")?;
    let mut broker = Broker::start(a, &folder)?;
    let mut connection = Connection::open(broker.address()?)?;
    for (topic, _, queues, _) in TOPICS.iter().filter(|t| !t.0.starts_with('%')) {
        connection.create_topic(topic, *queues)?;
    }
    for group in [ORDER_GROUP, RETRY_GROUP, POP_GROUP] {
        connection.create_group(group)?;
    }
    let world = World::new(broker.address()?, BROKER, a.seed);
    let steps = Steps::default();
    let (parts, errors) =
        thread::scope(|scope| clients(scope, a, &world, &steps, || load_and_drain(a, &world, &mut broker)))?;
    let mut connection = Connection::open(broker.address()?)?;
    let mut stored = Stored::new();
    for (topic, _, queues, _) in &TOPICS {
        connection.read_on(topic, *queues, &mut stored).with_context(|| format!("reading {topic} at the end"))?;
    }
    let mut history = parts.into_history(PLAIN);
    history.topics = TOPICS.iter().map(|(topic, role, ..)| (*topic, *role)).collect();
    history.popped = vec![POPPED];
    history.kills = world.start();
    history.steps = steps.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    if a.reference {
        // Java rounds due times of timers down to whole seconds.
        history.tolerance = Tolerance { due_ms: 1_001, ..Tolerance::default() };
    }
    let mut report = Report::default();
    errors.iter().for_each(|(name, why)| report.fail(format!("client {name}"), why));
    judge(&history, &stored, &mut report);
    refusals(&world, &mut report);
    report.test("all that can go wrong was tried", all_was_tried(a, &history));
    broker.stop()?;
    if report.failed.is_empty() {
        std::fs::remove_dir_all(&folder)?;
    } else {
        println!("the server's log and store stay in {}", folder.display());
    }
    Ok(report)
}

impl Broker {
    fn start(a: &Arguments, folder: &Path) -> Result<Broker> {
        if a.reference {
            let options = reference::Options {
                settings: vec![format!("flushDiskType={}", a.flush), "mappedFileSizeCommitLog=134217728".into()],
                ..reference::Options::default()
            };
            return Ok(Broker::Theirs(Box::new(Reference::start(&Java::build()?, folder, &options)?)));
        }
        let binary = a.binary.clone().map_or_else(project::ringmq, Ok)?;
        // Small files, so that a run goes over many of them.
        let options = Options::suite(a.shards)
            .set(format!("flushDiskType={}", a.flush))
            .set("mappedFileSizeCommitLog=16777216")
            .set("mappedFileSizeConsumeQueue=60000");
        let server = Some(Server::start(&binary, folder, &options)?);
        Ok(Broker::Ours { server, binary, options: Box::new(options) })
    }

    fn address(&self) -> Result<std::net::SocketAddr> {
        match self {
            Broker::Ours { server, .. } => Ok(server.as_ref().context("the broker did not start again")?.broker),
            Broker::Theirs(reference) => Ok(reference.broker),
        }
    }

    fn kill_and_start(&mut self, world: &World) -> Result<()> {
        let Broker::Ours { server, binary, options } = self else { bail!("the reference is not killed") };
        let running = server.take().context("the broker did not start again")?;
        running.kill()?;
        world.killed();
        *server = Some(running.restart(binary, options)?);
        Ok(())
    }

    fn stop(self) -> Result<()> {
        match self {
            Broker::Ours { server, .. } => server.context("the broker did not start again")?.finish(),
            Broker::Theirs(mut reference) => reference.stop(),
        }
    }
}

/// Load with kills, then the time that everything due needs to come.
fn load_and_drain(a: &Arguments, world: &World, broker: &mut Broker) -> Result<()> {
    let end = Instant::now() + Duration::from_secs_f64(60.0 * a.minutes);
    let every = Duration::from_secs(if a.reference { 0 } else { a.kill_every });
    let mut kill_at = Instant::now() + every;
    while Instant::now() < end {
        sleep(Duration::from_millis(50));
        if !every.is_zero() && Instant::now() >= kill_at {
            broker.kill_and_start(world).with_context(|| format!("after kill {}", world.start() + 1))?;
            kill_at += every;
        }
    }
    println!("the load is over after {} kills; what is due comes", world.start());
    world.set_phase(Phase::Drain);
    let (begin, limit) = (Instant::now(), Instant::now() + DRAIN_LIMIT);
    let waited = || begin.elapsed().as_millis() as u64;
    while (waited() < LONGEST_DELAY || world.quiet_for() < QUIET) && Instant::now() < limit {
        sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// A client by its name.
type Client<'scope> = (&'static str, thread::ScopedJoinHandle<'scope, Outcome>);

/// Runs all clients beside `run`; gives what they did, and those that ended with an error.
fn clients<'scope, 'env: 'scope>(
    scope: &'scope thread::Scope<'scope, 'env>,
    a: &Arguments,
    world: &'env World,
    steps: &'env Steps,
    run: impl FnOnce() -> Result<()>,
) -> Result<(Part, Vec<(&'static str, anyhow::Error)>)> {
    let mut all: Vec<Client> = Vec::new();
    let pause = |ms| Duration::from_millis(ms);
    // Java works requests of one connection side by side: only one at a time keeps their order.
    let pipelined = |window: usize| if a.reference { 1 } else { window };
    let loads = [
        Load { sender: 0, topic: PLAIN, queues: 4, kind: Kind::Plain, window: pipelined(16), pause: pause(50) },
        Load { sender: 1, topic: PLAIN, queues: 4, kind: Kind::Batch(5), window: pipelined(8), pause: pause(50) },
        Load { sender: 2, topic: LEVELS, queues: 4, kind: Kind::Level, window: 4, pause: pause(40) },
        Load { sender: 3, topic: TIMERS, queues: 4, kind: Kind::Timer, window: 4, pause: pause(40) },
        Load { sender: 4, topic: RETRIED, queues: 2, kind: Kind::Plain, window: pipelined(2), pause: pause(50) },
        Load { sender: 5, topic: POPPED, queues: 4, kind: Kind::Plain, window: pipelined(8), pause: pause(50) },
    ];
    for load in loads {
        all.push((load.topic, scope.spawn(move || senders::send(world, &load))));
    }
    all.push((ORDERED, scope.spawn(|| senders::send_in_order(world, 6, ORDERED, 4))));
    all.push((TRANSACTIONS, scope.spawn(|| Producer::new(world, 7, PRODUCER_GROUP, TRANSACTIONS, 4).run())));
    let watched = [(PLAIN, 4), (LEVELS, 4), (TIMERS, 4), (TRANSACTIONS, 4)];
    let due = [LEVELS, TIMERS, TRANSACTIONS];
    all.push(("watcher", scope.spawn(move || readers::watch(world, &watched, &due))));
    for client in 0..2 {
        let queues: [Queue; 4] = [0, 1, 2, 3].map(|queue| (ORDERED, queue));
        let work = move || Ordered { client, group: ORDER_GROUP, queues: &queues, steps }.consume(world);
        all.push(("ordered consumer", scope.spawn(work)));
    }
    let retries = Retries { group: RETRY_GROUP, source: (RETRIED, 2), retries: RETRIES, dead_letters: DEAD_LETTERS };
    all.push(("failing consumer", scope.spawn(move || retries.consume(world))));
    for client in 0..2 {
        // Java 5.4.0 now and then does not give such a message again.
        let leaves_changed = !a.reference;
        let popper = Popper { client, group: POP_GROUP, topic: POPPED, retries: POP_RETRIES, leaves_changed };
        all.push(("popping consumer", scope.spawn(move || popper.consume(world))));
    }
    let ended = run();
    world.set_phase(Phase::Over);
    let (mut parts, mut errors) = (Part::default(), Vec::new());
    for (name, client) in all {
        match client.join().map_err(|_| anyhow!("it panicked")).and_then(|outcome| outcome) {
            Ok(part) => parts.add(part),
            Err(why) => errors.push((name, why)),
        }
    }
    ended.map(|()| (parts, errors))
}

/// Prints the table and what went wrong first; one test for each kind.
fn judge(history: &History, stored: &Stored, report: &mut Report) {
    let violations = history.check(stored);
    println!(
        "\n{:<14} {:>12} {:>9} {:>6} {:>9} {:>6} {:>8} {:>13}",
        "kind", "acknowledged", "seen", "lost", "invented", "early", "doubled", "out of order"
    );
    for (topic, _, _, kind) in &TOPICS {
        let of_topic: Vec<&Violation> = violations.iter().filter(|v| v.topic == *topic).collect();
        let in_column = |column| of_topic.iter().filter(|v| v.rule.column() == column).count();
        let count = history.count(topic, stored);
        println!(
            "{kind:<14} {:>12} {:>9} {:>6} {:>9} {:>6} {:>8} {:>13}",
            count.acknowledged,
            count.seen,
            in_column(Column::Lost),
            in_column(Column::Invented),
            in_column(Column::Early),
            in_column(Column::Doubled),
            in_column(Column::OutOfOrder)
        );
    }
    for (topic, _, _, kind) in TOPICS.iter().filter(|t| t.1 == Role::Delayed) {
        let late = history.lateness(topic, stored);
        let at = |part: usize| late.get(late.len() * part / 1_000).or(late.last()).copied().unwrap_or(0);
        println!("{kind}: late by {} ms at p50, {} at p99, {} at most", at(500), at(990), at(1_000));
    }
    println!("{} popped, {} sent back\n", history.deliveries.len(), history.send_backs.len());
    for (topic, _, _, kind) in &TOPICS {
        let mut of_topic: Vec<&Violation> = violations.iter().filter(|v| v.topic == *topic).collect();
        of_topic.sort_by_key(|v| (v.rule, v.place, v.id));
        for same in of_topic.chunk_by(|a, b| a.rule == b.rule) {
            same.iter().take(SHOWN).for_each(|v| println!("  {v}"));
            if same.len() > SHOWN {
                println!("  and {} more of this kind", same.len() - SHOWN);
            }
        }
        let count = history.count(topic, stored);
        let result = match (of_topic.len(), count.acknowledged.min(count.seen)) {
            (0, 0) => Err(anyhow!("there was nothing to judge: {count:?}")),
            (0, _) => Ok(()),
            (broken, _) => Err(anyhow!("{broken} broken promises")),
        };
        report.test(kind, result);
    }
}

/// No correct request was refused.
fn refusals(world: &World, report: &mut Report) {
    let (count, first) = world.refusals();
    first.iter().for_each(|refusal| println!("  refused: {refusal}"));
    let result = if count == 0 { Ok(()) } else { Err(anyhow!("{count} requests were refused")) };
    report.test("no request refused", result);
}

/// A run in which nothing was left unacknowledged, or nobody killed, proves less than it says.
fn all_was_tried(a: &Arguments, history: &History) -> Result<()> {
    let acks = |ack: fn(&Ack) -> bool| history.deliveries.iter().filter(|d| ack(&d.ack)).count();
    ensure!(acks(|a| matches!(a, Ack::None)) > 0, "every popped message was acknowledged");
    ensure!(acks(|a| matches!(a, Ack::Done(_))) > 0, "no popped message was acknowledged");
    ensure!(history.deliveries.iter().any(|d| d.times > 0), "no popped message came again");
    let consumed = |steps: &Vec<Step>| steps.iter().any(|s| matches!(s, Step::Consumed(_)));
    ensure!(history.steps.values().filter(|s| consumed(s)).count() == 4, "not all ordered queues were consumed");
    let clients = |client| history.holds.iter().any(|hold| hold.client == client);
    ensure!(clients(0) && clients(1), "only one client got locks");
    let checked = history.senders.iter().flat_map(|s| &s.sent).filter(|s| s.check == Check::Came).count();
    ensure!(checked > 0, "no transaction was asked about");
    let kills = if a.reference || a.kill_every == 0 { 0 } else { (60.0 * a.minutes) as u64 / a.kill_every };
    ensure!(u64::from(history.kills) + 1 >= kills, "only {} kills", history.kills);
    Ok(())
}
