//! `kill -9` under load, again and again, and starts on other numbers of cores and shards: what was acknowledged must be
//! there, in place and in order, and so must answered offset commits.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use simulator::history::{Answer, History, MessageId, Role, Sender, Sent, Stored, Topic, body};

use crate::client::Connection;
use crate::project;
use crate::report::Report;
use crate::server::{Options, Server};

const TOPIC: Topic = "kill";
const GROUP: &str = "kill-group";
const QUEUES: u32 = 8;
const SENDERS: usize = 4;
/// Requests in flight on each connection; of the last connection each is a batch.
const WINDOW: usize = 16;
const BATCH: usize = 5;
/// Keeps a run small enough to be read back after each kill.
const PAUSE: Duration = Duration::from_millis(1);

/// What to run.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Kills for each flush mode and number of shards.
    #[arg(long, default_value_t = 20)]
    cycles: u32,
    /// Go on for so many minutes, with a new store for each round.
    #[arg(long, default_value_t = 0)]
    minutes: u64,
    /// Only tests whose name contains this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// A binary to judge instead of the release build of this checkout.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

impl Arguments {
    /// What the tests of a change run.
    pub fn usual() -> Arguments {
        Arguments { cycles: 20, minutes: 0, only: String::new(), binary: None }
    }
}

/// Runs all of it.
pub fn run(arguments: &Arguments) -> Result<Report> {
    let binary = arguments.binary.clone().map_or_else(project::ringmq, Ok)?;
    let mut report = Report::default();
    let end = Instant::now() + Duration::from_secs(60 * arguments.minutes);
    let test = |report: &mut Report, name: &str, run: &dyn Fn() -> Result<()>| {
        if name.contains(&arguments.only) {
            report.test(name, run());
        }
    };
    loop {
        for flush in ["ASYNC_FLUSH", "SYNC_FLUSH"] {
            for shards in [1, 2] {
                let name = format!("kill -9 under load, {flush}, {shards} shards");
                test(&mut report, &name, &|| kill_cycles(&binary, flush, shards, arguments.cycles));
            }
        }
        test(&mut report, "other numbers of cores and shards", &|| cores_and_shards(&binary));
        test(&mut report, "two shards share a topic of 64 queues", &|| two_shards_share(&binary));
        if Instant::now() >= end || !report.failed.is_empty() {
            return Ok(report);
        }
    }
}

/// Small files, so that a run goes over many of them.
fn options(flush: &str, shards: u16) -> Options {
    Options::suite(shards)
        .set(format!("flushDiskType={flush}"))
        .set("mappedFileSizeCommitLog=4194304")
        .set("mappedFileSizeConsumeQueue=60000")
}

