//! How a change becomes an answer: change → files on disk → snapshot at every core → name servers → answer.
//!
//! Changes that arrive while files are being written share the next write. If a write fails, everything since the last good one is
//! taken back and refused.

use super::answer::Asker;
use super::groups::GroupBook;
use super::topics::TopicBook;
use super::{Boot, Contents, Owner, OwnerAction, OwnerFile, Refusal, SendBackJob, Then, Ticket, Turn};
use crate::gather::{Gathered, ShardAnswer, ShardAsk};
use crate::registration::RegisteredTopics;
use crate::snapshot::Snapshot;
use reactor::CoreId;
use remoting::{Command, ResponseCode};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

/// How long an answer waits for the name servers, ms. A silent name server must not make topic changes fail.
const REGISTRATION_WAIT_MS: u64 = 1_500;

/// How often `consumerFilter.json` is written when it is behind, µs (as Java has it).
const FILTER_WRITE_INTERVAL_US: u64 = 10_000_000;

/// Something that waits for a change to be known.
#[derive(Debug)]
pub(crate) enum Held {
    /// An answer.
    Reply(Asker, Command),
    /// An answer that also waits for the name servers.
    Registered(Asker, Command),
    /// A parked request of the hot path.
    Resume(Ticket),
    /// A send-back.
    SendBack(Box<SendBackJob>),
    /// A deletion: the topic is out of every core's snapshot.
    Unpublished(String),
    /// A deletion: the topic is out of the files, too.
    Removed(String),
}

/// What waits for what.
pub(crate) struct Flow {
    /// Number of the last change of topics or groups.
    change: u64,
    dirty: Dirty,
    writing: Option<Writing>,
    durable_topics: TopicBook,
    durable_groups: GroupBook,
    awaiting_write: Vec<(u64, Held)>,
    publish_due: bool,
    topics_published_anew: bool,
    awaiting_publish: Vec<Held>,
    awaiting_seen: VecDeque<(u64, Held)>,
    /// Wait for the turn's journal entries; the flag says that they wait for its snapshot, too.
    awaiting_journal: Vec<(Held, bool)>,
    /// The same, of the entries that were given out.
    journaling: VecDeque<Vec<(Held, bool)>>,
    /// Snapshot version that each core holds.
    seen: Vec<u64>,
    version: u64,
    /// Snapshot whose topics the name servers are to be told once all cores hold it.
    announce_at: Option<u64>,
    announced: u64,
    registered: u64,
    awaiting_registration: Vec<(u64, u64, Asker, Command)>,
}

#[derive(Clone, Copy, Default)]
struct Dirty {
    topics: bool,
    groups: bool,
}

struct Writing {
    through: u64,
    files: BTreeMap<u64, OwnerFile>,
    failed: Option<String>,
    topics: TopicBook,
    groups: GroupBook,
}

impl Flow {
    /// Nothing is published yet; `dirty` says which files (topics, groups) are behind from the start.
    pub fn new(cores: u16, topics: &TopicBook, groups: &GroupBook, dirty: (bool, bool)) -> Self {
        Self {
            change: 0,
            dirty: Dirty { topics: dirty.0, groups: dirty.1 },
            writing: None,
            durable_topics: topics.clone(),
            durable_groups: groups.clone(),
            awaiting_write: Vec::new(),
            publish_due: true,
            topics_published_anew: false,
            awaiting_publish: Vec::new(),
            awaiting_seen: VecDeque::new(),
            awaiting_journal: Vec::new(),
            journaling: VecDeque::new(),
            seen: vec![0; usize::from(cores)],
            version: 0,
            announce_at: None,
            announced: 0,
            registered: 0,
            awaiting_registration: Vec::new(),
        }
    }

    /// A snapshot is due at the end of the turn.
    pub fn publish(&mut self) {
        self.publish_due = true;
    }

    /// A snapshot with other topics is due, although no file changed.
    pub fn publish_topics(&mut self) {
        self.publish_due = true;
        self.topics_published_anew = true;
    }

    /// Held until a snapshot with the state of now is at every core.
    pub fn after_publish(&mut self, held: Held) {
        self.publish_due = true;
        self.awaiting_publish.push(held);
    }

