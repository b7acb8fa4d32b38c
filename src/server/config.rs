//! From command line and files to one checked, immutable configuration.
//!
//! Role: raw text (file, `--set`, flags) to values that need no further check. A flag wins over `--set`, `--set` over the
//! file, the file over the default. Invariants: an unknown key is named (Java ignores it silently): in a file as a warning,
//! after `--set` as an error; combinations that lose or hide something are refused. It binds nothing and opens no store.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use broker::config::{BrokerOptions, LIVE_KEYS, LiveSettings};
use namesrv::{NamesrvConfig, properties};
use store::{FlushMode, StoreOptions};

use crate::cli::{Cli, Flags, Role};
use crate::host;
use crate::settings::{self, When};
use crate::settings_table::SETTINGS;

/// What the process is to do.
#[derive(Debug)]
pub struct Config {
    /// Root of all files.
    pub data: PathBuf,
    /// Processors to run on.
    pub cores: Vec<usize>,
    /// The name server, if it is to run.
    pub namesrv: Option<NamesrvPart>,
    /// The broker, if it is to run.
    pub broker: Option<BrokerPart>,
    /// What the operator should know before it runs.
    pub warnings: Vec<String>,
}

/// The name server's part.
#[derive(Debug)]
pub struct NamesrvPart {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Its settings at start.
    pub config: NamesrvConfig,
}

/// The broker's part.
#[derive(Debug)]
pub struct BrokerPart {
    /// Where it listens; the VIP port is two below.
    pub listen: SocketAddr,
    /// Shards, if a number was asked for.
    pub shards: Option<u16>,
    /// The broker's settings.
    pub options: BrokerOptions,
    /// The store's settings.
    pub store: StoreOptions,
    /// Wait of a send for its sync, in ms.
    pub sync_flush_timeout_ms: u64,
    /// An idle connection is closed after this long, in ms.
    pub idle_ms: u64,
}

impl BrokerPart {
    /// The address of the VIP port.
    #[must_use]
    pub fn vip(&self) -> SocketAddr {
        SocketAddr::new(self.listen.ip(), self.listen.port() - 2)
    }
}

const DEFAULT_DATA: &str = "./ringmq-data";
const DEFAULT_NAMESRV_PORT: u16 = 9_876;

impl Config {
    /// The configuration that a command line asks for.
    ///
    /// # Errors
    /// One line that says what is wrong, where.
    pub fn load(cli: Cli) -> Result<Self> {
        let Cli { role, flags } = cli;
        let mut warnings = Vec::new();
        let (with_namesrv, with_broker, file) = match role {
            None => (true, true, None),
            Some(Role::Namesrv { config }) => (true, false, config),
            Some(Role::Broker { config }) => (false, true, config),
        };
        let mut raw = Raw::default();
        for (key, value) in read_file(file.as_deref())? {
            raw.take_from_file(&key, &value, with_broker, file.as_deref(), &mut warnings)?;
        }
        for (key, value) in &flags.set {
            raw.take_from_flag(key, value, with_namesrv, with_broker)?;
        }
        if let Some(addresses) = &flags.namesrv {
            ensure!(with_broker, "--namesrv is for brokers");
            raw.take_from_flag("namesrvAddr", addresses, false, true).context("--namesrv")?;
        }
        let data = data_folder(&flags, &raw);
        let cores = cores(&flags)?;
        let elsewhere = raw.broker.get("namesrvAddr").is_some_and(|addresses| !addresses.trim().is_empty());
        ensure!(
            !(with_broker && elsewhere && flags.namesrv_listen.is_some()),
            "--namesrv-listen has no use: the broker registers with other name servers"
        );
        let namesrv = match with_namesrv && !(with_broker && elsewhere) {
            true => Some(raw.namesrv_part(&flags)?),
            false => None,
        };
        let broker = match with_broker {
            true => Some(raw.broker_part(&flags, &data, file, namesrv.as_ref(), &mut warnings)?),
            false => None,
        };
        if let (Some(broker), Some(namesrv)) = (&broker, &namesrv) {
            let clash = [broker.listen, broker.vip()].iter().any(|address| address.port() == namesrv.listen.port());
            ensure!(!clash, "the name server's port {} is the broker's port or its VIP port", namesrv.listen.port());
        }
        Ok(Self { data, cores, namesrv, broker, warnings })
    }
}

/// Texts by key, checked one by one.
#[derive(Default)]
struct Raw {
    broker: BTreeMap<&'static str, String>,
    namesrv: NamesrvConfig,
}

