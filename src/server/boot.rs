//! From a configuration to a running process, and back to a closed store.
//!
//! Role: the order of the start: io_uring tried, every port bound, the store taken, the cores started (each opens its
//! shards), sockets accepted, registered, said so; and of the stop: name servers told, cores drained, store marked clean.
//! Invariants: a port that is taken ends the start before anything on the disk is touched; the store is marked clean only
//! when every core has closed its shards. It serves nothing.

use std::error::Error;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use broker::config::BrokerOptions;
use broker::connections::{BROKER_LISTENER, VIP_LISTENER};
use broker::core::CoreParts;
use broker::owner::OwnerHost;
use broker::registration::{self, ControlReceiver, ControlSender};
use broker::router::core_of;
use broker::services::progress::ProgressFiles;
use broker::snapshot::Snapshot;
use broker::{BrokerCore, CoreMessage};
use namesrv::{NameServer, NamesrvConfig, NsFile, properties};
use reactor::{CoreId, Engine, EngineOptions, GlommioBackground, Limits, ListenerSpec, Now};
use store::{FlushMode, MAX_SHARDS, Shard, ShardId, StoreHome, StoreOptions};
use sys::disk::Disk;
use sys::real_disk::RealDisk;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::config::{BrokerPart, Config, NamesrvPart};
use crate::control::{Control, Event, NsFiles, NsWork, Parts};
use crate::service::{CoreService, NAMESRV_LISTENER, NamesrvHost};

/// How long the start waits for the first registration before it says that the broker is ready.
const FIRST_REGISTRATION: Duration = Duration::from_millis(1_500);
/// How long the stop waits for the name servers to hear of it.
const GOODBYE: Duration = Duration::from_millis(2_500);
/// Segments of the log that a shard of a new store should have room for.
const SEGMENTS_PER_SHARD: u64 = 32;

/// Runs until a signal asks to stop.
///
/// # Errors
/// One line that says why the start, or an orderly end, failed.
pub fn run(config: Config) -> Result<()> {
    let started = Instant::now();
    reactor::probe()?;
    raise_descriptor_limit();
    let listeners = bind(&config)?;
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let broker = match config.broker {
        Some(part) => Some(BrokerBoot::open(&disk, &config.data, config.cores.len() as u16, part)?),
        None => None,
    };
    let namesrv = match &config.namesrv {
        Some(part) => Some(NamesrvBoot::open(&disk, &config.data, part)?),
        None => None,
    };
    // A name server alone lives on core 0.
    let cores = if broker.is_some() { config.cores } else { config.cores.into_iter().take(1).collect() };
    let running = Running::start(cores, disk, namesrv, broker, listeners, started)?;
    let reason = running.wait();
    tracing::info!("{reason}: stopping");
    running.stop()
}

/// Connections and queue files want more descriptors than the usual soft limit; what the hard limit allows is ours to take.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

/// Binds every port, the VIP port included.
fn bind(config: &Config) -> Result<Vec<(ListenerSpec, TcpListener)>> {
    let mut listeners = Vec::new();
    let mut add = |id, addr: SocketAddr, spread, what: &str, flag: &str| -> Result<()> {
        let socket = bind_patiently(addr).map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                anyhow::anyhow!("{addr} ({what}) is in use by another process; {flag} chooses another address")
            }
            _ => anyhow::anyhow!("cannot listen on {addr} ({what}): {error}"),
        })?;
        listeners.push((ListenerSpec { id, addr, spread }, socket));
        Ok(())
    };
    if let Some(part) = &config.namesrv {
        add(NAMESRV_LISTENER, part.listen, false, "name server", "--namesrv-listen")?;
    }
    if let Some(part) = &config.broker {
        add(BROKER_LISTENER, part.listen, true, "broker", "--listen")?;
        add(VIP_LISTENER, part.vip(), true, "broker, VIP port", "--listen")?;
    }
    Ok(listeners)
}

/// A process that was killed holds its ports for some milliseconds more, until the kernel has ended its ring.
fn bind_patiently(addr: SocketAddr) -> std::io::Result<TcpListener> {
    const WAIT: Duration = Duration::from_millis(500);
    const STEP: Duration = Duration::from_millis(10);
    let start = Instant::now();
    loop {
        match TcpListener::bind(addr) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && start.elapsed() < WAIT => {
                std::thread::sleep(STEP);
            }
            result => return result,
        }
    }
}

/// What a name server starts from.
struct NamesrvBoot {
    listen: SocketAddr,
    config: NamesrvConfig,
    changed: NamesrvConfig,
    key_values: namesrv::kv::KvConfig,
    files: NsFiles,
    /// Two name servers must not write the same files. Held until the process ends.
    _lock: Box<dyn Send>,
}