    /// Held until the journal has what was noted; with `publish` also until every core holds the snapshot of this turn.
    pub fn after_journal(&mut self, held: Held, publish: bool) {
        self.publish_due |= publish;
        self.awaiting_journal.push((held, publish));
    }

    /// Topics changed; held until that is on disk and at every core.
    pub fn topics_changed(&mut self, held: Option<Held>) {
        self.dirty.topics = true;
        self.changed(held);
    }

    /// Groups changed; held until that is on disk and at every core.
    pub fn groups_changed(&mut self, held: Option<Held>) {
        self.dirty.groups = true;
        self.changed(held);
    }

    /// Files that are being written, and cores that do not hold the newest snapshot yet.
    pub(super) fn waits_for(&self) -> (Vec<OwnerFile>, Vec<usize>) {
        let files = self.writing.iter().flat_map(|writing| writing.files.values().copied()).collect();
        let behind = self.seen.iter().enumerate().filter(|(_, seen)| **seen < self.version);
        (files, behind.map(|(core, _)| core).collect())
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        let written = self.writing.is_none() && !self.dirty.topics && !self.dirty.groups;
        written && self.awaiting_write.is_empty() && self.awaiting_journal.is_empty() && self.journaling.is_empty()
    }

    fn changed(&mut self, held: Option<Held>) {
        self.change += 1;
        self.awaiting_write.extend(held.map(|h| (self.change, h)));
    }
}

impl Owner {
    /// The end of a turn: timers, the journal, files, the snapshot.
    pub(super) fn turn_end(&mut self, turn: &mut Turn<'_>) {
        if self.boot == Boot::New {
            self.boot = if self.was_clean { Boot::Publishing } else { Boot::Cutting };
            let asked = self.was_clean || self.gather_all(turn, &ShardAsk::AllQueues, Then::CutOffsets).is_ok();
            assert!(asked, "the first gather has room");
        }
        self.expire_clients(turn);
        self.expire_calls(turn);
        for (then, gathered) in self.gathers.expire(turn.now) {
            self.gathered(turn, then, gathered);
        }
        self.expire_registrations(turn);
        self.sample_rates(turn);
        self.write_offsets(turn);
        self.write_delay_offsets(turn);
        self.write_filters(turn);
        self.write_journal(turn);
        self.write_files(turn);
        self.publish_snapshot(turn);
        self.tell_stalls(turn);
    }

    /// Gives what is held free when every change so far is on disk and at every core; now, if all is.
    pub(super) fn when_known(&mut self, turn: &mut Turn<'_>, held: Held) {
        let flow = &mut self.flow;
        if flow.dirty.topics || flow.dirty.groups || flow.writing.is_some() || flow.publish_due {
            flow.awaiting_write.push((flow.change, held));
        } else if flow.seen.iter().any(|v| *v < flow.version) {
            flow.awaiting_seen.push_back((flow.version, held));
        } else {
            self.release(turn, held);
        }
    }

    /// A core holds a snapshot.
    pub(super) fn snapshot_seen(&mut self, turn: &mut Turn<'_>, core: CoreId, version: u64) {
        let Some(seen) = self.flow.seen.get_mut(usize::from(core.0)) else { return };
        *seen = version.max(*seen);
        let all = self.flow.seen.iter().copied().min().unwrap_or(0);
        if self.boot == Boot::Publishing && all >= 1 {
            self.boot = Boot::Done;
            turn.out.push(OwnerAction::Ready);
        }
        if self.flow.announce_at.is_some_and(|v| v <= all) {
            self.flow.announce_at = None;
            self.flow.announced += 1;
            let topics = RegisteredTopics {
                topics: self.flow.durable_topics.table().clone(),
                data_version: self.flow.durable_topics.version(),
                broker_permission: self.settings.broker_permission,
            };
            turn.out.push(OwnerAction::TopicsChanged { version: self.flow.announced, topics });
        }
        while let Some((_, held)) = self.flow.awaiting_seen.pop_front_if(|(v, _)| *v <= all) {
            self.release(turn, held);
        }
    }