impl Raw {
    fn take_from_file(
        &mut self,
        key: &Keyed,
        value: &str,
        of_broker: bool,
        file: Option<&Path>,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        let place = || format!("{}:{}", file.unwrap_or(Path::new("")).display(), key.line);
        if of_broker {
            match settings::find(&key.name) {
                Some(setting) => drop(self.broker.insert(setting.key, setting.check(value).with_context(place)?)),
                None => warnings.push(format!("{}: unknown setting {}{}", place(), key.name, hint(&key.name))),
            }
            return Ok(());
        }
        match self.namesrv.set(&key.name, value) {
            Err(namesrv::config::SettingError::Unknown(name)) => {
                warnings.push(format!("{}: unknown setting {name}", place()));
                Ok(())
            }
            other => other.with_context(place),
        }
    }

    fn take_from_flag(&mut self, key: &str, value: &str, of_namesrv: bool, of_broker: bool) -> Result<()> {
        let setting = if of_broker { settings::find(key) } else { None };
        if let Some(setting) = setting {
            self.broker.insert(setting.key, setting.check(value)?);
            return Ok(());
        }
        match self.namesrv.set(key, value) {
            Ok(()) if of_namesrv => Ok(()),
            Err(error @ namesrv::config::SettingError::Value { .. }) if of_namesrv => Err(error.into()),
            _ => bail!("unknown setting {key}{}", hint(key)),
        }
    }

    fn text(&self, key: &str) -> &str {
        let default = settings::find(key).expect("a key of the table").default;
        self.broker.get(key).map_or(default, String::as_str)
    }

    fn number(&self, key: &str) -> u64 {
        self.text(key).parse().expect("numbers were checked")
    }

    fn flag(&self, key: &str) -> bool {
        self.text(key) == "true"
    }

    fn namesrv_part(&self, flags: &Flags) -> Result<NamesrvPart> {
        let config = self.namesrv.clone();
        let host = if config.bind_address.is_empty() { "127.0.0.1" } else { &config.bind_address };
        let port = u16::try_from(config.listen_port).unwrap_or(DEFAULT_NAMESRV_PORT);
        let listen = match &flags.namesrv_listen {
            Some(text) => resolve(text).context("--namesrv-listen")?,
            None => resolve(&join(host, port)).context("bindAddress of the name server")?,
        };
        Ok(NamesrvPart { listen, config })
    }

    fn broker_part(
        &self,
        flags: &Flags,
        data: &Path,
        file: Option<PathBuf>,
        namesrv: Option<&NamesrvPart>,
        warnings: &mut Vec<String>,
    ) -> Result<BrokerPart> {
        let listen = match &flags.listen {
            Some(text) => resolve(text).context("--listen")?,
            None => {
                resolve(&join(self.text("bindAddress"), self.number("listenPort") as u16)).context("bindAddress")?
            }
        };
        ensure!(listen.port() > 2, "the broker's port {} leaves no room for the VIP port two below", listen.port());
        self.check_combinations(data)?;
        let mut options = self.options(listen, warnings)?;
        options.config_file = file;
        options.store_root = data.display().to_string();
        if let (true, Some(namesrv)) = (options.name_servers.is_empty(), namesrv) {
            options.name_servers.push(reachable(namesrv.listen).to_string());
        }
        if options.name_servers.is_empty() {
            warnings
                .push("no name server is given (namesrvAddr or --namesrv): clients will not find this broker".into());
        }
        let (segment, body) = (self.number("mappedFileSizeCommitLog"), self.number("maxMessageSize"));
        if segment < body + (64 << 10) {
            warnings.push(format!("mappedFileSizeCommitLog={segment} is too small for a message of maxMessageSize={body}: it will be refused"));
        }
        self.name_what_is_not_served(warnings);
        options.shown = self.shown(&options, listen);
        Ok(BrokerPart {
            listen,
            shards: flags.shards,
            store: self.store(),
            sync_flush_timeout_ms: self.number("syncFlushTimeout"),
            idle_ms: self.number("serverChannelMaxIdleTimeSeconds") * 1_000,
            options,
        })
    }

