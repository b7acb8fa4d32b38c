//! The Java name server and broker 5.4.0, and the small Java programs of `scripts/java`, fetched and built with Maven.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::project;
use crate::server::{BROKER, SUITE_SETTINGS, await_port};

const STOP_LIMIT: Duration = Duration::from_secs(30);

/// The class path of everything Java, built when its sources changed.
#[derive(Debug, Clone)]
pub struct Java {
    class_path: String,
}

impl Java {
    /// Builds the Java programs and fetches the jars.
    pub fn build() -> Result<Java> {
        let out = project::target()?.join("java");
        let sources = project::root().join("scripts/java");
        let stamp = newest(&sources)?;
        let marker = out.join("built");
        let built = fs::metadata(&marker).and_then(|m| m.modified()).ok();
        if built.is_none_or(|built| built < stamp) {
            let mut maven = Command::new("mvn");
            maven.args(["-B", "-q", "package", "dependency:copy-dependencies", "-DincludeScope=runtime"]);
            maven
                .arg(format!("-Dout={}", out.display()))
                .arg(format!("-DoutputDirectory={}", out.join("lib").display()));
            project::run(maven.current_dir(sources)).context("building the Java programs")?;
            File::create(marker)?;
        }
        Ok(Java { class_path: format!("{}:{}/*", out.join("compat-1.jar").display(), out.join("lib").display()) })
    }

    /// Runs one of the programs of `scripts/java`; its output goes to a log and into the error.
    pub fn program(&self, folder: &Path, arguments: &[&str]) -> Result<()> {
        let started = Instant::now();
        let mut command = Command::new("java");
        command.arg("-Xmx1g").arg(format!("-Duser.home={}", folder.display()));
        command.args(["-cp", &self.class_path, "compat.Main"]).args(arguments);
        let output = command.stdin(Stdio::null()).output().context("starting java")?;
        let lines = String::from_utf8_lossy(&output.stdout);
        let told: Vec<&str> = lines.lines().filter(|l| !l.trim().is_empty() && !l.contains(" |-")).collect();
        if !output.status.success() {
            bail!("{}: {}\n{}", arguments.join(" "), told.join("\n"), String::from_utf8_lossy(&output.stderr));
        }
        println!("  {}: {} ({:.1} s)", arguments[0], told.join(" "), started.elapsed().as_secs_f64());
        Ok(())
    }
}

fn newest(folder: &Path) -> Result<std::time::SystemTime> {
    let mut time = fs::metadata(folder)?.modified()?;
    for item in fs::read_dir(folder)? {
        let path = item?.path();
        time = time.max(if path.is_dir() { newest(&path)? } else { fs::metadata(&path)?.modified()? });
    }
    Ok(time)
}

/// How to start the Java broker.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Lines of `broker.conf` on top of the suite's settings.
    pub settings: Vec<String>,
    /// Options of the broker's virtual machine; a small heap unless given.
    pub jvm: Vec<String>,
    /// The broker's port; a free one unless given. The name server gets the tenth behind it.
    pub port: Option<u16>,
    /// Register here; no Java name server is started then.
    pub namesrv: Option<SocketAddr>,
    /// A command to put before `java` for the broker (`taskset -c 0`).
    pub wrapper: Vec<String>,
    /// No broker, only a name server.
    pub namesrv_only: bool,
    /// Java's defaults instead of the suite's settings.
    pub plain: bool,
}

/// Java processes that run; they are killed when this is dropped.
#[derive(Debug)]
pub struct Reference {
    folder: PathBuf,
    name_server: Option<Child>,
    server: Option<Child>,
    /// Where the broker listens (nothing does with [`Options::namesrv_only`]).
    pub broker: SocketAddr,
    /// The name server that knows it.
    pub namesrv: SocketAddr,
    /// From the start of the broker's process until it accepts connections.
    pub started_in: Duration,
}

impl Reference {
    /// Starts a name server and a broker with their files in a folder (its `store` may be there already).
    pub fn start(java: &Java, folder: &Path, options: &Options) -> Result<Reference> {
        fs::create_dir_all(folder.join("home/conf"))?;
        let port = options.port.map_or_else(project::free_ports, Ok)?;
        let (broker, own_namesrv) = (project::loopback(port), project::loopback(port + 10));
        let namesrv = options.namesrv.unwrap_or(own_namesrv);
        let folder = folder.to_path_buf();
        let started_in = Duration::ZERO;
        let mut reference = Reference { folder, name_server: None, server: None, broker, namesrv, started_in };
        if options.namesrv.is_none() {
            reference.start_namesrv(java)?;
        }
        if !options.namesrv_only {
            reference.start_broker(java, options)?;
        }
        Ok(reference)
    }