fn kill_cycles(binary: &Path, flush: &str, shards: u16, cycles: u32) -> Result<()> {
    let folder = project::work_folder(&format!("kill-{flush}-{shards}"))?;
    let options = options(flush, shards);
    let mut server = Server::start(binary, &folder, &options)?;
    let mut connection = Connection::open(server.broker)?;
    connection.create_topic(TOPIC, QUEUES)?;
    connection.create_group(GROUP)?;
    let (mut history, mut stored) = (new_history(), Stored::new());
    for cycle in 0..cycles {
        let load = Duration::from_millis(200 + u64::from(cycle * 7919 % 700));
        let committed = load_and_kill(&server, load, &mut history)?;
        server = server.restart(binary, &options).with_context(|| format!("after kill {}", cycle + 1))?;
        connection = Connection::open(server.broker)?;
        connection.read_on(TOPIC, QUEUES, &mut stored)?;
        judge(&history, &stored).with_context(|| format!("after kill {}; see {}", cycle + 1, folder.display()))?;
        let kept = connection.committed_offset(GROUP, TOPIC, 0)?.unwrap_or(0);
        ensure!(kept >= committed, "offset {committed} was committed and answered, {kept} is left");
    }
    // What was read after each kill must also still be there now.
    history.glimpses = stored.into_values().flatten().collect();
    let mut again = Stored::new();
    connection.read_on(TOPIC, QUEUES, &mut again)?;
    judge(&history, &again)?;
    println!("  {} messages acknowledged, {} stored", history.acknowledged(), count(&again));
    server.finish()?;
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

/// A history of the one topic.
fn new_history() -> History {
    History { topics: vec![(TOPIC, Role::Log)], ..History::default() }
}

fn count(stored: &Stored) -> usize {
    stored.values().map(Vec::len).sum()
}

fn judge(history: &History, stored: &Stored) -> Result<()> {
    let violations = history.check(stored);
    if let Some(first) = violations.first() {
        bail!(
            "{} broken promises among {} acknowledged and {} stored messages; the first: {first}",
            violations.len(),
            history.acknowledged(),
            count(stored)
        );
    }
    Ok(())
}

/// Sends on several connections for a while and commits offsets meanwhile, kills the server, and adds what was sent to the
/// history. Gives the last committed offset that was answered.
fn load_and_kill(server: &Server, load: Duration, history: &mut History) -> Result<u64> {
    let (stop, committed, answered) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let first = history.senders.len();
    let address = server.broker;
    thread::scope(|scope| {
        let senders: Vec<_> = (0..SENDERS)
            .map(|i| {
                let connection = Connection::open(address)?;
                let (stop, answered) = (&stop, &answered);
                let per_request = if i + 1 == SENDERS { BATCH } else { 1 };
                Ok(scope.spawn(move || send_until_broken(connection, first + i, per_request, stop, answered)))
            })
            .collect::<Result<_>>()?;
        let connection = Connection::open(address)?;
        // Its error is the kill.
        scope.spawn(|| commit_until_broken(connection, &committed, &stop).err());
        // A slow machine may need longer until anything is answered.
        let end = Instant::now() + Duration::from_secs(20);
        while answered.load(Ordering::Relaxed) == 0 && Instant::now() < end {
            sleep(PAUSE);
        }
        sleep(load);
        let killed = server.kill();
        stop.store(true, Ordering::Relaxed);
        for sender in senders {
            let (sender, refused) = sender.join().expect("a sender does not panic");
            history.senders.push(sender);
            ensure!(refused.is_none(), "a send was refused: {}", refused.unwrap_or_default());
        }
        killed
    })?;
    ensure!(history.acknowledged() > 0, "nothing was acknowledged before the kill");
    ensure!(committed.load(Ordering::Relaxed) > 0, "no offset could be committed before the kill");
    Ok(committed.into_inner())
}

fn commit_until_broken(mut connection: Connection, committed: &AtomicU64, stop: &AtomicBool) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let offset = connection.max_offset(TOPIC, 0)?;
        connection.commit_offset(GROUP, TOPIC, 0, offset)?;
        committed.store(offset, Ordering::Relaxed);
        sleep(PAUSE);
    }
    Ok(())
}

/// Sends windows of requests until the connection breaks; also tells when the server refused one.
fn send_until_broken(
    mut c: Connection,
    sender: usize,
    per_request: usize,
    stop: &AtomicBool,
    answered: &AtomicU64,
) -> (Sender, Option<String>) {
    let mut s = Sender { topic: TOPIC, sent: Vec::new() };
    let refused = (|| -> Result<Option<String>> {
        while !stop.load(Ordering::Relaxed) {
            if let Some(refused) = send_window(&mut c, sender, per_request, QUEUES, &mut s)? {
                return Ok(Some(refused));
            }
            answered.fetch_add(1, Ordering::Relaxed);
            sleep(PAUSE);
        }
        Ok(None)
    })();
    // A broken connection is what a kill looks like from here.
    (s, refused.unwrap_or(None))
}