    fn options(&self, listen: SocketAddr, warnings: &mut Vec<String>) -> Result<BrokerOptions> {
        let ip = match self.text("brokerIP1") {
            "" if listen.ip().is_unspecified() => host::first_usable_address(),
            "" => listen.ip(),
            given => resolve(&join(given, listen.port())).context("brokerIP1")?.ip(),
        };
        if listen.ip().is_loopback() && !ip.is_loopback() {
            warnings.push(format!(
                "brokerIP1={ip} is told to clients, but the broker listens on {} only: set bindAddress or --listen",
                listen.ip()
            ));
        }
        let ha_ip = match self.text("brokerIP2") {
            "" => ip,
            given => resolve(&join(given, listen.port())).context("brokerIP2")?.ip(),
        };
        let ha_port = match self.text("haListenPort") {
            "" => listen.port().checked_add(1).context("the broker's port leaves no room for the replication port")?,
            given => given.parse().expect("ports were checked"),
        };
        let broker_name = match self.text("brokerName") {
            "" => host::name(),
            given => given.to_owned(),
        };
        for (key, name) in [("brokerName", broker_name.as_str()), ("brokerClusterName", self.text("brokerClusterName"))]
        {
            let legal = !name.is_empty() && name.len() <= 127 && !name.contains([' ', ';', ':', ',', '/', '"', '\\']);
            ensure!(
                legal,
                "{key} {name:?} is empty, longer than 127 bytes, or has one of the characters space ; : , / \" \\"
            );
        }
        let mut live = LiveSettings::default();
        for key in LIVE_KEYS {
            live.set(key.name, self.text(key.name))?;
        }
        Ok(BrokerOptions {
            broker_name,
            cluster_name: self.text("brokerClusterName").to_owned(),
            ha_address: SocketAddr::new(ha_ip, ha_port),
            name_servers: addresses(self.text("namesrvAddr")),
            register_period_ms: self.number("registerNameServerPeriod"),
            force_register: self.flag("forceRegister"),
            region_id: self.text("regionId").to_owned(),
            trace_topic_enable: self.flag("traceTopicEnable"),
            trace_topic_name: self.text("msgTraceTopicName").to_owned(),
            delay_level_ms: delays_ms(self.text("messageDelayLevel")),
            timer_wheel_enable: self.flag("timerWheelEnable"),
            timer_precision_ms: self.number("timerPrecisionMs") as i64,
            timer_max_delay_s: self.number("timerMaxDelaySec") as i64,
            revive_queues: self.number("reviveQueueNum") as u32,
            pop_retry_percent: self.number("popFromRetryProbability") as u32,
            retry_topic_v2: self.flag("enableRetryTopicV2"),
            light_queues: self.flag("enableLmq"),
            offset_flush_interval_ms: self.number("flushConsumerOffsetInterval"),
            client_expiry_ms: self.number("channelExpiredTimeout"),
            store_replies: self.flag("storeReplyMessageEnable"),
            live,
            ..BrokerOptions::with_address(SocketAddr::new(ip, listen.port()))
        })
    }

    fn store(&self) -> StoreOptions {
        StoreOptions {
            segment_size_bytes: self.number("mappedFileSizeCommitLog"),
            queue_file_size_bytes: self.number("mappedFileSizeConsumeQueue"),
            flush: match self.text("flushDiskType") {
                "SYNC_FLUSH" => FlushMode::Sync,
                _ => FlushMode::Async,
            },
            flush_interval_ms: self.number("flushIntervalCommitLog"),
            max_message_size_bytes: self.number("maxMessageSize") as u32,
            max_hash_slots: self.number("maxHashSlotNum") as u32,
            max_index_items: self.number("maxIndexNum") as u32,
            message_index_enable: self.flag("messageIndexEnable"),
            file_reserved_time_h: self.number("fileReservedTime") as u32,
            in_memory_window_bytes: host::memory_bytes() / 100 * self.number("accessMessageInMemoryMaxRatio"),
            pull_memory_bytes: self.number("maxTransferBytesOnMessageInMemory") as u32,
            pull_memory_count: self.number("maxTransferCountOnMessageInMemory") as u32,
            pull_disk_bytes: self.number("maxTransferBytesOnMessageInDisk") as u32,
            pull_disk_count: self.number("maxTransferCountOnMessageInDisk") as u32,
            delay_level_ms: delays_ms(self.text("messageDelayLevel")).into(),
            light_queues: self.flag("enableLmq"),
        }
    }

    /// Combinations that would lose, hide or never work.
    fn check_combinations(&self, data: &Path) -> Result<()> {
        let queue_file = self.number("mappedFileSizeConsumeQueue");
        ensure!(
            queue_file.is_multiple_of(20),
            "mappedFileSizeConsumeQueue={queue_file} is no multiple of 20, the size of an entry"
        );
        let [used, forcibly, full] =
            ["diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio"]
                .map(|key| self.number(key));
        ensure!(
            used <= forcibly && forcibly <= full,
            "diskMaxUsedSpaceRatio={used}, diskSpaceCleanForciblyRatio={forcibly} and diskSpaceWarningLevelRatio={full} must not fall: \
             writes would be refused before old files are deleted"
        );
        ensure!(
            self.flag("enableLmq") == self.flag("enableMultiDispatch"),
            "enableLmq={} and enableMultiDispatch={} must be the same: light queues get their messages by multi-dispatch alone",
            self.flag("enableLmq"),
            self.flag("enableMultiDispatch")
        );
        let logs = self.text("storePathCommitLog");
        let inside = logs.is_empty() || Path::new(logs) == data.join("commitlog");
        ensure!(
            inside,
            "storePathCommitLog={logs} is not {}: a log elsewhere or on several disks is not supported",
            data.join("commitlog").display()
        );
        Ok(())
    }