    /// A file is written, or not.
    pub(super) fn persisted(&mut self, turn: &mut Turn<'_>, token: u64, result: io::Result<()>) {
        if self.delay_offsets.persisted(token, result.is_ok()) {
            if let Err(error) = result {
                tracing::error!(%error, "delayOffset.json could not be written");
            }
            return;
        }
        if self.offsets_writing == Some(token) {
            self.offsets_writing = None;
            if let Err(error) = result {
                tracing::error!(%error, "consumerOffset.json could not be written; the journal keeps the offsets");
                self.offsets.set_dirty();
            }
            return;
        }
        if self.filters_writing == Some(token) {
            self.filters_writing = None;
            if let Err(error) = result {
                tracing::error!(%error, "consumerFilter.json could not be written");
                self.filters.set_dirty();
            }
            return;
        }
        if self.modes_written(turn, token, &result) {
            return;
        }
        let Some(writing) = &mut self.flow.writing else { return self.tombstone_written(turn, token, result) };
        let Some(file) = writing.files.remove(&token) else { return self.tombstone_written(turn, token, result) };
        if let Err(error) = result {
            tracing::error!(%error, ?file, "a metadata file could not be written");
            writing.failed = Some(error.to_string());
        }
        if !writing.files.is_empty() {
            return;
        }
        let Writing { through, failed, topics, groups, .. } = self.flow.writing.take().expect("was just there");
        match failed {
            None => self.written(turn, through, topics, groups),
            Some(why) => self.take_back(turn, &why),
        }
    }

    /// The journal has the turn's commits, or not.
    pub(super) fn journaled(&mut self, turn: &mut Turn<'_>, result: io::Result<()>) {
        if let Err(error) = &result {
            tracing::error!(%error, "the offset journal could not be written");
        }
        for (held, publish) in self.flow.journaling.pop_front().unwrap_or_default() {
            match &result {
                Err(error) => refuse(turn, held, &error.to_string()),
                Ok(()) if publish => self.flow.awaiting_seen.push_back((self.flow.version, held)),
                Ok(()) => self.release(turn, held),
            }
        }
    }

    /// The name servers know the topics.
    pub(super) fn registered(&mut self, turn: &mut Turn<'_>, version: u64) {
        self.flow.registered = self.flow.registered.max(version);
        self.release_registered(turn);
    }

    /// What the shards say of their queues after an unclean start: stored offsets beyond their ends are cut.
    pub(super) fn cut_offsets(&mut self, gathered: Gathered) {
        let mut ends = BTreeMap::new();
        let answered: Vec<_> = gathered.answers.iter().filter(|(_, a)| a.is_some()).map(|(s, _)| *s).collect();
        for (_, answer) in gathered.answers {
            if let Some(ShardAnswer::AllQueues(queues)) = answer {
                ends.extend(queues.into_iter().map(|(q, b)| ((q.topic, q.queue_id), b.max.to_i64())));
            }
        }
        let stored: std::collections::BTreeSet<(Arc<str>, u32)> = self
            .offsets
            .table()
            .iter()
            .filter_map(|(key, queues)| Some((Arc::<str>::from(key.split_once('@')?.0), queues)))
            .flat_map(|(topic, queues)| queues.keys().map(move |q| (topic.clone(), *q)))
            .collect();
        let mut cut = 0;
        for (topic, queue_id) in stored {
            let known = self.topic_or_light(&topic).is_some_and(|t| answered.contains(&t.shard_of(queue_id)));
            if known {
                let end = ends.get(&(topic.clone(), queue_id)).copied().unwrap_or(0);
                cut += self.offsets.cut(&topic, queue_id, end);
            }
        }
        if cut > 0 {
            tracing::warn!(cut, "consumer offsets beyond the recovered end of their queue were cut");
        }
        self.boot = Boot::Publishing;
    }

    /// Whether all that was asked for is on disk (for an orderly end).
    pub(super) fn is_settled(&self) -> bool {
        self.flow.is_idle() && self.offsets_writing.is_none() && self.filters_writing.is_none()
    }

    fn write_journal(&mut self, turn: &mut Turn<'_>) {
        let entries = self.offsets.take_journal();
        let waiting = std::mem::take(&mut self.flow.awaiting_journal);
        if !entries.is_empty() {
            self.flow.journaling.push_back(waiting);
            turn.out.push(OwnerAction::Journal(entries));
            return;
        }
        // Nothing to write: commits that a pending reset overrules.
        for (held, publish) in waiting {
            if publish { self.flow.awaiting_publish.push(held) } else { self.release(turn, held) }
        }
    }

