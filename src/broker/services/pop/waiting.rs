//! What waits for records to be written: walks, acknowledgements, check points whose messages come back.
//!
//! Invariants: whoever waits goes on once, when everything that was put for it is told of; what a record says counts in the book
//! from the moment it is written.

use super::Running;
use super::records::Draft;
use super::request::{AckRun, PopRun};
use super::watch::Watches;
use crate::crossing::ReplyTo;
use crate::services::{ServiceKind, ServiceTicket, ShardContext, Stored, Waiter};
use message::properties::PropertiesSource;
use message::record::RecordFields;
use remoting::ResponseCode;
use std::net::SocketAddr;
use store::AppendError;

/// What goes on when records are written.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Records that are not told of yet.
    pub(super) left: u32,
    pub(super) failed: Option<String>,
    pub(super) then: Then,
}

#[derive(Debug)]
pub(super) enum Then {
    /// On with a walk.
    Run(ReplyTo, Box<PopRun>),
    /// On with a batch.
    Acks(ReplyTo, Box<AckRun>),
    /// A bare success.
    Answer(ReplyTo),
    /// The answer to a change of an invisible time.
    Changed { to: ReplyTo, pop_time_ms: i64, invisible_ms: i64, revive_queue: i32 },
    /// What came back is written: its check point ends.
    Revived(u32),
    /// Nothing.
    Nothing,
}

/// What a token stands for: a kind, the waiting that it belongs to, and a number (a check point, or an index of one).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// The record of a check point.
    Check { waiting: u32, slot: u32 },
    /// The record of an acknowledgement of a check point.
    Ack { waiting: u32, slot: u32 },
    /// The state of an ordered queue.
    Order { waiting: u32 },
    /// A message on its way back; its index in its check point.
    Copy { waiting: u32, at: u32 },
    /// A walk that waits for bytes.
    Walk(u32),
    /// A look at due check points that waits for bytes.
    Due,
    /// A look at what somebody else wrote that waits for bytes.
    Foreign,
}

/// Waitings that may be open: the bits of a token.
const MAX_WAITING: usize = 1 << 24;

impl Token {
    fn pack(self) -> u64 {
        let (kind, waiting, number) = match self {
            Self::Check { waiting, slot } => (1u64, waiting, slot),
            Self::Ack { waiting, slot } => (2, waiting, slot),
            Self::Order { waiting } => (3, waiting, 0),
            Self::Copy { waiting, at } => (4, waiting, at),
            Self::Walk(slot) => (5, 0, slot),
            Self::Due => (6, 0, 0),
            Self::Foreign => (7, 0, 0),
        };
        kind << 56 | u64::from(waiting) << 32 | u64::from(number)
    }

    pub(super) fn unpack(token: u64) -> Option<Self> {
        let (waiting, number) = ((token >> 32) as u32 & (MAX_WAITING as u32 - 1), token as u32);
        Some(match token >> 56 {
            1 => Self::Check { waiting, slot: number },
            2 => Self::Ack { waiting, slot: number },
            3 => Self::Order { waiting },
            4 => Self::Copy { waiting, at: number },
            5 => Self::Walk(number),
            6 => Self::Due,
            7 => Self::Foreign,
            _ => return None,
        })
    }

    pub(super) fn waiter(self) -> Waiter {
        Waiter::Service(self.ticket())
    }

    pub(super) fn ticket(self) -> ServiceTicket {
        ServiceTicket { kind: ServiceKind::Pop, token: self.pack() }
    }
}

impl Running {
    /// Appends the draft to a revive queue of this shard (from 0).
    pub(super) fn put(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        revive_queue: u32,
        token: Token,
    ) -> Result<(), AppendError> {
        let queue_id = self.first_queue + revive_queue;
        let record = own_record(cx.store_host, cx.now().wall_ms, &self.topic, queue_id, &self.draft);
        cx.put(cx.id, &record, token.waiter())
    }

    pub(super) fn wait(&mut self, then: Then) -> u32 {
        self.waiting.insert(Waiting { left: 0, failed: None, then }) as u32
    }

    pub(super) fn stored(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        watches: &mut Watches,
        token: Token,
        stored: Result<Stored, String>,
    ) {
        let at = stored.as_ref().map(|stored| stored.queue_offset.0).ok();
        let waiting = match token {
            Token::Check { waiting, slot } => {
                match &stored {
                    Ok(stored) => {
                        self.note_own(
                            self.book.check(slot).map_or(0, |check| check.revive_queue),
                            stored.queue_offset.0,
                        );
                        self.book.written(slot, stored.offset.0, stored.queue_offset.0);
                    }
                    Err(_) => self.book.not_written(slot),
                }
                waiting
            }
            Token::Ack { waiting, slot } => {
                if let (Some(at), Some(check)) = (at, self.book.check(slot)) {
                    let queue = check.revive_queue;
                    self.note_own(queue, at);
                    self.book.ack_written(slot, at);
                }
                waiting
            }
            Token::Order { waiting } => {
                if let Some(at) = at {
                    self.note_own(0, at);
                    self.book.seen(0, at + 1);
                }
                waiting
            }
            Token::Copy { waiting, at: index } => {
                if stored.is_err()
                    && let Some(Waiting { then: Then::Revived(slot), .. }) = self.waiting.get(waiting as usize)
                {
                    self.book.not_revived(*slot, index);
                }
                waiting
            }
            Token::Walk(_) | Token::Due | Token::Foreign => return,
        };
        let Some(of) = self.waiting.get_mut(waiting as usize) else { return };
        of.left -= 1;
        of.failed = of.failed.take().or(stored.err());
        if of.left == 0 {
            self.written(cx, watches, waiting);
        }
    }

    /// Everything that something waited for is written, or refused.
    fn written(&mut self, cx: &mut ShardContext<'_, '_>, watches: &mut Watches, waiting: u32) {
        let Waiting { failed, then, .. } = self.waiting.remove(waiting as usize);
        let refused = |cx: &mut ShardContext<'_, '_>, to: &ReplyTo, why: &str| {
            cx.answers.refuse(to, ResponseCode::ServiceNotAvailable, why);
        };
        match (then, failed) {
            (Then::Run(to, mut run), failed) => {
                run.found.failed = run.found.failed.take().or(failed);
                self.leave(cx, watches, to, run);
            }
            (Then::Acks(to, _) | Then::Answer(to) | Then::Changed { to, .. }, Some(why)) => refused(cx, &to, &why),
            (Then::Acks(to, run), None) => self.next_acks(cx, watches, to, run),
            (Then::Answer(to), None) => crate::response::success(cx.answers, &to),
            (Then::Changed { to, pop_time_ms, invisible_ms, revive_queue }, None) => {
                crate::response::invisible_changed(cx.answers, &to, pop_time_ms, invisible_ms, revive_queue);
            }
            (Then::Revived(slot), failed) => self.revived(cx, slot, failed),
            (Then::Nothing, _) => {}
        }
    }
}

/// A record of the broker's own.
fn own_record<'a>(host: SocketAddr, now_ms: i64, topic: &'a str, queue_id: u32, draft: &'a Draft) -> RecordFields<'a> {
    RecordFields {
        queue_id: queue_id as i32,
        flag: 0,
        sys_flag: 0,
        born_timestamp_ms: now_ms,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        topic: topic.as_bytes(),
        body: &draft.body,
        properties: PropertiesSource::Text(&draft.properties),
    }
}
