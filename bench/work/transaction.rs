//! Transactions: a half message, and its end when the half is answered.

use std::collections::VecDeque;
use std::sync::Arc;

use remoting::RequestCode;

use super::send::{SendOptions, properties, send_fields};
use super::target::{Budget, Draws, Messages, Purse};
use crate::engine::{Asked, Now, Outcome, Recorder, Request, Work};
use crate::result::Kind;
use crate::wire::answer::Answer;
use crate::wire::template::{Hole, Part, TEXTS, Template, Values, extend_body, fixed, hole};

/// The flag of a half message.
const PREPARED: i32 = 4;
const COMMIT: u32 = 8;
const ROLLBACK: u32 = 12;
/// Marks the tag of an end.
const IS_END: u64 = 1 << 63;
/// A half, its end, the message, and what a broker notes.
const COPIES: u64 = 4;
const HEADER_BYTES: u64 = 500;

struct Half {
    number: u64,
    topic: u32,
    queue_offset: i64,
    log_offset: i64,
    began_ns: u64,
    bytes: u32,
    is_committed: bool,
}

/// Transactions of one connection.
pub struct Transactions {
    half: Template,
    end: Template,
    group: String,
    draws: Draws,
    purse: Purse,
    /// Part of transactions that are rolled back, 0 to 1.
    rollbacks: f64,
    rolled: f64,
    halves: VecDeque<Half>,
}

impl Transactions {
    /// Transactions of connection `number`; a part of them is rolled back.
    pub fn new(
        options: &SendOptions,
        messages: Messages,
        number: u32,
        budget: &Arc<Budget>,
        rollbacks: f64,
    ) -> Transactions {
        let group = options.groups.first().cloned().unwrap_or_default();
        let more = vec![("TRAN_MSG", Part::Fixed("true".into())), ("PGROUP", Part::Fixed(group.clone()))];
        let parts = properties(!messages.tags.is_empty(), options.keys.then_some("k"), more);
        let half = send_fields(parts, PREPARED, false);
        let key = || vec![Part::Fixed("7F0000010000A13B".into()), Part::Hole(Hole::Unique)];
        let end = [
            fixed("producerGroup", &group),
            hole("topic", Hole::Text(0)),
            hole("tranStateTableOffset", Hole::Number),
            hole("commitLogOffset", Hole::Other),
            hole("commitOrRollback", Hole::Queue),
            fixed("fromTransactionCheck", false),
            ("msgId", key()),
            ("transactionId", key()),
        ];
        Transactions {
            half: Template::new(options.form, RequestCode::SendMessageV2, 0, &half),
            end: Template::new(options.form, RequestCode::EndTransaction, 0, &end),
            group,
            draws: Draws::new(messages, number),
            purse: Purse::new(budget),
            rollbacks,
            rolled: 0.0,
            halves: VecDeque::new(),
        }
    }

    /// Every so many-th is rolled back, so that the share holds for few as for many.
    fn is_next_committed(&mut self) -> bool {
        self.rolled += self.rollbacks;
        let is_rolled = self.rolled >= 1.0;
        if is_rolled {
            self.rolled -= 1.0;
        }
        !is_rolled
    }
}

/// The offset in the log that an offset message id names: its last 16 hexadecimal digits.
fn log_offset(id: &[u8]) -> Option<i64> {
    let digits = id.len().checked_sub(16).filter(|at| *at >= 16).and_then(|at| id.get(at..))?;
    let offset = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    i64::try_from(offset).ok()
}

impl Work for Transactions {
    fn ask(&mut self, opaque: i32, _: u64, now: Now, out: &mut Vec<u8>) -> Option<Request> {
        let most = u64::from(self.draws.messages.sizes.max()) + HEADER_BYTES;
        if !self.purse.pay(1, most, COPIES) {
            return None;
        }
        let draw = self.draws.draw();
        let mut texts: [&[u8]; TEXTS] = [&[]; TEXTS];
        texts[0] = self.draws.topic(&draw).as_bytes();
        texts[1] = self.draws.tag(&draw).as_bytes();
        texts[2] = self.group.as_bytes();
        let (queue, unique, born_ms) = (draw.queue, draw.number, now.wall_ms);
        let start = out.len();
        self.half.write(out, &Values { opaque, queue, unique, born_ms, texts, ..Values::default() }, &[]);
        out.extend_from_slice(self.draws.messages.bodies.get(draw.number, draw.size));
        extend_body(out, start);
        let tag = draw.number & (IS_END - 1);
        Some(Request {
            kind: Kind::Transaction,
            tag,
            messages: draw.topic,
            bytes: draw.size,
            answered: true,
            hold_ms: 0,
        })
    }

    fn follow(&mut self, opaque: i32, _: Now, out: &mut Vec<u8>) -> Option<(Request, u64)> {
        let half = self.halves.pop_front()?;
        let mut texts: [&[u8]; TEXTS] = [&[]; TEXTS];
        texts[0] = self.draws.messages.topics[half.topic as usize].as_bytes();
        let queue = if half.is_committed { COMMIT } else { ROLLBACK };
        let (number, other) = (half.queue_offset, half.log_offset);
        self.end.write(
            out,
            &Values { opaque, queue, unique: half.number, number, other, texts, ..Values::default() },
            &[],
        );
        let (tag, messages) = (half.number | IS_END, u32::from(half.is_committed));
        let request = Request { kind: Kind::Transaction, tag, messages, bytes: half.bytes, answered: true, hold_ms: 0 };
        Some((request, half.began_ns))
    }

    fn answer(&mut self, asked: &Asked, code: i32, answer: &Answer<'_>, _: Now, _: &mut Recorder) -> Outcome {
        let request = &asked.request;
        if code != 0 {
            return Outcome::Refused;
        }
        if request.tag & IS_END != 0 {
            return Outcome::Done { messages: u64::from(request.messages), bytes: u64::from(request.bytes) };
        }
        let offsets = (answer.number("queueOffset"), answer.text("msgId").and_then(log_offset));
        let (Some(queue_offset), Some(log_offset)) = offsets else { return Outcome::Refused };
        let is_committed = self.is_next_committed();
        self.halves.push_back(Half {
            number: request.tag,
            topic: request.messages,
            queue_offset,
            log_offset,
            began_ns: asked.began_ns,
            bytes: request.bytes,
            is_committed,
        });
        Outcome::Nothing
    }

    fn reconnected(&mut self) {
        // The ends that were not sent: the broker would ask, and drops them at the end of the run with the topic.
        self.halves.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_offsets_in_the_log() {
        assert_eq!(log_offset(b"7F00000100002A9F00000000000001FF"), Some(0x1FF));
        let v6 = [&b"00000000000000000000000000000001"[..], b"00002A9F", b"0000000000000010"].concat();
        assert_eq!(log_offset(&v6), Some(16));
        for bad in
            [&b""[..], b"00000000000001FF", b"7F00000100002A9F00000000000001FX", b"7F00000100002A9FFFFFFFFFFFFFFFFF"]
        {
            assert_eq!(log_offset(bad), None);
        }
    }
}