    fn start_namesrv(&mut self, java: &Java) -> Result<()> {
        let folder = self.folder.display();
        let text = format!(
            "listenPort={}\nrocketmqHome={folder}/home\nkvConfigPath={folder}/kvConfig.json\n\
             configStorePath={folder}/namesrv.properties\nbindAddress=127.0.0.1\n",
            self.namesrv.port()
        );
        fs::write(self.folder.join("namesrv.conf"), text)?;
        let options = ["-Xmx256m".to_string(), "-Xms64m".into(), "-XX:+UseSerialGC".into()];
        let main = "org.apache.rocketmq.namesrv.NamesrvStartup";
        self.name_server = Some(self.spawn(java, &[], &options, main, "namesrv")?);
        self.await_port(self.namesrv, "namesrv")
    }

    fn start_broker(&mut self, java: &Java, options: &Options) -> Result<()> {
        fs::write(self.folder.join("broker.conf"), self.broker_conf(options))?;
        let small = ["-Xmx1g", "-Xms256m", "-XX:+UseSerialGC"].map(String::from);
        let jvm = if options.jvm.is_empty() { &small[..] } else { &options.jvm };
        let started = Instant::now();
        let main = "org.apache.rocketmq.broker.BrokerStartup";
        self.server = Some(self.spawn(java, &options.wrapper, jvm, main, "broker")?);
        self.await_port(self.broker, "broker")?;
        self.started_in = started.elapsed();
        let end = Instant::now() + Duration::from_secs(60);
        while !fs::read_to_string(self.folder.join("broker.out")).unwrap_or_default().contains("boot success") {
            ensure!(Instant::now() < end, "the Java broker does not say that it is up");
            sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn broker_conf(&self, options: &Options) -> String {
        let (port, folder) = (self.broker.port(), self.folder.display());
        let mut lines = vec![
            format!("brokerClusterName=DefaultCluster\nbrokerName={BROKER}\nbrokerId=0"),
            "brokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\nbindAddress=127.0.0.1".into(),
            format!("listenPort={port}\nhaListenPort={}\nnamesrvAddr={}", port + 1, self.namesrv),
            format!("rocketmqHome={folder}/home\nstorePathRootDir={folder}/store"),
            format!("storePathCommitLog={folder}/store/commitlog\nbrokerFastFailureEnable=false"),
        ];
        if !options.plain {
            lines.extend(SUITE_SETTINGS.map(String::from));
        }
        lines.extend_from_slice(&options.settings);
        lines.join("\n") + "\n"
    }

    fn spawn(&self, java: &Java, wrapper: &[String], jvm: &[String], main: &str, name: &str) -> Result<Child> {
        let log = File::create(self.folder.join(format!("{name}.out")))?;
        let words: Vec<&str> = wrapper.iter().map(String::as_str).chain(["java"]).collect();
        Command::new(words[0])
            .args(&words[1..])
            .args(jvm)
            .args(["-XX:MaxDirectMemorySize=1g", "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED"])
            .args(["--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"])
            .arg(format!("-Duser.home={}", self.folder.display()))
            .args(["-cp", &java.class_path, main, "-c"])
            .arg(self.folder.join(format!("{name}.conf")))
            .env("ROCKETMQ_HOME", self.folder.join("home"))
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting the Java {name}"))
    }

    fn await_port(&self, address: SocketAddr, name: &str) -> Result<()> {
        let child = if name == "broker" { &self.server } else { &self.name_server };
        let pid = child.as_ref().map_or(0, Child::id);
        let alive = || Ok(fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z")));
        await_port(address, alive)
            .with_context(|| fs::read_to_string(self.folder.join(format!("{name}.out"))).unwrap_or_default())
    }

    /// The process id of the broker.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.server.as_ref().context("there is no broker")?.id())
    }

    /// Its store folder.
    pub fn store(&self) -> PathBuf {
        self.folder.join("store")
    }

    /// Ends the broker, then the name server, in an orderly way.
    pub fn stop(&mut self) -> Result<()> {
        for child in [self.server.take(), self.name_server.take()].into_iter().flatten() {
            terminate(child)?;
        }
        Ok(())
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        for child in [&mut self.server, &mut self.name_server].into_iter().flatten() {
            // Nothing to do about a failure here: it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn terminate(mut child: Child) -> Result<()> {
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::TERM)?;
    let end = Instant::now() + STOP_LIMIT;
    while child.try_wait()?.is_none() {
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            bail!("a Java process did not end within {STOP_LIMIT:?} of SIGTERM");
        }
        sleep(Duration::from_millis(20));
    }
    Ok(())
}
