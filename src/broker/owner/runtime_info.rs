//! The broker's runtime table (28): what the tools and the public exporter read. Numbers of the whole log are sums of the shards'
//! local positions; each shard's own stand beside them when there are several.

use super::answer::{Asker, Outcome};
use super::{Owner, OwnerAction, Then, Turn};
use crate::gather::{Gathered, ShardAnswer, ShardAsk};
use crate::stats::Traffic;
use reactor::Now;
use remoting::{Json, ResponseCode};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use store::{ShardId, ShardStatus};

/// How often traffic is sampled for the rates, µs.
const SAMPLE_US: u64 = 10_000_000;
/// Samples kept: the longest window is 600 s.
const SAMPLES: usize = 62;
const DAY_MS: i64 = 86_400_000;

/// What the rates and the totals of days are made from.
#[derive(Debug)]
pub(crate) struct Rates {
    boot: Now,
    samples: VecDeque<(u64, Traffic)>,
    sampled_us: Option<u64>,
    day: i64,
    this_morning: Traffic,
    yesterday_morning: Traffic,
    /// Bytes of the data folder's disk: total and available; `None` until they were measured.
    space: Option<(u64, u64)>,
}

impl Rates {
    pub fn new(now: Now) -> Self {
        Self {
            boot: now,
            samples: VecDeque::new(),
            sampled_us: None,
            day: now.wall_ms.div_euclid(DAY_MS),
            this_morning: Traffic::default(),
            yesterday_morning: Traffic::default(),
            space: None,
        }
    }

    /// The data folder's disk was measured.
    pub fn set_space(&mut self, total: u64, available: u64) {
        self.space = Some((total, available));
    }

    fn sample(&mut self, now: Now, traffic: Traffic) {
        let day = now.wall_ms.div_euclid(DAY_MS);
        if day != self.day {
            self.day = day;
            self.yesterday_morning = std::mem::replace(&mut self.this_morning, traffic);
        }
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((now.mono_us, traffic));
    }

    /// Java's text of a rate: over 10, 60 and 600 seconds.
    fn rate(&self, now: Now, current: &Traffic, of: impl Fn(&Traffic) -> u64) -> String {
        let over = |window_us: u64| {
            let from = now.mono_us.saturating_sub(window_us + SAMPLE_US / 2);
            let zero = (self.boot.mono_us, Traffic::default());
            let (at, before) = self.samples.iter().copied().find(|(at, _)| *at >= from).unwrap_or(zero);
            let seconds = now.mono_us.saturating_sub(at) as f64 / 1e6;
            if seconds < 0.001 { 0.0 } else { of(current).saturating_sub(of(&before)) as f64 / seconds }
        };
        format!("{:?} {:?} {:?}", over(10_000_000), over(60_000_000), over(600_000_000))
    }
}

impl Owner {
    /// 28.
    pub(super) fn runtime_info(&mut self, turn: &mut Turn<'_>, asker: &Asker) -> Outcome {
        match self.gather_all(turn, &ShardAsk::Status, Then::Status(Some(asker.clone()))) {
            Ok(()) => Outcome::Later,
            Err(refusal) => Outcome::Now(asker.refuse(&refusal)),
        }
    }

    /// Now and then: traffic for the rates, and the space of the disk.
    pub(super) fn sample_rates(&mut self, turn: &mut Turn<'_>) {
        let due = self.rates.sampled_us.is_none_or(|at| turn.now.mono_us.saturating_sub(at) >= SAMPLE_US);
        if due {
            self.rates.sampled_us = Some(turn.now.mono_us);
            turn.out.push(OwnerAction::MeasureSpace);
            // Without room for a gather there is no sample this time.
            let _ = self.gather_all(turn, &ShardAsk::Status, Then::Status(None));
        }
    }

