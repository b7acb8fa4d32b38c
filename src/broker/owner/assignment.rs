//! POP at the owner: which queues a client works on and how (400 to 402), and what the shards' POP services ask.

use super::answer::{Asker, Outcome, body_object};
use super::topics::TopicWish;
use super::{Contents, Owner, OwnerAction, OwnerFile, Refusal, Turn};
use crate::services::pop::PopCommit;
use crate::snapshot::{Topic, topic_at_group};
use message::names;
use remoting::json::JsonRef;
use remoting::{Command, Json, ResponseCode};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use store::ShardId;

/// What a shard's POP service asks of the owner.
#[derive(Clone, Debug)]
pub enum PopToOwner {
    /// Where a group is in the queues of a topic. Answered by [`OwnerAction::PopOffsets`].
    Offsets {
        /// The shard that asks.
        shard: ShardId,
        /// Carried back.
        ask: u32,
        /// The topic.
        topic: Arc<str>,
        /// The group.
        group: Arc<str>,
    },
    /// Where groups have got to. No answer.
    Commit(Vec<PopCommit>),
    /// A retry or dead-letter topic is needed. No answer: it asks until the topic is there.
    MakeTopic {
        /// Its name.
        topic: String,
        /// Its queues.
        queues: u32,
    },
}

/// How the clients of a group get the messages of a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RequestMode {
    pop: bool,
    /// Java's `popShareQueueNum`: with how many of the following clients a client shares its queues.
    share: i32,
}

/// The modes that were set, and their file.
#[derive(Debug, Default)]
pub(crate) struct RequestModes {
    /// By topic, then group.
    table: BTreeMap<String, BTreeMap<String, RequestMode>>,
    /// Waits for the write that is under way.
    writing: Option<(u64, Vec<Asker>)>,
    /// Waits for the next one.
    next: Vec<Asker>,
}

impl RequestModes {
    /// The modes of a file. Errors: it is no messageRequestMode.json.
    pub fn open(file: Option<&[u8]>) -> Result<Self, String> {
        let mut modes = Self::default();
        let Some(bytes) = file else { return Ok(modes) };
        let json = JsonRef::parse(bytes).map_err(|error| error.to_string())?;
        for (topic, groups) in json.get("messageRequestModeMap").entries() {
            for (group, mode) in groups.entries() {
                let pop = mode.get("mode").as_str().is_some_and(|mode| mode == "POP");
                let share = mode.get("popShareQueueNum").as_i32().unwrap_or(0);
                modes.table.entry(topic.string()).or_default().insert(group.string(), RequestMode { pop, share });
            }
        }
        Ok(modes)
    }

    fn to_json(&self) -> Json {
        let topics = self.table.iter().map(|(topic, groups)| {
            let groups = groups.iter().map(|(group, mode)| {
                let json = Json::bean([
                    ("consumerGroup", group.as_str().into()),
                    ("mode", mode.name().into()),
                    ("popShareQueueNum", mode.share.into()),
                    ("topic", topic.as_str().into()),
                ]);
                (group.clone(), json)
            });
            (topic.clone(), Json::map(groups))
        });
        Json::bean([("messageRequestModeMap", Json::map(topics))])
    }
}

impl RequestMode {
    fn name(self) -> &'static str {
        if self.pop { "POP" } else { "PULL" }
    }
}

impl Owner {
    /// What a shard's POP service asks.
    pub(super) fn pop_asks(&mut self, turn: &mut Turn<'_>, ask: PopToOwner) {
        match ask {
            PopToOwner::Offsets { shard, ask, topic, group } => {
                let known = self.offsets.table().get(&topic_at_group(&topic, &group));
                let offsets = known.into_iter().flatten().map(|(queue_id, offset)| (*queue_id, *offset)).collect();
                turn.out.push(OwnerAction::PopOffsets { shard, ask, offsets });
            }
            PopToOwner::Commit(commits) => commits.into_iter().for_each(|commit| self.commit_of_pop(&commit)),
            PopToOwner::MakeTopic { topic, queues } => {
                let wish = TopicWish::plain(&topic, queues.max(1), 6);
                let blocked = self.deletions.contains_key(&topic) || self.topics.get(&topic).is_some();
                if !blocked && self.topics.ensure(wish, turn.now.wall_ms) {
                    tracing::info!(topic, "a topic was made for messages that come back");
                    self.flow.topics_changed(None);
                }
            }
        }
    }