    fn name_what_is_not_served(&self, warnings: &mut Vec<String>) {
        for (key, value) in &self.broker {
            let setting = settings::find(key).expect("a key of the table");
            if *value == setting.default {
                continue;
            }
            match setting.when {
                When::Later(what) => warnings.push(format!("{key}={value} has no effect yet ({what})")),
                When::NoEffect(why) => tracing::info!("{key}={value} has no effect: {why}"),
                When::Live | When::Restart | When::DefaultOnly(_) => {}
            }
        }
    }

    /// Every known key with its value in effect.
    fn shown(&self, options: &BrokerOptions, listen: SocketAddr) -> BTreeMap<String, String> {
        let mut shown: BTreeMap<String, String> =
            SETTINGS.iter().map(|setting| (setting.key.to_owned(), self.text(setting.key).to_owned())).collect();
        let root = &options.store_root;
        for (key, value) in [
            ("brokerName", options.broker_name.clone()),
            ("brokerIP1", options.ip().to_string()),
            ("brokerIP2", options.ha_address.ip().to_string()),
            ("haListenPort", options.ha_address.port().to_string()),
            ("bindAddress", listen.ip().to_string()),
            ("listenPort", listen.port().to_string()),
            ("namesrvAddr", options.name_servers.join(";")),
            ("storePathRootDir", root.clone()),
            ("storePathCommitLog", Path::new(root).join("commitlog").display().to_string()),
        ] {
            shown.insert(key.to_owned(), value);
        }
        shown
    }
}

/// A key of a file and its line.
struct Keyed {
    name: String,
    line: usize,
}

fn read_file(path: Option<&Path>) -> Result<Vec<(Keyed, String)>> {
    let Some(path) = path else { return Ok(Vec::new()) };
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let pairs = properties::parse(&text).with_context(|| path.display().to_string())?;
    Ok(pairs.into_iter().map(|pair| (Keyed { name: pair.key, line: pair.line }, pair.value)).collect())
}

fn data_folder(flags: &Flags, raw: &Raw) -> PathBuf {
    match (&flags.data, raw.text("storePathRootDir")) {
        (Some(data), _) => data.clone(),
        (None, "") => DEFAULT_DATA.into(),
        (None, root) => root.into(),
    }
}

fn cores(flags: &Flags) -> Result<Vec<usize>> {
    let allowed = sys::affinity::allowed_cpus();
    match &flags.cores {
        None => Ok(allowed.into_iter().take(sys::affinity::default_core_count()).collect()),
        Some(asked) => {
            let missing = asked.0.iter().find(|cpu| !allowed.contains(cpu));
            match missing {
                Some(cpu) => bail!("--cores: this process may not run on processor {cpu} (allowed: {allowed:?})"),
                None => Ok(asked.0.clone()),
            }
        }
    }
}

fn hint(key: &str) -> String {
    settings::similar(key).map(|known| format!(" (did you mean {known}?)")).unwrap_or_default()
}

/// Delays such as `1s 5m`, in ms; their form was checked.
fn delays_ms(text: &str) -> Vec<i64> {
    let one = |delay: &str| {
        let (number, unit) = delay.split_at(delay.len() - 1);
        let unit_ms = match unit {
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => 86_400_000,
        };
        number.parse::<i64>().expect("delays were checked") * unit_ms
    };
    text.split_whitespace().map(one).collect()
}