    pub(super) fn status_gathered(&mut self, turn: &mut Turn<'_>, asker: Option<Asker>, gathered: Gathered) {
        let complete = gathered.complete();
        let mut shards = Vec::new();
        let mut traffic = Traffic::default();
        for (shard, answer) in gathered.answers {
            if let Some(ShardAnswer::Status(status, counted)) = answer {
                traffic = traffic.plus(*counted);
                shards.push((shard, *status));
            }
        }
        match asker {
            None if complete => self.rates.sample(turn.now, traffic),
            None => {}
            Some(asker) if shards.is_empty() => {
                let silent = asker.response(ResponseCode::SystemError).with_remark("no shard answered in time");
                asker.answer(silent, turn.out);
            }
            Some(asker) => {
                let mut table = self.runtime_table(turn.now, &shards, &traffic);
                if !complete {
                    table.insert("shardsSilent".into(), (usize::from(self.shards) - shards.len()).to_string());
                }
                let body = Json::bean([("table", Json::map(table))]);
                asker.answer(asker.json(&body), turn.out);
            }
        }
    }

    fn runtime_table(
        &self,
        now: Now,
        shards: &[(ShardId, ShardStatus)],
        traffic: &Traffic,
    ) -> BTreeMap<String, String> {
        let mut table = BTreeMap::new();
        let mut put = |key: &str, value: String| {
            table.insert(key.to_owned(), value);
        };
        let sum = |of: &dyn Fn(ShardId, &ShardStatus) -> u64| -> u64 { shards.iter().map(|(id, s)| of(*id, s)).sum() };
        put("brokerVersionDesc", self.options.version_name.clone());
        put("brokerVersion", self.options.version.to_string());
        put("brokerActive", "true".into());
        put("bootTimestamp", self.rates.boot.wall_ms.to_string());
        put("startAcceptSendRequestTimeStamp", "0".into());
        put("runtime", runtime_text((now.mono_us - self.rates.boot.mono_us) / 1_000_000));
        put("commitLogMinOffset", sum(&|id, s| s.min_offset.0 - id.base().0).to_string());
        put("commitLogMaxOffset", sum(&|id, s| s.max_offset.0 - id.base().0).to_string());
        put("remainHowManyDataToFlush", readable(sum(&|_, s| s.dirty_bytes)));
        put("dispatchBehindBytes", "0".into());
        let times = shards.iter().map(|(_, s)| s.earliest_store_timestamp_ms).filter(|t| *t > 0);
        put("earliestMessageTimeStamp", times.min().unwrap_or(-1).to_string());
        put("shards", self.shards.to_string());
        if self.shards > 1 {
            for (id, s) in shards {
                put(&format!("commitLogMinOffset_{id}"), s.min_offset.0.to_string());
                put(&format!("commitLogMaxOffset_{id}"), s.max_offset.0.to_string());
            }
        }
        for (id, s) in shards {
            if let Some(why) = &s.read_only {
                put(&format!("readOnly_{id}"), why.clone());
            }
        }
        let (total, available) = self.rates.space.unwrap_or((0, 0));
        let capacity = format!("Total : {}, Free : {}.", readable(total), readable(available));
        put("commitLogDirCapacity", capacity);
        let used = if total == 0 { 0.0 } else { (total - available.min(total)) as f64 / total as f64 };
        put("commitLogDiskRatio", format!("{used:?}"));
        put("consumeQueueDiskRatio", format!("{used:?}"));
        self.put_traffic(&mut put, now, traffic);
        put_fixed(&mut put);
        table
    }

