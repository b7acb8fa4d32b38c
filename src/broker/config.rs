//! The broker's settings by value. [`BrokerOptions`] is fixed at start; [`LiveSettings`] is the part that request 25 may change while
//! running, declared once in [`LIVE_KEYS`] with type and bounds under the names of the Java broker's keys.
//!
//! Reading files is the server's work. Nothing here does I/O.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Settings that stay as they are until the next start.
#[derive(Clone, Debug, PartialEq)]
pub struct BrokerOptions {
    /// `brokerName`.
    pub broker_name: String,
    /// `brokerClusterName`.
    pub cluster_name: String,
    /// `brokerId`; 0 is a master.
    pub broker_id: u64,
    /// Advertised address (`brokerIP1`:`listenPort`), also in offset message ids and as store host of records.
    pub address: SocketAddr,
    /// `brokerIP2`:`haListenPort`, what is registered as the address for replication.
    pub ha_address: SocketAddr,
    /// Name servers, `host:port` each (`namesrvAddr`).
    pub name_servers: Vec<String>,
    /// `registerNameServerPeriod`, ms, 10,000..=60,000.
    pub register_period_ms: u64,
    /// `forceRegister`: register each period even if the name server's data version is ours.
    pub force_register: bool,
    /// `regionId`, told to producers as MSG_REGION.
    pub region_id: String,
    /// `traceTopicEnable`: the trace topic exists.
    pub trace_topic_enable: bool,
    /// `msgTraceTopicName`.
    pub trace_topic_name: String,
    /// `messageDelayLevel`: the delay of each level in ms, level 1 first; never empty.
    pub delay_level_ms: Vec<i64>,
    /// `timerWheelEnable`: there are timed messages, and the wheel's topic exists.
    pub timer_wheel_enable: bool,
    /// `timerPrecisionMs`, 100..=60,000: what `TIMER_OUT_MS` is a multiple of.
    pub timer_precision_ms: i64,
    /// `timerMaxDelaySec`: the furthest due time.
    pub timer_max_delay_s: i64,
    /// `reviveQueueNum`.
    pub revive_queues: u32,
    /// `popFromRetryProbability`, percent.
    pub pop_retry_percent: u32,
    /// `enableRetryTopicV2`: what comes back to a POP group has a topic with `+` in its name.
    pub retry_topic_v2: bool,
    /// `enableLmq` with `enableMultiDispatch`: there are light queues.
    pub light_queues: bool,
    /// `flushConsumerOffsetInterval`, ms.
    pub offset_flush_interval_ms: u64,
    /// `channelExpiredTimeout`, ms: a client without a heartbeat for this long is dropped.
    pub client_expiry_ms: u64,
    /// `storeReplyMessageEnable`: replies to requests are stored too.
    pub store_replies: bool,
    /// Path of the data folder, shown by code 28 and 26.
    pub store_root: String,
    /// Version text of code 28's `brokerVersionDesc` and its ordinal `brokerVersion`.
    pub version_name: String,
    /// Ordinal in Java's version list, in each response.
    pub version: i32,
    /// Every known key with its value in effect, as the Java properties of code 26; live keys are overlaid from [`LiveSettings`].
    pub shown: BTreeMap<String, String>,
    /// First values of the live settings.
    pub live: LiveSettings,
    /// Where `stop` and a changed live setting are written back (`-c` file), told only to the owner's persist action.
    pub config_file: Option<std::path::PathBuf>,
}

impl BrokerOptions {
    /// Options for tests and tools: everything at its default, with this address.
    pub fn with_address(address: SocketAddr) -> Self {
        let ha_address = SocketAddr::new(address.ip(), address.port().wrapping_add(1));
        Self {
            broker_name: "broker-a".into(),
            cluster_name: "DefaultCluster".into(),
            broker_id: 0,
            address,
            ha_address,
            name_servers: Vec::new(),
            register_period_ms: 30_000,
            force_register: true,
            region_id: "DefaultRegion".into(),
            trace_topic_enable: false,
            trace_topic_name: "RMQ_SYS_TRACE_TOPIC".into(),
            delay_level_ms: store::DELAY_LEVEL_S.map(|seconds| seconds * 1_000).to_vec(),
            timer_wheel_enable: true,
            timer_precision_ms: 1_000,
            timer_max_delay_s: 259_200,
            revive_queues: 8,
            pop_retry_percent: 20,
            retry_topic_v2: false,
            light_queues: false,
            offset_flush_interval_ms: 5_000,
            client_expiry_ms: 120_000,
            store_replies: true,
            store_root: String::new(),
            version_name: "V5_4_0".into(),
            version: 493,
            shown: BTreeMap::new(),
            live: LiveSettings::default(),
            config_file: None,
        }
    }

    /// The advertised IP address.
    pub fn ip(&self) -> IpAddr {
        self.address.ip()
    }
}