/// Sends one window of requests and takes their answers, in any order.
fn send_window(
    c: &mut Connection,
    sender: usize,
    per_request: usize,
    queues: u32,
    s: &mut Sender,
) -> Result<Option<String>> {
    let mut waiting = std::collections::HashMap::new();
    for _ in 0..WINDOW {
        let number = s.sent.len();
        let queue = (sender + number / per_request) as u32 % queues;
        let bodies: Vec<Vec<u8>> =
            (number..number + per_request).map(|number| body(MessageId { sender, number })).collect();
        s.sent.extend(bodies.iter().map(|_| Sent::once(queue)));
        waiting.insert(i64::from(c.queue_send(s.topic, queue, &bodies)), number);
    }
    c.flush()?;
    while !waiting.is_empty() {
        let answer = c.receive()?;
        let number = waiting.remove(&answer.opaque).context("an answer to no request")?;
        let answer = match answer.ok() {
            Ok(answer) => answer,
            Err(why) => return Ok(Some(why.to_string())),
        };
        let offset = answer.number("queueOffset")?;
        for (sent, offset) in s.sent[number..number + per_request].iter_mut().zip(offset..) {
            sent.answer = Answer::Stored(Some(offset));
        }
    }
    Ok(None)
}

/// One store on 1, 2 and again 1 cores, then with a second shard: all is served, and new queues reach both shards.
fn cores_and_shards(binary: &Path) -> Result<()> {
    let folder = project::work_folder("cores")?;
    let mut history = new_history();
    let mut server: Option<Server> = None;
    for (cores, shards) in [("0", 1), ("0,1", 1), ("0", 1), ("0,1", 2), ("0", 2), ("0,1", 2)] {
        let options = Options { cores: Some(cores.into()), ..options("ASYNC_FLUSH", shards) };
        let step = format!("with cores {cores} and {shards} shards");
        let next = match server.take() {
            None => Server::start(binary, &folder, &options)?,
            Some(before) => {
                before.stop()?;
                before.restart(binary, &options).with_context(|| step.clone())?
            }
        };
        let mut connection = Connection::open(next.broker)?;
        if history.senders.is_empty() {
            connection.create_topic(TOPIC, QUEUES)?;
        }
        let mut sender = Sender { topic: TOPIC, sent: Vec::new() };
        for _ in 0..100 {
            let refused = send_window(&mut connection, history.senders.len(), 1, QUEUES, &mut sender)?;
            ensure!(refused.is_none(), "a send was refused {step}: {refused:?}");
        }
        history.senders.push(sender);
        let mut stored = Stored::new();
        connection.read_on(TOPIC, QUEUES, &mut stored)?;
        judge(&history, &stored).context(step)?;
        if shards == 2 {
            let topic = format!("new-{}", history.senders.len());
            connection.create_topic(&topic, QUEUES)?;
            let [a, b] = share(&mut connection, &topic, QUEUES, 1)?;
            ensure!(a > 0 && b > 0, "a new topic is in one shard only: {a} and {b}");
        }
        server = Some(next);
    }
    server.expect("it was started").finish()?;
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

/// With two shards on two cores each log takes 40 to 60 % of a topic with 64 queues. All of it is sent through one
/// connection, which lives on one core, so the requests of the other core's shard crossed.
fn two_shards_share(binary: &Path) -> Result<()> {
    let folder = project::work_folder("share")?;
    let options = Options { cores: Some("0,1".into()), ..options("ASYNC_FLUSH", 2) };
    let server = Server::start(binary, &folder, &options)?;
    let mut connection = Connection::open(server.broker)?;
    connection.create_topic(TOPIC, 64)?;
    let [a, b] = share(&mut connection, TOPIC, 64, 50)?;
    ensure!(a * 10 >= (a + b) * 4 && b * 10 >= (a + b) * 4, "the shards hold {a} and {b} messages");
    println!("  the shards hold {a} and {b} messages");
    server.finish()?;
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

/// Sends to each queue of a topic; counts which of two shards stored what.
fn share(connection: &mut Connection, topic: &str, queues: u32, rounds: u32) -> Result<[u64; 2]> {
    let mut counts = [0; 2];
    for _ in 0..rounds {
        for queue in 0..queues {
            connection.queue_send(topic, queue, &[b"share".to_vec()]);
        }
        connection.flush()?;
        for _ in 0..queues {
            let shard = connection.receive()?.ok()?.shard()?;
            *counts.get_mut(shard as usize).with_context(|| format!("a message in shard {shard}"))? += 1;
        }
    }
    Ok(counts)
}