impl NamesrvBoot {
    fn open(disk: &Arc<dyn Disk>, data: &Path, part: &NamesrvPart) -> Result<Self> {
        let dir = data.join("namesrv");
        let or = |given: &str, name: &str| if given.is_empty() { dir.join(name) } else { given.into() };
        let key_values = or(&part.config.kv_config_path, "kvConfig.json");
        let settings = or(&part.config.config_store_path, "namesrv.properties");
        disk.create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let lock = disk.lock(&dir.join("lock")).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => {
                anyhow::anyhow!("{} is in use by another name server (its lock file is held)", dir.display())
            }
            _ => anyhow::anyhow!("{}: {error}", dir.join("lock").display()),
        })?;
        let files = NsFiles::new(disk, &key_values, &settings);
        let whole = |bytes: &[u8]| NameServer::read_key_values(bytes).is_some();
        let content = files.read(NsFile::KeyValues, &whole)?;
        let key_values = content.and_then(|bytes| NameServer::read_key_values(&bytes)).unwrap_or_default();
        let mut changed = part.config.clone();
        let saved = files.read(NsFile::Settings, &|bytes| properties::parse(bytes).is_ok())?.unwrap_or_default();
        let saved = properties::parse(&saved).with_context(|| settings.display().to_string())?;
        for property in &saved {
            tracing::info!("{}={} was set while the name server ran before", property.key, property.value);
        }
        match changed.changed(&saved) {
            Ok(merged) => changed = merged,
            Err(error) => bail!("{}: {error}", settings.display()),
        }
        Ok(Self { listen: part.listen, config: part.config.clone(), changed, key_values, files, _lock: lock })
    }
}

/// What a broker starts from.
struct BrokerBoot {
    options: Arc<BrokerOptions>,
    store: StoreOptions,
    sync_flush_timeout_ms: u64,
    idle_ms: u64,
    listen: SocketAddr,
    home: Arc<StoreHome>,
}

impl BrokerBoot {
    fn open(disk: &Arc<dyn Disk>, data: &Path, cores: u16, part: BrokerPart) -> Result<Self> {
        let default_shards = default_shards(&**disk, data, cores, part.store.segment_size_bytes);
        let home = StoreHome::open(disk.clone(), data, &part.store, part.shards, default_shards)?;
        Ok(Self {
            options: Arc::new(part.options),
            store: part.store,
            sync_flush_timeout_ms: part.sync_flush_timeout_ms,
            idle_ms: part.idle_ms,
            listen: part.listen,
            home: Arc::new(home),
        })
    }
}

/// Shards of a new store: one for each core, but none that the disk has no room for.
fn default_shards(disk: &dyn Disk, data: &Path, cores: u16, segment_bytes: u64) -> u16 {
    let absolute = std::path::absolute(data).unwrap_or_else(|_| data.to_owned());
    let space = absolute.ancestors().find_map(|folder| disk.space(folder).ok());
    let room = space.map_or(1, |space| space.total / (SEGMENTS_PER_SHARD * segment_bytes));
    cores.min(u16::try_from(room).unwrap_or(u16::MAX)).clamp(1, MAX_SHARDS)
}

fn now() -> Now {
    Now { mono_us: sys::clock::monotonic_us(), wall_ms: sys::clock::wall_ms() }
}

/// Makes the service of each core, on the core's own thread.
struct Builder {
    cores: u16,
    disk: Arc<dyn Disk>,
    broker: Option<BrokerBuild>,
    /// Taken by core 0.
    namesrv: Mutex<Option<NamesrvBuild>>,
    clean: Arc<AtomicUsize>,
}

struct BrokerBuild {
    options: Arc<BrokerOptions>,
    store: StoreOptions,
    sync_flush_timeout_ms: u64,
    home: Arc<StoreHome>,
    control: ControlSender,
}

struct NamesrvBuild {
    config: NamesrvConfig,
    changed: NamesrvConfig,
    key_values: namesrv::kv::KvConfig,
    control: UnboundedSender<NsWork>,
}

impl Builder {
    fn build(&self, core: CoreId) -> Result<CoreService, Box<dyn Error + Send + Sync>> {
        let namesrv = match core {
            CoreId(0) => self.namesrv.lock().unwrap_or_else(PoisonError::into_inner).take(),
            _ => None,
        };
        let namesrv = namesrv.map(|parts| {
            let server = NameServer::new(now(), parts.config, parts.changed, parts.key_values);
            NamesrvHost::new(server, parts.control)
        });
        let broker = match &self.broker {
            Some(parts) => Some(self.broker_core(core, parts)?),
            None => None,
        };
        Ok(CoreService::new(broker, namesrv, self.clean.clone()))
    }