/// What delayed and timed messages follow. Fixed at start; every core has it in its snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayRules {
    /// The delay of each level in ms, level 1 first; never empty.
    pub level_ms: Vec<i64>,
    /// There are timed messages.
    pub timer: bool,
    /// What `TIMER_OUT_MS` is a multiple of, in ms; above 0.
    pub precision_ms: i64,
    /// How far ahead a due time may lie, in ms.
    pub max_ms: i64,
    /// Queues that each shard owns of the delay levels' topic: at least the number of levels.
    pub schedule_width: u32,
    /// Queues that each shard owns of the timers' topic.
    pub timer_width: u32,
}

impl DelayRules {
    /// The rules of a broker whose shards own this many queues of the two topics.
    pub fn new(options: &BrokerOptions, schedule_width: u32, timer_width: u32) -> Self {
        Self {
            level_ms: options.delay_level_ms.clone(),
            timer: options.timer_wheel_enable,
            precision_ms: options.timer_precision_ms.max(1),
            max_ms: options.timer_max_delay_s.saturating_mul(1_000),
            schedule_width,
            timer_width,
        }
    }
}

impl Default for DelayRules {
    /// Java's defaults.
    fn default() -> Self {
        let widths = store::manifest::SystemQueues::default();
        let any = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);
        Self::new(&BrokerOptions::with_address(any), widths.schedule, widths.timer)
    }
}

/// Settings that may change while running. A new snapshot carries them to the cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveSettings {
    /// `brokerPermission`: bits 4 read, 2 write.
    pub broker_permission: u32,
    /// `autoCreateTopicEnable`.
    pub auto_create_topic: bool,
    /// `autoCreateSubscriptionGroup`.
    pub auto_create_group: bool,
    /// `defaultTopicQueueNums`: queues of TBW102 when it is made.
    pub default_topic_queues: u32,
    /// `maxMessageSize`, bytes of a body.
    pub max_message_size: u32,
    /// `maxTransferBytesOnMessageInMemory`, bytes of a pull.
    pub max_pull_bytes: u32,
    /// `maxTransferCountOnMessageInMemory`, messages of a pull.
    pub max_pull_count: u32,
    /// `maxTransferBytesOnMessageInDisk`, bytes of a pull of cold messages.
    pub max_cold_pull_bytes: u32,
    /// `maxTransferCountOnMessageInDisk`, messages of a pull of cold messages.
    pub max_cold_pull_count: u32,
    /// `maxFilterMessageSize`: least bytes of queue entries that a pull with a filter scans.
    pub max_filter_bytes: u32,
    /// `longPollingEnable`.
    pub long_polling: bool,
    /// `shortPollingTimeMills`: how long a pull is held when long polling is off, ms.
    pub short_polling_ms: u32,
    /// `useServerSideResetOffset`.
    pub server_side_reset: bool,
    /// `enablePropertyFilter`: SQL92 subscriptions are allowed.
    pub property_filter: bool,
    /// `litePullMessageEnable`.
    pub lite_pull: bool,
    /// `rejectTransactionMessage`.
    pub reject_transactions: bool,
    /// `transactionTimeOut`: age of a half message before its first check, ms.
    pub transaction_timeout_ms: u32,
    /// `transactionCheckInterval`, ms.
    pub transaction_check_interval_ms: u32,
    /// `transactionCheckMax`: checks before a half message is given up.
    pub transaction_check_max: u32,
    /// `traceOn`: told to producers as TRACE_ON.
    pub trace_on: bool,
    /// `defaultQueryMaxNum`: most messages of a query by key.
    pub query_max: u32,
    /// `recallMessageEnable`: timed messages can be recalled.
    pub recall: bool,
    /// `fileReservedTime`, hours that a log segment is kept.
    pub file_reserved_hours: u32,
}

impl Default for LiveSettings {
    fn default() -> Self {
        Self {
            broker_permission: 6,
            auto_create_topic: true,
            auto_create_group: true,
            default_topic_queues: 8,
            max_message_size: 4 << 20,
            max_pull_bytes: 256 << 10,
            max_pull_count: 32,
            max_cold_pull_bytes: 64 << 10,
            max_cold_pull_count: 8,
            max_filter_bytes: 16_000,
            long_polling: true,
            short_polling_ms: 1_000,
            server_side_reset: true,
            property_filter: false,
            lite_pull: true,
            reject_transactions: false,
            transaction_timeout_ms: 6_000,
            transaction_check_interval_ms: 30_000,
            transaction_check_max: 15,
            trace_on: true,
            query_max: 32,
            recall: false,
            file_reserved_hours: 72,
        }
    }
}

/// Why a live setting was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// The key exists but is fixed at start, or does not exist.
    #[error("the setting {0} cannot be changed while running")]
    NotLive(String),
    /// The value is no number or truth value, or out of bounds.
    #[error("the setting {key} cannot be {value:?}: {expected}")]
    BadValue {
        /// The key.
        key: String,
        /// What was asked.
        value: String,
        /// What would be right.
        expected: String,
    },
}

