//! One `ringmq` process of a test: how it is started, stopped and killed, also from the shell commands that test suites
//! call. Its folder holds `arguments` (what to start), `pid`, `log` and `data`; nothing else is remembered between calls.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::project;

/// The name under which a test broker registers.
pub const BROKER: &str = "broker-a";
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// The settings that the interoperability suite asks for.
pub const SUITE_SETTINGS: [&str; 8] = [
    "autoCreateTopicEnable=true",
    "autoCreateSubscriptionGroup=true",
    "enablePropertyFilter=true",
    "traceTopicEnable=true",
    "recallMessageEnable=true",
    "timerWheelEnable=true",
    "transactionTimeOut=6000",
    "transactionCheckInterval=3000",
];

/// What to start.
#[derive(Debug, Default, Clone)]
pub struct Options {
    /// `--shards`.
    pub shards: Option<u16>,
    /// `--cores`, as a list of processor numbers.
    pub cores: Option<String>,
    /// `--data`; a folder of the server's own unless given.
    pub data: Option<PathBuf>,
    /// `--namesrv`: register there instead of starting a name server.
    pub namesrv: Option<SocketAddr>,
    /// The subcommand that starts a name server alone.
    pub namesrv_only: bool,
    /// Each a `--set KEY=VALUE`.
    pub settings: Vec<String>,
    /// The broker's port; a free one unless given. The name server gets the tenth behind it.
    pub port: Option<u16>,
    /// A command to put before the program (`taskset -c 0`).
    pub wrapper: Vec<String>,
}

impl Options {
    /// A store with so many shards and the settings that the suites ask for.
    pub fn suite(shards: u16) -> Options {
        let settings = SUITE_SETTINGS.map(String::from).to_vec();
        Options { shards: Some(shards), settings, ..Options::default() }
    }

    /// A name server and no broker.
    pub fn namesrv_only() -> Options {
        Options { namesrv_only: true, ..Options::default() }
    }

    /// The same with one more setting.
    pub fn set(mut self, setting: impl Into<String>) -> Options {
        self.settings.push(setting.into());
        self
    }
}

/// A server that runs; it is killed when this is dropped.
#[derive(Debug)]
pub struct Server {
    folder: PathBuf,
    /// Where its broker listens.
    pub broker: SocketAddr,
    /// The name server that knows it.
    pub namesrv: SocketAddr,
    /// How long its start took, until both answered.
    pub started_in: Duration,
}

impl Server {
    /// Starts a server on free loopback ports and waits until it accepts connections.
    pub fn start(binary: &Path, folder: &Path, options: &Options) -> Result<Server> {
        fs::create_dir_all(folder)?;
        let port = options.port.map_or_else(project::free_ports, Ok)?;
        let broker = project::loopback(port);
        let namesrv = options.namesrv.unwrap_or(project::loopback(port + 10));
        fs::write(folder.join("arguments"), arguments(binary, folder, options, broker, namesrv).join("\n"))?;
        Server::start_in(folder, options, broker, namesrv)
    }

    /// Starts a stopped server again with other options on the same ports.
    pub fn restart(self, binary: &Path, options: &Options) -> Result<Server> {
        let (folder, broker, namesrv) = (self.folder.clone(), self.broker, self.namesrv);
        // A process that was killed shows its last threads for some milliseconds more, now and then after none was seen.
        ensure!(ends_in_time(&folder)?, "the server in {} still runs", folder.display());
        fs::write(folder.join("arguments"), arguments(binary, &folder, options, broker, namesrv).join("\n"))?;
        drop(self);
        Server::start_in(&folder, options, broker, namesrv)
    }

    fn start_in(folder: &Path, options: &Options, broker: SocketAddr, namesrv: SocketAddr) -> Result<Server> {
        let started = Instant::now();
        let own_broker = (!options.namesrv_only).then_some(broker);
        let own_namesrv = options.namesrv.is_none().then_some(namesrv);
        start(folder)?;
        let mut server = Server { folder: folder.to_path_buf(), broker, namesrv, started_in: Duration::ZERO };
        for address in own_broker.into_iter().chain(own_namesrv) {
            // While it becomes taskset and then the program it may show the arguments of neither for a moment.
            await_port(address, || Ok(running(folder)?.is_some() || started.elapsed() < Duration::from_millis(500)))
                .with_context(|| format!("starting ringmq; the end of its log:\n{}", log_tail(folder)))?;
        }
        server.started_in = started.elapsed();
        Ok(server)
    }

