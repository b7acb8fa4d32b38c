//! What a service of a shard may do: read its shard, write records here or in another shard, answer, wait for bytes.
//!
//! Role: the one door through which the broker writes records of its own. Invariants: a record for this shard is staged into
//! the turn's write; one for another shard crosses once and is told back when it is durable there; each [`Waiter`] is told
//! exactly once.

use crate::config::BrokerOptions;
use crate::crossing::{Answers, CoreMessage, Forwarded, ReplyTo, Work};
use crate::parked::{AckGroups, Acknowledge, Parked, Pending};
use crate::response::SendIdentity;
use crate::router::core_of;
use crate::services::{ServiceKind, ServiceRequest};
use crate::snapshot::Snapshot;
use bytes::Bytes;
use message::record::RecordFields;
use message::{PhysicalOffset, QueueOffset};
use reactor::{CoreId, Now};
use smallvec::SmallVec;
use std::net::SocketAddr;
use std::sync::Arc;
use store::{AppendError, Missing, ReadError, ReadStep, Shard, ShardId};

/// Names what a service waits for; `token` is the service's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceTicket {
    /// Which service.
    pub kind: ServiceKind,
    /// Carried back.
    pub token: u64,
}

/// Who is told that a record is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// A client, as of a send: all fields of a send's answer.
    Send(ReplyTo),
    /// A client, with a code and nothing else.
    Code(ReplyTo),
    /// A client whose reply reached who asked: all fields of a send's answer; it is told success also when the record is not
    /// stored.
    Pushed {
        /// The client.
        to: ReplyTo,
        /// The queue of the record.
        queue_id: u32,
    },
    /// Nobody: the client was answered before.
    Nobody,
    /// A service of this shard: when the record is written, and under SYNC_FLUSH durable.
    Service(ServiceTicket),
    /// A service of another shard: when the record is durable.
    Relay {
        /// The core of the other shard.
        core: CoreId,
        /// The other shard.
        shard: ShardId,
        /// What waits there.
        ticket: ServiceTicket,
    },
}

/// Where a record that a service put lies now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its physical offset.
    pub offset: PhysicalOffset,
    /// Its offset in its queue.
    pub queue_offset: QueueOffset,
}

/// See the head of the file.
pub struct ShardContext<'a, 'b> {
    /// Clients, other cores, the time.
    pub answers: &'a mut Answers<'b>,
    /// The shard.
    pub shard: &'a mut Shard,
    /// Its number.
    pub id: ShardId,
    /// The metadata of this core.
    pub snapshot: &'a Arc<Snapshot>,
    /// The broker's address, for records.
    pub store_host: SocketAddr,
    /// What the broker says of itself.
    pub identity: &'a SendIdentity,
    /// The settings that are fixed at start.
    pub options: &'a Arc<BrokerOptions>,
    pub(crate) acks: &'a mut AckGroups,
    pub(crate) parked: &'a mut Parked,
}

impl ShardContext<'_, '_> {
    /// The time of the turn.
    pub fn now(&self) -> Now {
        self.answers.cx.now()
    }

    /// Writes a record of the broker's own into shard `to` (that of its queue), and has `waiter` told. Errors: this shard
    /// takes no record now; nobody will be told. (What another shard refuses is told through the waiter.)
    pub fn put(&mut self, to: ShardId, record: &RecordFields<'_>, waiter: Waiter) -> Result<(), AppendError> {
        if to == self.id {
            return stage(self.shard, self.acks, self.now(), record, waiter);
        }
        let waiter = match waiter {
            Waiter::Service(ticket) => Waiter::Relay { core: self.answers.lanes.own(), shard: self.id, ticket },
            other => other,
        };
        let core = core_of(to, self.answers.lanes.cores());
        if core == self.answers.lanes.own() {
            let record = crate::crossing::OwnedRecord::new(record);
            self.answers.lanes.post(core, CoreMessage::Record { shard: to, record: Box::new(record), waiter });
        } else {
            self.answers.lanes.requests(core).record(to, record, waiter);
        }
        Ok(())
    }

    /// Hands a request that is not answered yet to the service of another shard.
    pub fn forward(&mut self, to: ShardId, reply: ReplyTo, request: ServiceRequest) {
        let core = core_of(to, self.answers.lanes.cores());
        let forwarded = Forwarded { reply, shard: to, work: Work::Service(Box::new(request)) };
        if core == self.answers.lanes.own() {
            self.answers.lanes.post(core, CoreMessage::Forwarded(Box::new(forwarded)));
        } else {
            self.answers.lanes.requests(core).entries.push(forwarded);
        }
    }

    /// The whole record at an offset of this shard.
    pub fn record_at(&mut self, offset: PhysicalOffset) -> ReadStep<Option<Bytes>> {
        self.shard.record_at(offset)
    }

    /// Waits for bytes from the disk: the service's `fetched` is called with the token.
    pub fn park(&mut self, missing: Missing, ticket: ServiceTicket) {
        let id = self.shard.fetch(missing);
        self.parked.park(id, Pending::Service(ticket));
    }

    /// Runs a read to its end, waiting for the disk. For [`super::ShardService::start`] only: a core never waits later on.
    ///
    /// # Errors
    /// The bytes cannot be read.
    pub fn now_or_wait<T>(&mut self, mut step: impl FnMut(&mut Shard) -> ReadStep<T>) -> Result<T, ReadError> {
        loop {
            match step(self.shard) {
                ReadStep::Ready(value) => return Ok(value),
                ReadStep::Missing(missing) => self.shard.fetch_now(missing),
                ReadStep::Failed(error) => return Err(error),
            }
        }
    }
}

/// Stages one record of the broker's own into its shard.
pub(crate) fn stage(
    shard: &mut Shard,
    acks: &mut AckGroups,
    now: Now,
    record: &RecordFields<'_>,
    waiter: Waiter,
) -> Result<(), AppendError> {
    let appended = shard.append(now, std::slice::from_ref(record))?;
    acks.stage(Acknowledge {
        to: waiter,
        queue_id: record.queue_id.unsigned_abs(),
        queue_offset: appended.queue_offset,
        offsets: appended.offsets,
        unique_id: SmallVec::new(),
        recall_handle: None,
        wait: true,
    });
    Ok(())
}
