//! Offsets and times of queues for the tools: 202, 208, 303.

use super::answer::{Asker, Outcome};
use super::queues::{ByQueue, QueuesByShard, TimesByShard};
use super::topic_requests::{queue_json, queue_key};
use super::{Owner, Refusal, Then, Turn};
use crate::gather::{Gathered, QueueState};
use crate::snapshot::Topic;
use remoting::{Command, Json, ResponseCode};
use std::sync::Arc;

/// 202, waiting for bounds.
#[derive(Debug)]
pub(crate) struct TopicStats {
    asker: Asker,
    queues: QueuesByShard,
}

/// 208, waiting for bounds, then for store times.
#[derive(Debug)]
pub(crate) struct ConsumeStats {
    asker: Asker,
    group: String,
    topics: Vec<Arc<Topic>>,
    queues: QueuesByShard,
    times: Option<(ByQueue<QueueState>, TimesByShard)>,
}

/// 303, waiting for bounds, then for store times.
#[derive(Debug)]
pub(crate) struct TimeSpan {
    asker: Asker,
    group: String,
    topic: Arc<Topic>,
    queues: QueuesByShard,
    times: Option<(ByQueue<QueueState>, TimesByShard)>,
}

impl Owner {
    /// 202.
    pub(super) fn topic_stats(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let topic = self.existing_topic(command)?;
        let mut queues = QueuesByShard::default();
        queues.add(&topic, 0..topic.queues());
        self.gather(turn, queues.bounds(), Then::TopicStats(TopicStats { asker: asker.clone(), queues }))?;
        Ok(Outcome::Later)
    }

    /// 208.
    pub(super) fn consume_stats(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let ext = &command.ext;
        let group = ext.text("consumerGroup")?;
        let listed: Vec<&str> =
            ext.get("topicList").unwrap_or_default().split(';').filter(|t| !t.trim().is_empty()).collect();
        let names: Vec<String> = match ext.get("topic").filter(|t| !t.trim().is_empty()) {
            _ if !listed.is_empty() => listed.iter().map(|t| (*t).to_owned()).collect(),
            Some(topic) => vec![topic.to_owned()],
            None => self.offsets.topics_of(group).into_iter().map(str::to_owned).collect(),
        };
        let subscribed = |topic: &str| {
            self.clients.group(group).is_none_or(|g| g.subscriptions.is_empty() || g.subscriptions.contains_key(topic))
        };
        let topics: Vec<Arc<Topic>> = names
            .iter()
            .filter(|t| !listed.is_empty() || subscribed(t))
            .filter_map(|t| self.topic_or_light(t))
            .collect();
        let mut queues = QueuesByShard::default();
        for topic in &topics {
            queues.add(topic, 0..topic.read_queues);
        }
        let stats = ConsumeStats { asker: asker.clone(), group: group.to_owned(), topics, queues, times: None };
        self.gather(turn, stats.queues.bounds(), Then::ConsumeStats(stats))?;
        Ok(Outcome::Later)
    }

    pub(super) fn consume_stats_step(&mut self, turn: &mut Turn<'_>, mut stats: ConsumeStats, gathered: Gathered) {
        let Some((states, times)) = stats.times.take() else {
            let Some(states) = stats.queues.states(gathered) else { return silent(&stats.asker, turn) };
            let mut times = TimesByShard::default();
            for topic in &stats.topics {
                for queue_id in 0..topic.read_queues {
                    let offset = self.offsets.query(&stats.group, &topic.name, queue_id).unwrap_or(0);
                    times.add(topic, queue_id, offset - 1);
                }
            }
            let (asks, asker) = (times.asks(), stats.asker.clone());
            stats.times = Some((states, times));
            return self.next_gather(turn, &asker, asks, Then::ConsumeStats(stats));
        };
        let Some(times) = times.times(gathered) else { return silent(&stats.asker, turn) };
        let entries = states.into_iter().map(|((topic, queue_id), state)| {
            let consumed = self.offsets.query(&stats.group, &topic, queue_id).unwrap_or(0);
            let last = times.get(&(topic.clone(), queue_id, consumed - 1)).copied().unwrap_or(0);
            let value = Json::bean([
                ("brokerOffset", state.bounds.max.to_i64().into()),
                ("consumerOffset", consumed.into()),
                ("lastTimestamp", last.into()),
                ("pullOffset", consumed.into()),
            ]);
            (queue_key(&self.options.broker_name, &topic, queue_id), value)
        });
        let table = Json::Object(entries.collect());
        let body = Json::bean([("consumeTps", 0.0.into()), ("offsetTable", table)]);
        stats.asker.answer(stats.asker.json(&body), turn.out);
    }

