//! RingMQ and the Java implementation with each other's files, name servers and clients. What one wrote is read by both, and
//! the two readings, every field of every message, must be the same text.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::project;
use crate::reference::{self, Java, Reference};
use crate::report::Report;
use crate::server::{self, BROKER, Server};

const SEGMENT_BYTES: &str = "1048576";
const QUEUE_FILE_BYTES: &str = "6000";
/// Messages that the first writer of a store writes, and that each later one appends.
const FIRST: u32 = 12_000;
const MORE: u32 = 2_000;

/// What to run.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Arguments {
    /// A binary to judge instead of the release build of this checkout.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Java on both sides: shows that the tests themselves are right.
    #[arg(long)]
    reference_only: bool,
}

/// Runs all of it.
pub fn run(arguments: &Arguments) -> Result<Report> {
    let java = Java::build()?;
    let mut report = Report::default();
    if arguments.reference_only {
        report.test("the Java store library reads a Java store", java_reads_java(&java));
        return Ok(report);
    }
    let binary = arguments.binary.clone().map_or_else(project::ringmq, Ok)?;
    report.test("the Java store library opens a store of RingMQ", java_opens_ours(&java, &binary));
    report.test("RingMQ opens and continues a Java store, and Java again", we_open_javas(&java, &binary));
    report.test("RingMQ's broker with the Java name server", our_broker(&java, &binary));
    report.test("the Java broker with RingMQ's name server", our_namesrv(&java, &binary));
    Ok(report)
}

fn file_sizes() -> Vec<String> {
    vec![format!("mappedFileSizeCommitLog={SEGMENT_BYTES}"), format!("mappedFileSizeConsumeQueue={QUEUE_FILE_BYTES}")]
}

fn our_options() -> server::Options {
    let mut options = server::Options::suite(1);
    options.settings.extend(file_sizes());
    options
}

fn their_options() -> reference::Options {
    reference::Options { settings: file_sizes(), ..reference::Options::default() }
}

/// One store on its way from hand to hand: what was sent into it, and how it was read last.
struct Trial<'a> {
    java: &'a Java,
    folder: PathBuf,
    sent: u32,
    readings: u32,
}

impl Trial<'_> {
    fn new<'a>(java: &'a Java, name: &str) -> Result<Trial<'a>> {
        Ok(Trial { java, folder: project::work_folder(name)?, sent: 0, readings: 0 })
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn produce(&mut self, namesrv: &str, count: u32) -> Result<()> {
        let (first, count_text) = (self.sent.to_string(), count.to_string());
        self.java.program(&self.folder, &["produce", namesrv, BROKER, &self.path("sent"), &first, &count_text])?;
        self.sent += count;
        Ok(())
    }

    fn new_reading(&mut self) -> String {
        self.readings += 1;
        self.path(&format!("reading-{}", self.readings))
    }

    /// Reads all of it through a broker.
    fn read_broker(&mut self, namesrv: &str) -> Result<String> {
        let reading = self.new_reading();
        self.java.program(&self.folder, &["verify-broker", namesrv, BROKER, &self.path("sent"), &reading])?;
        Ok(reading)
    }

    /// Reads all of it from a copy of the files, with the Java store library.
    fn read_files(&mut self, store: &Path, command: &str) -> Result<String> {
        let segments = fs::read_dir(store.join("commitlog"))?.count();
        ensure!(segments >= 3, "the store has only {segments} segments");
        let copy = self.folder.join("copy");
        if copy.exists() {
            fs::remove_dir_all(&copy)?;
        }
        project::copy_folder(store, &copy)?;
        let reading = self.new_reading();
        let words = [command, &self.path("copy"), SEGMENT_BYTES, QUEUE_FILE_BYTES, &self.path("sent"), &reading];
        self.java.program(&self.folder, &words)?;
        Ok(reading)
    }

    fn finish(self) -> Result<()> {
        fs::remove_dir_all(&self.folder)?;
        Ok(())
    }
}

fn same(one: &str, other: &str) -> Result<()> {
    let (a, b) = (fs::read_to_string(one)?, fs::read_to_string(other)?);
    let difference = a.lines().zip(b.lines()).find(|(a, b)| a != b);
    match difference {
        Some((a, b)) => bail!("two readings differ ({one} and {other}):\n{a}\n{b}"),
        None => ensure!(a == b, "one reading is longer than the other ({one} and {other})"),
    }
    Ok(())
}