/// How one live key reads and writes its field.
pub struct LiveKey {
    /// The Java broker's name of the key.
    pub name: &'static str,
    field: Field,
}

enum Field {
    Flag(fn(&mut LiveSettings) -> &mut bool),
    Number(fn(&mut LiveSettings) -> &mut u32, u32, u32),
}

macro_rules! flag {
    ($name:literal, $field:ident) => {
        LiveKey { name: $name, field: Field::Flag(|s| &mut s.$field) }
    };
}
macro_rules! number {
    ($name:literal, $field:ident, $min:expr, $max:expr) => {
        LiveKey { name: $name, field: Field::Number(|s| &mut s.$field, $min, $max) }
    };
}

/// Every key that request 25 may change.
pub const LIVE_KEYS: &[LiveKey] = &[
    number!("brokerPermission", broker_permission, 0, 7),
    flag!("autoCreateTopicEnable", auto_create_topic),
    flag!("autoCreateSubscriptionGroup", auto_create_group),
    number!("defaultTopicQueueNums", default_topic_queues, 1, 1024),
    number!("maxMessageSize", max_message_size, 1, 15 << 20),
    number!("maxTransferBytesOnMessageInMemory", max_pull_bytes, 1, 8 << 20),
    number!("maxTransferCountOnMessageInMemory", max_pull_count, 1, 4096),
    number!("maxTransferBytesOnMessageInDisk", max_cold_pull_bytes, 1, 8 << 20),
    number!("maxTransferCountOnMessageInDisk", max_cold_pull_count, 1, 4096),
    number!("maxFilterMessageSize", max_filter_bytes, 20, 1 << 20),
    flag!("longPollingEnable", long_polling),
    number!("shortPollingTimeMills", short_polling_ms, 1, 60_000),
    flag!("useServerSideResetOffset", server_side_reset),
    flag!("enablePropertyFilter", property_filter),
    flag!("litePullMessageEnable", lite_pull),
    flag!("rejectTransactionMessage", reject_transactions),
    number!("transactionTimeOut", transaction_timeout_ms, 1, u32::MAX),
    number!("transactionCheckInterval", transaction_check_interval_ms, 1, u32::MAX),
    number!("transactionCheckMax", transaction_check_max, 1, 1_000_000),
    flag!("traceOn", trace_on),
    number!("defaultQueryMaxNum", query_max, 1, 1024),
    flag!("recallMessageEnable", recall),
    number!("fileReservedTime", file_reserved_hours, 1, 1_000_000),
];

impl LiveSettings {
    /// Sets one key from its text.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        let live = LIVE_KEYS.iter().find(|k| k.name == key).ok_or_else(|| SettingError::NotLive(key.to_owned()))?;
        let bad = |expected: String| SettingError::BadValue { key: key.to_owned(), value: value.to_owned(), expected };
        match live.field {
            Field::Flag(field) => {
                *field(self) = match value.trim() {
                    v if v.eq_ignore_ascii_case("true") => true,
                    v if v.eq_ignore_ascii_case("false") => false,
                    _ => return Err(bad("true or false".into())),
                }
            }
            Field::Number(field, min, max) => match value.trim().parse::<u32>() {
                Ok(n) if (min..=max).contains(&n) => *field(self) = n,
                _ => return Err(bad(format!("a number from {min} to {max}"))),
            },
        }
        Ok(())
    }

    /// The text of one live key, `None` when the key is not live.
    pub fn get(&self, key: &str) -> Option<String> {
        let live = LIVE_KEYS.iter().find(|k| k.name == key)?;
        let mut copy = self.clone();
        Some(match live.field {
            Field::Flag(field) => field(&mut copy).to_string(),
            Field::Number(field, ..) => field(&mut copy).to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_live_key_reads_back_what_was_set_and_refuses_what_is_out_of_bounds() {
        for key in LIVE_KEYS {
            let mut settings = LiveSettings::default();
            let first = settings.get(key.name).expect("a live key has a value");
            let other = match key.field {
                Field::Flag(_) => if first == "true" { "false" } else { "true" }.to_owned(),
                Field::Number(_, min, max) => {
                    for bad in [i64::from(max) + 1, i64::from(min) - 1, -1] {
                        assert!(settings.set(key.name, &bad.to_string()).is_err(), "{} = {bad}", key.name);
                    }
                    if first == min.to_string() { max } else { min }.to_string()
                }
            };
            assert_eq!(settings.set(key.name, &other), Ok(()));
            assert_eq!(settings.get(key.name), Some(other.clone()));
            assert_ne!(settings, LiveSettings::default(), "{}", key.name);
            for bad in ["", "1x", "yes", "99999999999999999999"] {
                assert!(settings.set(key.name, bad).is_err(), "{} = {bad:?}", key.name);
            }
            assert_eq!(settings.get(key.name), Some(other), "a refused value changes nothing");
        }
        let fixed = LiveSettings::default().set("storePathRootDir", "/tmp");
        assert_eq!(fixed, Err(SettingError::NotLive("storePathRootDir".into())));
    }
}