fn addresses(text: &str) -> Vec<String> {
    text.split(';').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

fn join(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}

fn resolve(text: &str) -> Result<SocketAddr> {
    ensure!(settings::is_host_port(text), "{text:?} is not HOST:PORT");
    let mut found = text.trim().to_socket_addrs().with_context(|| format!("cannot resolve {text}"))?;
    found.next().with_context(|| format!("{text} has no address"))
}

/// Where a listener of this process can be reached from within it.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn load(line: &[&str]) -> Result<Config> {
        Config::load(Cli::try_parse_from(std::iter::once(&"ringmq").chain(line)).unwrap())
    }

    fn with_file(text: &str, line: &[&str]) -> Result<Config> {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("broker.conf");
        std::fs::write(&conf, text).unwrap();
        load(&[&["broker", "-c", conf.to_str().unwrap()], line].concat())
    }

    #[test]
    fn defaults() {
        let config = load(&[]).unwrap();
        let (broker, namesrv) = (config.broker.unwrap(), config.namesrv.unwrap());
        assert_eq!(
            (broker.listen, broker.vip()),
            ("127.0.0.1:10911".parse().unwrap(), "127.0.0.1:10909".parse().unwrap())
        );
        assert_eq!(namesrv.listen, "127.0.0.1:9876".parse().unwrap());
        assert_eq!(broker.options.address, broker.listen);
        assert_eq!(broker.options.name_servers, ["127.0.0.1:9876"]);
        assert_eq!((broker.options.ha_address.port(), config.data.to_str()), (10_912, Some("./ringmq-data")));
        assert_eq!(
            broker.options.shown["messageDelayLevel"],
            "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
        );
        assert_eq!(broker.options.shown["brokerName"], broker.options.broker_name);
        assert!(config.warnings.is_empty() && !config.cores.is_empty());
        assert_eq!(broker.options.live, LiveSettings::default());
    }

    #[test]
    fn a_flag_wins_over_set_and_that_over_the_file() {
        let file = "listenPort=20911\nflushDiskType=SYNC_FLUSH\nfileReservedTime=48\nbrokerClusterName=C\nstorePathRootDir=/x\n";
        let set = ["--set", "fileReservedTime=24", "--set", "brokerClusterName=D", "--listen", "127.0.0.1:30911"];
        let config =
            with_file(file, &[&set[..], &["--data", "/y", "--namesrv", "127.0.0.1:1;127.0.0.1:2"]].concat()).unwrap();
        assert!(config.namesrv.is_none());
        let broker = config.broker.unwrap();
        assert_eq!((broker.listen.port(), broker.store.flush), (30_911, FlushMode::Sync));
        assert_eq!((broker.store.file_reserved_time_h, broker.options.live.file_reserved_hours), (24, 24));
        assert_eq!((broker.options.cluster_name.as_str(), config.data.to_str()), ("D", Some("/y")));
        assert_eq!(broker.options.name_servers, ["127.0.0.1:1", "127.0.0.1:2"]);
        assert_eq!(broker.options.shown["listenPort"], "30911");
        assert_eq!(with_file(file, &[]).unwrap().data.to_str(), Some("/x"));
    }

    #[test]
    fn what_is_not_there_is_named() {
        let config = with_file("namesrvAddr=a:1\ndeleteWhen=05\nunheardOf=1\n", &[]).unwrap();
        let warnings = config.warnings.join("\n");
        assert!(warnings.contains("broker.conf:3: unknown setting unheardOf"), "{warnings}");
        assert!(warnings.contains("deleteWhen=05 has no effect yet"), "{warnings}");
        let lost = with_file("brokerIP1=10.1.2.3\n", &[]).unwrap().warnings.join("\n");
        assert!(lost.contains("listens on 127.0.0.1 only") && lost.contains("no name server"), "{lost}");
    }

    #[test]
    fn other_name_servers_take_the_place_of_the_one_inside() {
        let config = load(&["--namesrv", "127.0.0.1:1"]).unwrap();
        assert!(config.namesrv.is_none() && config.broker.is_some());
        assert!(load(&["--namesrv", "127.0.0.1:1", "--namesrv-listen", "127.0.0.1:2"]).is_err());
        assert!(load(&["--namesrv", "127.0.0.1"]).is_err());
        let alone = load(&["namesrv", "--set", "orderMessageEnable=true", "--set", "listenPort=1234"]).unwrap();
        assert!(alone.broker.is_none());
        let namesrv = alone.namesrv.unwrap();
        assert!(namesrv.config.order_message_enable && namesrv.listen.port() == 1_234);
        assert!(load(&["namesrv", "--set", "flushDiskType=SYNC_FLUSH"]).is_err());
        assert!(load(&["broker", "--set", "orderMessageEnable=true"]).is_err());
        assert!(load(&["--set", "orderMessageEnable=true"]).unwrap().namesrv.unwrap().config.order_message_enable);
    }

    #[test]
    fn beyond_loopback_an_address_is_told_that_clients_can_reach() {
        let open = load(&["--listen", "0.0.0.0:10911", "--namesrv-listen", "0.0.0.0:9876"]).unwrap();
        let broker = open.broker.unwrap();
        assert!(broker.listen.ip().is_unspecified() && !broker.options.ip().is_unspecified());
        assert_eq!(broker.options.name_servers, ["127.0.0.1:9876"]);
    }
}