    fn broker_core(&self, core: CoreId, parts: &BrokerBuild) -> Result<BrokerCore, Box<dyn Error + Send + Sync>> {
        let mut hosted = Vec::new();
        for id in (0..parts.home.shards()).map(ShardId).filter(|id| core_of(*id, self.cores) == core) {
            let (shard, report) = Shard::open(self.disk.clone(), &parts.home, id, parts.store.clone(), now())?;
            tracing::info!(shard = id.0, ?report, "a shard is open");
            if report.damaged_records > 0 || report.cut_bytes > 0 {
                let (damaged, cut) = (report.damaged_records, report.cut_bytes);
                tracing::warn!(
                    shard = id.0,
                    damaged,
                    cut,
                    "recovery met damaged records, or cut bytes behind the last one"
                );
            }
            hosted.push((id, shard));
        }
        let owner = match core {
            CoreId(0) => Some(Box::new(OwnerHost::open(
                parts.options.clone(),
                self.disk.clone(),
                &parts.home,
                self.cores,
                parts.control.clone(),
                now(),
            )?)),
            _ => None,
        };
        Ok(BrokerCore::new(CoreParts {
            core,
            cores: self.cores,
            shards: parts.home.shards(),
            options: parts.options.clone(),
            snapshot: Arc::new(Snapshot::empty()),
            hosted,
            progress: ProgressFiles::new(&parts.home),
            flush: parts.store.flush,
            sync_flush_timeout_ms: parts.sync_flush_timeout_ms,
            owner,
            utc_offset_ms: utc_offset_ms(),
        }))
    }
}

/// Distance of the local time from UTC, in ms.
fn utc_offset_ms() -> i64 {
    let zone = jiff::tz::TimeZone::system();
    i64::from(zone.to_offset(jiff::Timestamp::now()).seconds()) * 1_000
}

/// A process that serves.
struct Running {
    engine: Engine<CoreMessage>,
    control: Control,
    events: Receiver<Event>,
    /// The signal that came before the start was over.
    early_stop: Option<&'static str>,
    home: Option<Arc<StoreHome>>,
    timer_precision_ms: i64,
    clean: Arc<AtomicUsize>,
    cores: usize,
    _namesrv_lock: Option<Box<dyn Send>>,
}

impl Running {
    fn start(
        cores: Vec<usize>,
        disk: Arc<dyn Disk>,
        namesrv: Option<NamesrvBoot>,
        broker: Option<BrokerBoot>,
        listeners: Vec<(ListenerSpec, TcpListener)>,
        started: Instant,
    ) -> Result<Self> {
        let limits = match &broker {
            Some(broker) => Limits { idle_ms: broker.idle_ms, ..Limits::default() },
            None => Limits::default(),
        };
        let banner = banner(&cores, namesrv.as_ref(), broker.as_ref());
        let (event_sender, events) = channel();
        let (ns_sender, ns_work) = unbounded_channel();
        let clean = Arc::new(AtomicUsize::new(0));
        let home = broker.as_ref().map(|broker| broker.home.clone());
        let timer_precision_ms = broker.as_ref().map_or(1_000, |broker| broker.options.timer_precision_ms.max(1));
        let (broker, broker_control) = split_broker(broker);
        let (namesrv, ns_files, namesrv_lock) = split_namesrv(namesrv, ns_sender);
        let builder = Builder {
            cores: cores.len() as u16,
            disk: disk.clone(),
            broker,
            namesrv: Mutex::new(namesrv),
            clean: clean.clone(),
        };
        let background = Arc::new(GlommioBackground::start(disk));
        let count = cores.len();
        let options = EngineOptions { cores, pin: true, limits };
        let engine = reactor::start(options, background, move |core, _| builder.build(core))?;
        let control = Control::start(Parts {
            broker: broker_control,
            namesrv: ns_files.map(|files| (files, ns_work)),
            core: engine.handles()[0].clone(),
            events: event_sender,
        })?;
        let mut running = Self {
            engine,
            control,
            events,
            early_stop: None,
            home,
            timer_precision_ms,
            clean,
            cores: count,
            _namesrv_lock: namesrv_lock,
        };
        running.accept(listeners);
        say(&format!("{banner}ready in {} ms", started.elapsed().as_millis()));
        Ok(running)
    }