    /// The process id.
    pub fn pid(&self) -> Result<u32> {
        let pid = running(&self.folder)?.context("the server has ended")?;
        Ok(pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// The store folder, when it is the server's own.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The folder of this server.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Ends it in an orderly way.
    pub fn stop(&self) -> Result<()> {
        stop(&self.folder)
    }

    /// Ends it like `kill -9`.
    pub fn kill(&self) -> Result<()> {
        kill(&self.folder)
    }

    /// Stops it and checks that it never panicked.
    pub fn finish(self) -> Result<()> {
        self.stop()?;
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        ensure!(!log.contains("panicked at"), "the server panicked:\n{}", log_tail(&self.folder));
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing to do about a failure here; the process is a test's and its folder names it.
        let _ = kill(&self.folder);
    }
}

fn arguments(binary: &Path, folder: &Path, o: &Options, broker: SocketAddr, namesrv: SocketAddr) -> Vec<String> {
    let data = o.data.clone().unwrap_or(folder.join("data"));
    let mut words = o.wrapper.clone();
    words.push(binary.display().to_string());
    if o.namesrv_only {
        words.push("namesrv".into());
        words.extend(["--namesrv-listen".into(), namesrv.to_string(), "--data".into(), data.display().to_string()]);
        return words;
    }
    words.extend(["--listen".into(), broker.to_string(), "--data".into(), data.display().to_string()]);
    let name_server = if o.namesrv.is_some() { "--namesrv" } else { "--namesrv-listen" };
    words.extend([name_server.into(), namesrv.to_string()]);
    if let Some(shards) = o.shards {
        words.extend(["--shards".into(), shards.to_string()]);
    }
    if let Some(cores) = &o.cores {
        words.extend(["--cores".into(), cores.clone()]);
    }
    for setting in [format!("brokerName={BROKER}")].iter().chain(&o.settings) {
        words.extend(["--set".into(), setting.clone()]);
    }
    words
}

/// Starts the server of a folder; returns before it is ready.
pub fn start(folder: &Path) -> Result<()> {
    ensure!(running(folder)?.is_none(), "the server in {} already runs", folder.display());
    let arguments = fs::read_to_string(folder.join("arguments"))?;
    let words: Vec<&str> = arguments.lines().collect();
    let log = File::options().create(true).append(true).open(folder.join("log"))?;
    let child = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("starting {}", words[0]))?;
    fs::write(folder.join("pid"), child.id().to_string())?;
    Ok(())
}

/// Sends SIGTERM to the server of a folder and waits until it has ended.
pub fn stop(folder: &Path) -> Result<()> {
    signal(folder, Signal::TERM)
}

/// Ends the server of a folder like `kill -9`; none running is no error.
pub fn kill(folder: &Path) -> Result<()> {
    signal(folder, Signal::KILL)
}

fn signal(folder: &Path, signal: Signal) -> Result<()> {
    let Some(pid) = running(folder)? else {
        ensure!(signal == Signal::KILL, "there is no server to stop in {}", folder.display());
        return Ok(());
    };
    kill_process(pid, signal).with_context(|| format!("sending {signal:?}"))?;
    if !ends_in_time(folder)? {
        let _ = kill_process(pid, Signal::KILL);
        bail!("the server did not end within {STOP_LIMIT:?} of {signal:?}:\n{}", log_tail(folder));
    }
    Ok(())
}

/// Waits until a folder's server no longer runs; false when it still does after the limit.
fn ends_in_time(folder: &Path) -> Result<bool> {
    let end = Instant::now() + STOP_LIMIT;
    while running(folder)?.is_some() {
        if Instant::now() > end {
            return Ok(false);
        }
        sleep(Duration::from_millis(5));
    }
    Ok(true)
}

/// The process of a folder's server while it runs. One that has ended but was not waited for does not run.
fn running(folder: &Path) -> Result<Option<Pid>> {
    let Ok(text) = fs::read_to_string(folder.join("pid")) else { return Ok(None) };
    let text = text.trim();
    let pid = text.parse().ok().and_then(Pid::from_raw).with_context(|| format!("{text:?} is no process id"))?;
    // Takes the end of a child of this process; for other processes this fails and changes nothing.
    let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    let Ok(stat) = fs::read_to_string(format!("/proc/{text}/stat")) else { return Ok(None) };
    // The first thread can be gone while others still hold the sockets.
    let threads = fs::read_dir(format!("/proc/{text}/task")).map_or(0, Iterator::count);
    let ended = threads <= 1 && stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']));
    // Process ids are used again: ours listens where we told it to. Right after its start it shows no arguments yet.
    let arguments = fs::read_to_string(folder.join("arguments")).unwrap_or_default();
    let address = arguments.lines().find(|word| word.parse::<SocketAddr>().is_ok()).unwrap_or("no address");
    // While it goes over from a wrapper to the program its arguments cannot always be read.
    let command = fs::read_to_string(format!("/proc/{text}/cmdline")).unwrap_or_default();
    let ours = command.is_empty() || command.contains(address);
    Ok((ours && !ended).then_some(pid))
}

/// The last lines that a server wrote.
pub fn log_tail(folder: &Path) -> String {
    let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Waits until something accepts connections at an address, as long as the process behind it is alive.
pub fn await_port(address: SocketAddr, alive: impl Fn() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + START_LIMIT;
    while TcpStream::connect(address).is_err() {
        ensure!(alive()?, "the process ended");
        ensure!(Instant::now() < end, "{address} did not open within {START_LIMIT:?}");
        sleep(Duration::from_millis(2));
    }
    Ok(())
}