    fn commit_of_pop(&mut self, commit: &PopCommit) {
        let PopCommit { topic, group, queue_id, offset } = commit;
        let known = self.topics.get(topic).is_some() && !self.deletions.contains_key(&**topic);
        let system = names::is_system_group(group.as_bytes());
        if known && *offset >= 0 && (system || self.groups.get(group).is_some()) {
            self.offsets.commit(group, topic, *queue_id, *offset);
        }
    }

    /// 400.
    pub(super) fn query_assignment(&self, asker: &Asker, command: &Command) -> Result<Outcome, Refusal> {
        let body = body_object(command)?;
        let text = |name: &'static str| {
            let missing = || Refusal::new(ResponseCode::SystemError, format!("the body has no {name}"));
            body.get(name).as_str().ok_or_else(missing)
        };
        let (topic, group, client) = (text("topic")?, text("consumerGroup")?, text("clientId")?);
        let broadcasting = body.get("messageModel").as_str().is_some_and(|model| model == "BROADCASTING");
        let strategy = body.get("strategyName").as_str().unwrap_or_default();
        let mode = self.modes.table.get(&*topic).and_then(|groups| groups.get(&*group)).copied().unwrap_or_default();
        let queues = self.assigned(&topic, &group, &client, &strategy, broadcasting, mode);
        let assignments = queues.map(|queues| {
            Json::list(queues.into_iter().map(|queue_id| {
                let queue = Json::bean([
                    ("brokerName", self.options.broker_name.as_str().into()),
                    ("queueId", queue_id.into()),
                    ("topic", (&*topic).into()),
                ]);
                Json::bean([("messageQueue", queue), ("mode", mode.name().into())])
            }))
        });
        Ok(Outcome::Now(asker.json(&Json::bean([("messageQueueAssignments", assignments.into())]))))
    }

    /// The queues of a client; -1 is any. `None`: it is to keep what it has.
    fn assigned(
        &self,
        topic: &str,
        group: &str,
        client: &str,
        strategy: &str,
        broadcasting: bool,
        mode: RequestMode,
    ) -> Option<BTreeSet<i32>> {
        let queues: Vec<i32> = if names::is_lmq(topic.as_bytes()) {
            vec![0]
        } else {
            let topic: &Arc<Topic> = self.topics.get(topic).filter(|topic| topic.readable())?;
            (0..topic.read_queues as i32).collect()
        };
        if broadcasting {
            return Some(queues.into_iter().collect());
        }
        let members = self.clients.group(group)?.clients();
        let mut clients: Vec<&str> = members.iter().map(|member| &*member.id).collect();
        clients.sort_unstable();
        clients.dedup();
        let allocate: Allocate = match strategy {
            "AVG" => averagely,
            "AVG_BY_CIRCLE" => by_circle,
            _ => return None,
        };
        if client.trim().is_empty() || queues.is_empty() {
            return None;
        }
        let at = clients.iter().position(|other| *other == client);
        Some(if mode.pop {
            shared(at, &queues, clients.len(), mode.share, allocate)
        } else {
            at.map(|at| allocate(at, &queues, clients.len())).unwrap_or_default().into_iter().collect()
        })
    }

    /// 401. Answered when the file has it.
    pub(super) fn set_request_mode(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let body = body_object(command)?;
        let missing = |name: &str| Refusal::new(ResponseCode::SystemError, format!("the body has no {name}"));
        let topic = body.get("topic").as_str().ok_or_else(|| missing("topic"))?.into_owned();
        let group = body.get("consumerGroup").as_str().ok_or_else(|| missing("consumerGroup"))?.into_owned();
        if names::is_retry_topic(topic.as_bytes()) {
            return Err(Refusal::new(ResponseCode::NoPermission, "retry topic is not allowed to set mode"));
        }
        if self.topics.get(&topic).is_none() {
            return Err(Refusal::new(ResponseCode::TopicNotExist, format!("topic[{topic}] not exist")));
        }
        if self.group_or_new(&group, turn.now.wall_ms).is_none() {
            return Err(Refusal::new(ResponseCode::SubscriptionGroupNotExist, "subscription group does not exist"));
        }
        let pop = match body.get("mode").as_str().as_deref() {
            Some("POP") => true,
            Some("PULL") => false,
            _ => return Err(Refusal::new(ResponseCode::SystemError, "the body has no mode POP or PULL")),
        };
        let share = body.get("popShareQueueNum").as_i32().unwrap_or(0);
        self.modes.table.entry(topic).or_default().insert(group, RequestMode { pop, share });
        self.modes.next.push(asker.clone());
        self.write_modes(turn);
        Ok(Outcome::Later)
    }

    /// 402.
    pub(super) fn all_request_modes(&self, asker: &Asker) -> Outcome {
        Outcome::Now(asker.json(&self.modes.to_json()))
    }

    fn write_modes(&mut self, turn: &mut Turn<'_>) {
        if self.modes.writing.is_none() && !self.modes.next.is_empty() {
            let token = self.token();
            self.modes.writing = Some((token, std::mem::take(&mut self.modes.next)));
            let contents = Contents::Bytes(self.modes.to_json().to_pretty());
            turn.out.push(OwnerAction::Persist { token, file: OwnerFile::RequestModes, contents });
        }
    }

    /// A file is written; tells whether it was that of the modes.
    pub(super) fn modes_written(&mut self, turn: &mut Turn<'_>, token: u64, result: &io::Result<()>) -> bool {
        let Some((_, askers)) = self.modes.writing.take_if(|(own, _)| *own == token) else { return false };
        for asker in askers {
            let response = match result {
                Ok(()) => asker.ok(),
                Err(error) => {
                    let remark = format!("the mode could not be stored: {error}");
                    asker.refuse(&Refusal::new(ResponseCode::SystemError, remark))
                }
            };
            asker.answer(response, turn.out);
        }
        self.write_modes(turn);
        true
    }
}