    fn put_traffic(&self, put: &mut dyn FnMut(&str, String), now: Now, traffic: &Traffic) {
        let rate = |of: fn(&Traffic) -> u64| self.rates.rate(now, traffic, of);
        put("putTps", rate(|t| t.put_messages));
        put("getFoundTps", rate(|t| t.get_found));
        put("getMissTps", rate(|t| t.get_missed));
        put("getTotalTps", rate(|t| t.get_found + t.get_missed));
        let transferred = rate(|t| t.get_messages);
        put("getTransferedTps", transferred.clone());
        put("getTransferredTps", transferred);
        put("putMessageTimesTotal", traffic.put_messages.to_string());
        put("putMessageSizeTotal", traffic.put_bytes.to_string());
        put("putMessageFailedTimes", traffic.put_refused.to_string());
        let average =
            if traffic.put_messages == 0 { 0.0 } else { traffic.put_bytes as f64 / traffic.put_messages as f64 };
        put("putMessageAverageSize", format!("{average:?}"));
        put("msgPutTotalTodayNow", traffic.put_messages.to_string());
        put("msgGetTotalTodayNow", traffic.get_messages.to_string());
        put("msgPutTotalTodayMorning", self.rates.this_morning.put_messages.to_string());
        put("msgGetTotalTodayMorning", self.rates.this_morning.get_messages.to_string());
        put("msgPutTotalYesterdayMorning", self.rates.yesterday_morning.put_messages.to_string());
        put("msgGetTotalYesterdayMorning", self.rates.yesterday_morning.get_messages.to_string());
    }
}

/// What the tools read of Java's thread pools, buffers and timers. There are none here: nothing waits in a queue.
fn put_fixed(put: &mut dyn FnMut(&str, String)) {
    for pool in ["send", "pull", "litePull", "query", "ack"] {
        put(&format!("{pool}ThreadPoolQueueSize"), "0".into());
        put(&format!("{pool}ThreadPoolQueueCapacity"), "10000".into());
        put(&format!("{pool}ThreadPoolQueueHeadWaitTimeMills"), "0".into());
    }
    for zero in [
        "EndTransactionQueueSize",
        "EndTransactionThreadPoolQueueCapacity",
        "dispatchMaxBuffer",
        "getMessageEntireTimeMax",
        "pageCacheLockTimeMills",
        "putMessageEntireTimeMax",
        "remainTransientStoreBufferNumbs",
        "timerCongestNum",
        "timerOffsetBehind",
        "timerReadBehind",
    ] {
        put(zero, "0".into());
    }
    put("timerEnqueueTps", "0.0".into());
    put("timerDequeueTps", "0.0".into());
    let mut times = String::new();
    for bucket in [
        "<=0ms",
        "0~10ms",
        "10~50ms",
        "50~100ms",
        "100~200ms",
        "200~500ms",
        "500ms~1s",
        "1~2s",
        "2~3s",
        "3~4s",
        "4~5s",
        "5~10s",
        "10s~",
    ] {
        write!(times, "[{bucket}]:0 ").expect("a string takes all");
    }
    put("putMessageDistributeTime", times);
}

fn runtime_text(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    format!("[ {days} days, {hours} hours, {minutes} minutes, {} seconds ]", seconds % 60)
}

/// Java's `humanReadableByteCount`.
fn readable(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let exponent = (bytes.ilog2() / 10).min(6);
    let unit = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][exponent as usize - 1];
    format!("{:.1} {unit}B", bytes as f64 / 1024f64.powi(exponent as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_read_as_javas() {
        assert_eq!(readable(0), "0 B");
        assert_eq!(readable(1023), "1023 B");
        assert_eq!(readable(1536), "1.5 KiB");
        assert_eq!(readable(250 << 30), "250.0 GiB");
        assert_eq!(runtime_text(90_061), "[ 1 days, 1 hours, 1 minutes, 1 seconds ]");
    }

    #[test]
    fn rates_cover_their_windows() {
        let at = |s: u64| Now { mono_us: s * 1_000_000, wall_ms: s as i64 * 1000 };
        let put = |n| Traffic { put_messages: n, ..Traffic::default() };
        let mut rates = Rates::new(at(0));
        assert_eq!(rates.rate(at(10), &put(50), |t| t.put_messages), "5.0 5.0 5.0");
        rates.sample(at(10), put(50));
        rates.sample(at(20), put(150));
        assert_eq!(rates.rate(at(30), &put(350), |t| t.put_messages), "20.0 15.0 15.0");
    }
}