    /// Accepts connections when every core has its metadata, and waits a little for the first registration.
    fn accept(&mut self, listeners: Vec<(ListenerSpec, TcpListener)>) {
        let with_broker = self.home.is_some();
        let mut ready = !with_broker;
        let deadline = Instant::now() + FIRST_REGISTRATION;
        let (own, others): (Vec<_>, Vec<_>) = listeners.into_iter().partition(|(spec, _)| spec.id == NAMESRV_LISTENER);
        self.engine.listen(own);
        let mut others = Some(others);
        while with_broker && Instant::now() < deadline {
            match self.events.recv_timeout(deadline - Instant::now()) {
                Ok(Event::Ready) => {
                    ready = true;
                    self.engine.listen(others.take().unwrap_or_default());
                }
                Ok(Event::Registered) if ready => return,
                Ok(Event::Stop(reason)) => {
                    self.early_stop = Some(reason);
                    break;
                }
                Ok(Event::Registered | Event::SaidGoodbye) => {}
                Err(_) => break,
            }
        }
        self.engine.listen(others.take().unwrap_or_default());
    }

    /// Waits for a signal.
    fn wait(&self) -> &'static str {
        if let Some(reason) = self.early_stop {
            return reason;
        }
        loop {
            match self.events.recv() {
                Ok(Event::Stop(reason)) => return reason,
                Ok(_) => {}
                Err(_) => return "the control thread has ended",
            }
        }
    }

    /// Tells the name servers, drains the cores, and marks the store clean.
    fn stop(self) -> Result<()> {
        if self.home.is_some() {
            self.control.say_goodbye();
            let deadline = Instant::now() + GOODBYE;
            while self
                .events
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
                .is_ok_and(|event| event != Event::SaidGoodbye)
            {}
        }
        tracing::debug!("name servers know");
        let drained = self.engine.stop();
        tracing::debug!(drained, "cores have ended");
        self.control.join();
        let clean = self.clean.load(Ordering::Acquire) == self.cores;
        let Some(home) = self.home else { return Ok(()) };
        ensure!(drained && clean, "not everything was written in time: the next start recovers the store");
        let home = Arc::into_inner(home).context("a core still holds the store")?;
        let precision_ms = self.timer_precision_ms;
        broker::services::progress::hand_back(&home, precision_ms, sys::clock::wall_ms())
            .context("the progress of delayed messages could not be written for a Java broker")?;
        home.close_clean().context("the store could not be marked as closed in order")
    }
}

type BrokerControl = (Arc<BrokerOptions>, ControlReceiver);

fn split_broker(broker: Option<BrokerBoot>) -> (Option<BrokerBuild>, Option<BrokerControl>) {
    let Some(boot) = broker else { return (None, None) };
    let (control, receiver) = registration::channel();
    let options = boot.options.clone();
    let build = BrokerBuild {
        options: boot.options,
        store: boot.store,
        sync_flush_timeout_ms: boot.sync_flush_timeout_ms,
        home: boot.home,
        control,
    };
    (Some(build), Some((options, receiver)))
}

fn split_namesrv(
    namesrv: Option<NamesrvBoot>,
    control: UnboundedSender<NsWork>,
) -> (Option<NamesrvBuild>, Option<NsFiles>, Option<Box<dyn Send>>) {
    let Some(boot) = namesrv else { return (None, None, None) };
    let build = NamesrvBuild { config: boot.config, changed: boot.changed, key_values: boot.key_values, control };
    (Some(build), Some(boot.files), Some(boot._lock))
}

/// The lines that say where everything is.
fn banner(cores: &[usize], namesrv: Option<&NamesrvBoot>, broker: Option<&BrokerBoot>) -> String {
    let mut text = format!("ringmq {}\n", env!("CARGO_PKG_VERSION"));
    if let Some(boot) = namesrv {
        text.push_str(&format!("  name server  {}\n", boot.listen));
    }
    if let Some(boot) = broker {
        let options = &boot.options;
        let vip = boot.listen.port() - 2;
        text.push_str(&format!(
            "  broker       {} and port {vip}: {} of {}, told to clients as {}\n",
            boot.listen, options.broker_name, options.cluster_name, options.address
        ));
        if namesrv.is_none() {
            text.push_str(&format!("  registers    {}\n", options.name_servers.join("; ")));
        }
        let flush = if boot.store.flush == FlushMode::Sync { "SYNC_FLUSH" } else { "ASYNC_FLUSH" };
        text.push_str(&format!("  data         {} in {} shards, {flush}\n", options.store_root, boot.home.shards()));
    }
    text.push_str(&format!("  cores        {}\n", cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",")));
    text
}

/// To stdout; nobody may be there to read it.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}