fn java_reads_java(java: &Java) -> Result<()> {
    let mut trial = Trial::new(java, "compat-java")?;
    let mut broker = Reference::start(java, &trial.folder.join("java"), &their_options())?;
    let namesrv = broker.namesrv.to_string();
    trial.produce(&namesrv, FIRST)?;
    let through_broker = trial.read_broker(&namesrv)?;
    java.program(&trial.folder, &["round-trip", &namesrv, BROKER])?;
    broker.stop()?;
    same(&through_broker, &trial.read_files(&broker.store(), "verify-store")?)?;
    trial.finish()
}

fn java_opens_ours(java: &Java, binary: &Path) -> Result<()> {
    let mut trial = Trial::new(java, "compat-ours")?;
    let folder = trial.folder.join("ringmq");
    let mut server = Server::start(binary, &folder, &our_options())?;
    let namesrv = server.namesrv.to_string();
    trial.produce(&namesrv, FIRST)?;
    let through_broker = trial.read_broker(&namesrv)?;
    server.stop()?;
    same(&through_broker, &trial.read_files(&server.data(), "verify-store")?).context("after a clean stop")?;

    server = server.restart(binary, &our_options())?;
    trial.produce(&namesrv, MORE)?;
    let through_broker = trial.read_broker(&namesrv)?;
    server.kill()?;
    same(&through_broker, &trial.read_files(&server.data(), "verify-crashed-store")?).context("after kill -9")?;
    trial.finish()
}

fn we_open_javas(java: &Java, binary: &Path) -> Result<()> {
    let mut trial = Trial::new(java, "compat-javas")?;
    let folder = trial.folder.join("java");
    let mut broker = Reference::start(java, &folder, &their_options())?;
    // The offset ids of the messages name the broker's address: all brokers of this store have the same.
    let (store, namesrv, port) = (broker.store(), broker.namesrv.to_string(), broker.broker.port());
    trial.produce(&namesrv, FIRST)?;
    let of_java = trial.read_broker(&namesrv)?;
    broker.stop()?;

    let options = server::Options { shards: None, data: Some(store.clone()), port: Some(port), ..our_options() };
    let server = Server::start(binary, &trial.folder.join("ringmq"), &options)?;
    same(&of_java, &trial.read_broker(&namesrv)?).context("a Java store served by RingMQ")?;
    trial.produce(&namesrv, MORE)?;
    let of_ours = trial.read_broker(&namesrv)?;
    server.finish()?;
    same(&of_ours, &trial.read_files(&store, "verify-store")?).context("a Java store that RingMQ appended to")?;

    let mut broker = Reference::start(java, &folder, &reference::Options { port: Some(port), ..their_options() })?;
    same(&of_ours, &trial.read_broker(&namesrv)?).context("the Java broker on its store that RingMQ appended to")?;
    trial.produce(&namesrv, MORE)?;
    trial.read_broker(&namesrv)?;
    broker.stop()?;
    trial.finish()
}

fn our_broker(java: &Java, binary: &Path) -> Result<()> {
    let folder = project::work_folder("compat-our-broker")?;
    let options = reference::Options { namesrv_only: true, ..their_options() };
    let mut theirs = Reference::start(java, &folder.join("java"), &options)?;
    let options = server::Options { namesrv: Some(theirs.namesrv), ..our_options() };
    let server = Server::start(binary, &folder.join("ringmq"), &options)?;
    java.program(&folder, &["round-trip", &theirs.namesrv.to_string(), BROKER])?;
    server.finish()?;
    theirs.stop()?;
    fs::remove_dir_all(folder)?;
    Ok(())
}

fn our_namesrv(java: &Java, binary: &Path) -> Result<()> {
    let folder = project::work_folder("compat-our-namesrv")?;
    let server = Server::start(binary, &folder.join("ringmq"), &server::Options::namesrv_only())?;
    let options = reference::Options { namesrv: Some(server.namesrv), ..their_options() };
    let mut theirs = Reference::start(java, &folder.join("java"), &options)?;
    java.program(&folder, &["round-trip", &server.namesrv.to_string(), BROKER])?;
    theirs.stop()?;
    server.finish()?;
    fs::remove_dir_all(folder)?;
    Ok(())
}