    /// 303.
    pub(super) fn time_span(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let topic = self.existing_topic(command)?;
        let group = command.ext.text("group")?.to_owned();
        let mut queues = QueuesByShard::default();
        queues.add(&topic, 0..topic.write_queues);
        let span = TimeSpan { asker: asker.clone(), group, topic, queues, times: None };
        self.gather(turn, span.queues.bounds(), Then::TimeSpan(span))?;
        Ok(Outcome::Later)
    }

    pub(super) fn time_span_step(&mut self, turn: &mut Turn<'_>, mut span: TimeSpan, gathered: Gathered) {
        let Some((states, times)) = span.times.take() else {
            let Some(states) = span.queues.states(gathered) else { return silent(&span.asker, turn) };
            let mut times = TimesByShard::default();
            for ((_, queue_id), state) in &states {
                let consumed = self.offsets.query(&span.group, &span.topic.name, *queue_id).unwrap_or(-1);
                for offset in [state.bounds.min.to_i64(), state.bounds.max.to_i64() - 1, consumed - 1, consumed] {
                    times.add(&span.topic, *queue_id, offset);
                }
            }
            let (asks, asker) = (times.asks(), span.asker.clone());
            span.times = Some((states, times));
            return self.next_gather(turn, &asker, asks, Then::TimeSpan(span));
        };
        let Some(times) = times.times(gathered) else { return silent(&span.asker, turn) };
        let spans = states.into_iter().map(|((topic, queue_id), state)| {
            let at = |offset: i64| times.get(&(topic.clone(), queue_id, offset)).copied();
            let consumed = self.offsets.query(&span.group, &topic, queue_id).unwrap_or(-1);
            let min = at(state.bounds.min.to_i64()).unwrap_or(-1);
            let max = at(state.bounds.max.to_i64() - 1).unwrap_or(-1);
            let consumed_at = if consumed > 0 { at(consumed - 1).unwrap_or(-1) } else { min };
            let delay = match at(consumed) {
                Some(next) if consumed < state.bounds.max.to_i64() => turn.now.wall_ms - next,
                _ => 0,
            };
            Json::bean([
                ("consumeTimeStamp", consumed_at.into()),
                ("delayTime", delay.into()),
                ("maxTimeStamp", max.into()),
                ("messageQueue", queue_json(&self.options.broker_name, &topic, queue_id)),
                ("minTimeStamp", min.into()),
            ])
        });
        let body = Json::bean([("consumeTimeSpanSet", Json::list(spans))]);
        span.asker.answer(span.asker.json(&body), turn.out);
    }

    fn next_gather(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        asks: Vec<(store::ShardId, crate::gather::ShardAsk)>,
        then: Then,
    ) {
        if let Err(refusal) = self.gather(turn, asks, then) {
            asker.answer(asker.refuse(&refusal), turn.out);
        }
    }

    fn existing_topic(&self, command: &Command) -> Result<Arc<Topic>, Refusal> {
        let name = command.ext.text("topic")?;
        let found = self.topic_or_light(name).filter(|_| !self.deletions.contains_key(name));
        let missing = || Refusal::new(ResponseCode::TopicNotExist, format!("topic[{name}] not exist"));
        found.ok_or_else(missing)
    }
}

impl TopicStats {
    pub fn finish(self, broker: &str, gathered: Gathered, turn: &mut Turn<'_>) {
        let Some(states) = self.queues.states(gathered) else { return silent(&self.asker, turn) };
        let entries = states.into_iter().map(|((topic, queue_id), state)| {
            let value = Json::bean([
                ("lastUpdateTimestamp", state.last_store_time_ms.into()),
                ("maxOffset", state.bounds.max.to_i64().into()),
                ("minOffset", state.bounds.min.to_i64().into()),
            ]);
            (queue_key(broker, &topic, queue_id), value)
        });
        let table = Json::Object(entries.collect());
        let body = Json::bean([("offsetTable", table), ("topicPutTps", 0.0.into())]);
        self.asker.answer(self.asker.json(&body), turn.out);
    }
}

fn silent(asker: &Asker, turn: &mut Turn<'_>) {
    let refusal = Refusal::new(ResponseCode::SystemError, "a shard did not answer in time");
    asker.answer(asker.refuse(&refusal), turn.out);
}
