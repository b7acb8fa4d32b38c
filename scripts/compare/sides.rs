//! The two brokers under measurement, pinned alike, with empty stores: how they start and how they are held.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::rows::Flush;
use crate::client::Connection;
use crate::reference::{self, Java, Reference};
use crate::server::{self, Server};

/// The topic of every load that has but one.
pub const TOPIC: &str = "LoadTopic";
/// Queues of a topic.
pub const QUEUES: u32 = 8;
/// Processor of the broker.
pub const BROKER_CPU: &str = "0";
/// Processor of the load.
pub const LOAD_CPU: &str = "1";

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

    /// The folder of its store.
    pub fn store(&self) -> PathBuf {
        match self {
            Side::Ours(s) => s.data(),
            Side::Theirs(r) => r.store(),
        }
    }

    /// From the start of its process until it answered (Java: until it accepted connections).
    pub fn started_in(&self) -> f64 {
        match self {
            Side::Ours(s) => s.started_in.as_secs_f64(),
            Side::Theirs(r) => r.started_in.as_secs_f64(),
        }
    }

    /// Stops it for as long as the result lives, so that it takes nothing from who is measured.
    pub fn pause(&self) -> Result<Paused> {
        let pid = Pid::from_raw(self.pid()?.cast_signed()).context("a process id of 0")?;
        kill_process(pid, Signal::STOP)?;
        Ok(Paused(pid))
    }
}

/// A process that goes on when this is dropped.
pub struct Paused(Pid);

impl Drop for Paused {
    fn drop(&mut self) {
        // Nothing to do about a failure here: the process has ended, which its next use says.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Starts a RingMQ with an empty store and the shipped configuration but for ports, folder, processor and flush mode.
pub fn start_ours(binary: &Path, folder: &Path, flush: Flush) -> Result<Side> {
    clear(folder)?;
    let options = server::Options {
        settings: vec![format!("flushDiskType={}", flush.setting())],
        wrapper: ["taskset", "-c", BROKER_CPU].map(String::from).to_vec(),
        ..server::Options::default()
    };
    let server = answering(Server::start(binary, folder, &options)?)?;
    Connection::open(server.broker)?.create_topic(TOPIC, QUEUES)?;
    Ok(Side::Ours(server))
}

/// A server that has answered a first request, which counts as part of its start: its port takes connections long before.
pub fn answering(mut server: Server) -> Result<Server> {
    let since = Instant::now();
    Connection::open(server.broker)?.runtime_info()?;
    server.started_in += since.elapsed();
    Ok(server)
}

/// Starts a Java broker with an empty store, 4 GiB of heap and its own defaults otherwise.
pub fn start_theirs(java: &Java, folder: &Path, flush: Flush, gc: &str) -> Result<Side> {
    clear(folder)?;
    let options = reference::Options {
        settings: vec![format!("flushDiskType={}", flush.setting())],
        jvm: vec!["-Xmx4g".into(), "-Xms4g".into(), format!("-XX:+Use{gc}GC")],
        wrapper: ["taskset", "-c", BROKER_CPU].map(String::from).to_vec(),
        plain: true,
        ..reference::Options::default()
    };
    let reference = Reference::start(java, folder, &options)?;
    Connection::open(reference.broker)?.create_topic(TOPIC, QUEUES)?;
    Ok(Side::Theirs(Box::new(reference)))
}

/// Removes a folder of an earlier round.
pub fn clear(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    Ok(())
}

/// Bytes that a folder's files take on the disk.
pub fn disk_use(folder: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    const BLOCK: u64 = 512;
    let mut bytes = 0;
    for item in fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))? {
        // A broker removes files while this goes on.
        let Ok(item) = item else { continue };
        let Ok(meta) = item.metadata() else { continue };
        bytes += if meta.is_dir() { disk_use(&item.path()).unwrap_or(0) } else { meta.blocks() * BLOCK };
    }
    Ok(bytes)
}

/// Median time of a small write and fdatasync in a file of this folder that has its space, nanoseconds.
pub fn disk_sync_ns(folder: &Path) -> Result<f64> {
    const SPACE: usize = 1 << 20;
    const RECORD: usize = 512;
    let path = folder.join("disk-sync");
    let file = fs::File::create(&path)?;
    file.write_all_at(&vec![0; SPACE], 0)?;
    file.sync_all()?;
    let mut times = Vec::new();
    for at in (0..SPACE - RECORD).step_by(RECORD) {
        let since = Instant::now();
        file.write_all_at(&[1; RECORD], at as u64)?;
        file.sync_data()?;
        times.push(since.elapsed().as_nanos() as f64);
    }
    fs::remove_file(path)?;
    Ok(super::median(&mut times))
}

/// Takes the files of a folder out of the page cache; no process may have them mapped.
pub fn drop_from_cache(folder: &Path) -> Result<()> {
    for item in fs::read_dir(folder)? {
        let path = item?.path();
        if path.is_dir() {
            drop_from_cache(&path)?;
            continue;
        }
        let file = fs::File::open(&path)?;
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

/// Refuses to fill up a disk.
pub fn ensure_space(folder: &Path, wanted: u64) -> Result<()> {
    let stat = rustix::fs::statvfs(folder)?;
    let free = stat.f_bavail * stat.f_frsize;
    ensure!(free >= wanted, "the disk has {} MiB free, {} MiB are needed", free >> 20, wanted >> 20);
    Ok(())
}