/// The queues of the client at a place among so many.
type Allocate = fn(usize, &[i32], usize) -> Vec<i32>;

/// Java's AVG: neighbouring queues, the first clients one more.
fn averagely(at: usize, queues: &[i32], clients: usize) -> Vec<i32> {
    let (size, rest) = (queues.len() / clients, queues.len() % clients);
    let start = at * size + at.min(rest);
    let count = size + usize::from(at < rest);
    queues[start..start + count].to_vec()
}

/// Java's AVG_BY_CIRCLE: in turn.
fn by_circle(at: usize, queues: &[i32], clients: usize) -> Vec<i32> {
    queues.iter().copied().skip(at).step_by(clients).collect()
}

/// The queues of a client of a POP group: any, or its own and those of the `share` clients behind it.
fn shared(at: Option<usize>, queues: &[i32], clients: usize, share: i32, allocate: Allocate) -> BTreeSet<i32> {
    if share <= 0 || i64::from(share) >= clients as i64 - 1 {
        return BTreeSet::from([-1]);
    }
    let Some(at) = at else { return BTreeSet::new() };
    if clients > queues.len() {
        return BTreeSet::from([queues[at % queues.len()]]);
    }
    (at..=at + share as usize).flat_map(|other| allocate(other % clients, queues, clients)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_divided_as_java_divides_them() {
        let queues: Vec<i32> = (0..8).collect();
        let all = |allocate: Allocate, clients| -> Vec<Vec<i32>> {
            (0..clients).map(|at| allocate(at, &queues, clients)).collect()
        };
        assert_eq!(all(averagely, 3), [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7]]);
        assert_eq!(all(by_circle, 3), [vec![0, 3, 6], vec![1, 4, 7], vec![2, 5]]);
        assert_eq!(all(averagely, 9)[7..], [vec![7], vec![]]);
        assert!(all(by_circle, 9)[8].is_empty());
    }

    #[test]
    fn pop_clients_share() {
        let queues: Vec<i32> = (0..8).collect();
        let of = |at, clients, share| shared(at, &queues, clients, share, averagely).into_iter().collect::<Vec<_>>();
        assert_eq!(
            [of(Some(0), 4, 0), of(Some(0), 4, -1), of(Some(0), 4, 3), of(None, 2, 8)],
            [[-1], [-1], [-1], [-1]]
        );
        assert_eq!(of(Some(0), 4, 1), [0, 1, 2, 3]);
        assert_eq!(of(Some(3), 4, 2), [0, 1, 2, 3, 6, 7], "those behind it, around the end");
        assert_eq!(of(Some(9), 10, 2), [1], "more clients than queues");
        assert!(of(None, 4, 1).is_empty(), "no member");
    }

    #[test]
    fn the_file_has_javas_form_and_reads_back() {
        let mut modes = RequestModes::default();
        modes.table.entry("t".into()).or_default().insert("g".into(), RequestMode { pop: true, share: 8 });
        let text = modes.to_json().to_vec();
        let want = r#"{"messageRequestModeMap":{"t":{"g":{"consumerGroup":"g","mode":"POP","popShareQueueNum":8,"topic":"t"}}}}"#;
        assert_eq!(String::from_utf8(text.clone()).unwrap(), want);
        assert_eq!(RequestModes::open(Some(&text)).unwrap().table, modes.table);
        assert!(RequestModes::open(Some(b"{")).is_err() && RequestModes::open(None).unwrap().table.is_empty());
    }
}