    fn write_offsets(&mut self, turn: &mut Turn<'_>) {
        let due =
            turn.now.mono_us.saturating_sub(self.offsets_written_us) >= self.options.offset_flush_interval_ms * 1000;
        if due && self.offsets_writing.is_none() {
            self.write_offsets_now(turn);
        }
    }

    /// Writes `consumerOffset.json` (and Java's file of it for light queues) if it is behind. Its journal entries of this turn must be written first.
    pub(super) fn write_offsets_now(&mut self, turn: &mut Turn<'_>) {
        self.offsets_written_us = turn.now.mono_us;
        if !self.offsets.take_dirty() {
            return;
        }
        // The file covers what the new generation of the journal does not hold: write what is noted to the old one.
        self.write_journal(turn);
        self.offsets_version.next(turn.now.wall_ms);
        let plain = self.offsets.encode(self.offsets_version);
        let light = self.light_offsets.then(|| self.offsets.encode_light(self.offsets_version));
        let contents = Contents::Offsets { plain, light };
        let token = self.token();
        self.offsets_writing = Some(token);
        turn.out.push(OwnerAction::Persist { token, file: OwnerFile::ConsumerOffsets, contents });
    }

    fn write_filters(&mut self, turn: &mut Turn<'_>) {
        if turn.now.mono_us.saturating_sub(self.filters_written_us) >= FILTER_WRITE_INTERVAL_US {
            self.filters.clean(turn.now.wall_ms);
            self.write_filters_now(turn);
        }
    }

    /// Writes `consumerFilter.json` if it is behind.
    pub(super) fn write_filters_now(&mut self, turn: &mut Turn<'_>) {
        if self.filters_writing.is_some() {
            return;
        }
        self.filters_written_us = turn.now.mono_us;
        if self.filters.take_dirty() {
            let token = self.token();
            self.filters_writing = Some(token);
            let contents = Contents::Bytes(self.filters.encode());
            turn.out.push(OwnerAction::Persist { token, file: OwnerFile::ConsumerFilters, contents });
        }
    }

    fn write_files(&mut self, turn: &mut Turn<'_>) {
        let mut dirty = self.flow.dirty;
        dirty.topics |= self.topics.placement_changed();
        if self.flow.writing.is_some() {
            return;
        }
        if !dirty.topics && !dirty.groups {
            let held = std::mem::take(&mut self.flow.awaiting_write);
            self.flow.awaiting_publish.extend(held.into_iter().map(|(_, h)| h));
            return;
        }
        let mut files = BTreeMap::new();
        let mut persist = |owner: &mut Self, file, contents| {
            let token = owner.token();
            files.insert(token, file);
            turn.out.push(OwnerAction::Persist { token, file, contents });
        };
        if let Some(bytes) = self.topics.take_placement() {
            persist(self, OwnerFile::Placement, Contents::Bytes(bytes));
        }
        if dirty.topics {
            let book = self.topics.clone();
            persist(self, OwnerFile::Topics, Contents::Topics(book));
        }
        if dirty.groups {
            let book = self.groups.clone();
            persist(self, OwnerFile::Groups, Contents::Groups(book));
        }
        let (topics, groups) = (self.topics.clone(), self.groups.clone());
        self.flow.dirty = Dirty::default();
        self.flow.writing = Some(Writing { through: self.flow.change, files, failed: None, topics, groups });
    }

    fn written(&mut self, turn: &mut Turn<'_>, through: u64, topics: TopicBook, groups: GroupBook) {
        self.flow.topics_published_anew |= self.flow.durable_topics.version() != topics.version();
        self.flow.durable_topics = topics;
        self.flow.durable_groups = groups;
        self.flow.publish_due = true;
        let (done, later) = std::mem::take(&mut self.flow.awaiting_write).into_iter().partition(|(c, _)| *c <= through);
        self.flow.awaiting_write = later;
        let done: Vec<(u64, Held)> = done;
        self.flow.awaiting_publish.extend(done.into_iter().map(|(_, held)| held));
        self.publish_snapshot(turn);
    }

