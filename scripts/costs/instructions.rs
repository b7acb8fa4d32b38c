//! Instructions of the broker under callgrind, and builds that can run under it.
//!
//! The usual build finds the kernel's clock page by itself, which valgrind does not show to a program; with the standard C
//! library in between (`rustix_use_libc`) it runs. Everything else is the release build. Valgrind also takes the wait for a
//! ring for a call that returns at once; `ring_wait.c` waits in its place.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::load;
use super::works::{QUEUES, Sends};
use crate::client::Connection;
use crate::project;
use crate::server::{Options, Server};

/// Preloaded, so that a thread that waits for its ring does not stop the others.
const RING_WAIT: &str = include_str!("ring_wait.c");
/// Longer than any run takes: valgrind is some fifty times slower.
const LIMIT: Duration = Duration::from_secs(600);

/// Builds the program of a checkout; gives its path.
pub fn build_for_valgrind(root: &Path, name: &str) -> Result<PathBuf> {
    build(root, name, Some("--cfg rustix_use_libc"))
}

fn build(root: &Path, name: &str, flags: Option<&str>) -> Result<PathBuf> {
    let kind = if flags.is_some() { "valgrind" } else { "plain" };
    let target = project::target()?.join("costs").join(format!("{name}-{kind}"));
    let mut command = project::cargo(["build", "--release", "--locked", "--bin", "ringmq"])?;
    command.current_dir(root).env("CARGO_TARGET_DIR", &target);
    if let Some(flags) = flags {
        command.env("RUSTFLAGS", flags);
    }
    project::run(&mut command)?;
    Ok(target.join("release/ringmq"))
}

/// Checks a commit out aside and builds it.
pub fn build_commit(commit: &str, for_valgrind: bool) -> Result<PathBuf> {
    let tree = project::target()?.join("costs/tree");
    let git =
        |arguments: &[&str]| project::run(Command::new("git").args(arguments).arg(&tree).current_dir(project::root()));
    if tree.exists() {
        git(&["worktree", "remove", "--force"])?;
    }
    let checkout = Command::new("git")
        .args(["worktree", "add", "--detach"])
        .arg(&tree)
        .arg(commit)
        .current_dir(project::root())
        .status()
        .context("starting git")?;
    ensure!(checkout.success(), "git cannot check out {commit}");
    let built = build(&tree, "other", for_valgrind.then_some("--cfg rustix_use_libc"));
    git(&["worktree", "remove", "--force"])?;
    built
}

/// All instructions of a broker from its start to its end, with so many sends in between.
pub fn count(binary: &Path, folder: &Path, topic: &str, sends: u64) -> Result<u64> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    let (source, preload) = (folder.join("ring_wait.c"), folder.join("ring_wait.so"));
    fs::write(&source, RING_WAIT)?;
    project::output(Command::new("cc").args(["-O2", "-shared", "-fPIC", "-o"]).arg(&preload).arg(&source))?;
    let preload = format!("LD_PRELOAD={}", preload.display());
    let callgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"];
    let wrapper =
        ["env", preload.as_str(), "taskset", "-c", "0"].into_iter().chain(callgrind).map(String::from).collect();
    let server = Server::start(binary, folder, &Options { wrapper, cores: Some("0".into()), ..Options::suite(1) })?;
    Connection::open(server.broker)?.create_topic(topic, QUEUES)?;
    let run = load::run(server.broker, &mut Sends::new(topic, "").up_to(sends), LIMIT)?;
    ensure!(run.operations == sends, "{} sends were answered, not {sends}", run.operations);
    server.finish()?;
    let log = fs::read_to_string(folder.join("log"))?;
    let line = log.lines().rev().find_map(|line| line.split_once("Collected :"));
    let (_, count) = line.context("valgrind tells no count; was the program built to run under it?")?;
    Ok(count.trim().parse()?)
}