    /// A write failed: nothing since the last good one counts.
    fn take_back(&mut self, turn: &mut Turn<'_>, why: &str) {
        self.topics = self.flow.durable_topics.clone();
        self.groups = self.flow.durable_groups.clone();
        self.flow.dirty = Dirty::default();
        for (_, held) in std::mem::take(&mut self.flow.awaiting_write) {
            if let Held::Removed(topic) = &held {
                self.deletion_failed(turn, &topic.clone(), why);
            }
            refuse(turn, held, why);
        }
        self.flow.publish_due = true;
        self.publish_snapshot(turn);
    }

    fn publish_snapshot(&mut self, turn: &mut Turn<'_>) {
        let first_written = self.flow.version > 0 || (self.flow.writing.is_none() && self.boot == Boot::Publishing);
        let due = self.flow.publish_due || !self.flow.awaiting_publish.is_empty();
        if !due || !first_written {
            return;
        }
        self.flow.publish_due = false;
        self.flow.version += 1;
        let mut topics = self.flow.durable_topics.table().clone();
        for name in self.deletions.keys() {
            topics.remove(name.as_bytes());
        }
        if std::mem::take(&mut self.flow.topics_published_anew) || self.flow.version == 1 {
            self.flow.announce_at = Some(self.flow.version);
        }
        let snapshot = Snapshot {
            version: self.flow.version,
            topics,
            groups: self.flow.durable_groups.table().clone(),
            consumers: self.consumers.clone(),
            resets: self.offsets.resets().clone(),
            forbidden: self.flow.durable_groups.forbidden().clone(),
            settings: self.settings.clone(),
            delays: self.delays.clone(),
            deleting: self.deletions.keys().map(|name| name.as_str().into()).collect(),
            light_queues: self.options.light_queues,
        };
        let version = self.flow.version;
        let waiting = std::mem::take(&mut self.flow.awaiting_publish);
        self.flow.awaiting_seen.extend(waiting.into_iter().map(|h| (version, h)));
        turn.out.push(OwnerAction::Publish(Arc::new(snapshot)));
    }

    fn release(&mut self, turn: &mut Turn<'_>, held: Held) {
        match held {
            Held::Reply(asker, response) => asker.answer(response, turn.out),
            Held::Registered(asker, response) => {
                let deadline = turn.now.mono_us + REGISTRATION_WAIT_MS * 1000;
                self.flow.awaiting_registration.push((self.flow.announced, deadline, asker, response));
                self.release_registered(turn);
            }
            Held::Resume(ticket) => turn.out.push(OwnerAction::Resume { ticket, outcome: Ok(()) }),
            Held::SendBack(job) => turn.out.push(OwnerAction::SendBack { job, outcome: Ok(()) }),
            Held::Unpublished(topic) => self.deletion_unpublished(turn, topic),
            Held::Removed(topic) => self.deletion_removed(turn, topic),
        }
    }

    fn release_registered(&mut self, turn: &mut Turn<'_>) {
        let (registered, none) = (self.flow.registered, self.options.name_servers.is_empty());
        for (_, _, asker, response) in self.flow.awaiting_registration.extract_if(.., |w| none || w.0 <= registered) {
            asker.answer(response, turn.out);
        }
    }

    fn expire_registrations(&mut self, turn: &mut Turn<'_>) {
        let now_us = turn.now.mono_us;
        for (_, _, asker, response) in self.flow.awaiting_registration.extract_if(.., |w| w.1 <= now_us) {
            asker.answer(response, turn.out);
        }
    }
}

/// What waited for a change that could not be made durable.
fn refuse(turn: &mut Turn<'_>, held: Held, why: &str) {
    let refusal = Refusal::new(ResponseCode::SystemError, format!("the change could not be stored: {why}"));
    match held {
        Held::Reply(asker, _) | Held::Registered(asker, _) => asker.answer(asker.refuse(&refusal), turn.out),
        Held::Resume(ticket) => turn.out.push(OwnerAction::Resume { ticket, outcome: Err(refusal) }),
        Held::SendBack(job) => turn.out.push(OwnerAction::SendBack { job, outcome: Err(refusal) }),
        Held::Unpublished(_) | Held::Removed(_) => {}
    }
}
