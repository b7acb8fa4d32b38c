//! Half messages: a send with `TRAN_MSG` is stored for later, in the shard of its queue.
//!
//! Role: what of such a send is refused, and the properties of its record, as Java writes them. A delay that it asks for is
//! checked now and counts from its commit on: the half itself never waits in a delay topic, where it would be lost.

use super::delay::{self, DelayTexts};
use super::send::Asks;
use crate::owner::Refusal;
use crate::services::transaction::records::ROOM_BYTES;
use crate::snapshot::Snapshot;
use message::properties::{MAX_PROPERTIES_BYTES, PropertyList, name};
use remoting::ResponseCode;
use std::net::IpAddr;

/// Whether half messages are taken, and this one with these properties can be delivered later.
///
/// # Errors
/// `rejectTransactionMessage`, or a delay that is refused.
pub fn check(
    properties: &[u8],
    asks: Asks,
    target: delay::Target<'_>,
    snapshot: &Snapshot,
    broker_ip: IpAddr,
    now_ms: i64,
) -> Result<(), Refusal> {
    if snapshot.settings.reject_transactions {
        let remark = format!("the broker[{broker_ip}] sending transaction message is forbidden");
        return Err(Refusal { code: ResponseCode::NoPermission.to_i32(), remark });
    }
    if asks.delay {
        let mut texts = DelayTexts::default();
        let mut copy = PropertyList::parse(properties);
        delay::redirect(&mut copy, target, &snapshot.delays, now_ms, &mut texts)?;
    }
    Ok(())
}

/// Makes the properties those of the half message. `queue_text` is memory for a number.
///
/// # Errors
/// They are too long, or would be once the half is checked, counted and delayed.
pub fn park<'a>(
    list: &mut PropertyList<'a>,
    target: delay::Target<'a>,
    unique_id: &'a [u8],
    queue_text: &'a mut itoa::Buffer,
) -> Result<(), Refusal> {
    if !unique_id.is_empty() {
        list.put(name::TRANSACTION_ID, unique_id);
    }
    list.put(name::REAL_TOPIC, target.topic);
    list.put(name::REAL_QUEUE_ID, queue_text.format(target.queue_id).as_bytes());
    let (bytes, limit) = (list.encoded_len(), MAX_PROPERTIES_BYTES - ROOM_BYTES);
    if bytes > limit {
        let remark = format!("the message is illegal: properties of {bytes} bytes, limit {limit} of a half message");
        return Err(Refusal { code: ResponseCode::MessageIllegal.to_i32(), remark });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LiveSettings;
    use crate::fixtures::{snapshot, topic};
    use std::sync::Arc;
    use store::ShardId;

    const TARGET: delay::Target<'static> = delay::Target { topic: b"orders", queue_id: 3, shard: ShardId(0) };

    #[test]
    fn refusals_come_with_the_send_and_not_with_the_commit() {
        let all = snapshot([topic("orders")], []);
        let outcome = |text: &str, all: &Snapshot| {
            let asks = Asks { delay: true, half: true };
            check(text.as_bytes(), asks, TARGET, all, "127.0.0.1".parse().unwrap(), 1_000)
                .map_err(|refusal| refusal.code)
        };
        for (text, expected) in [
            ("TRAN_MSG\x01true\x02", Ok(())),
            ("DELAY\x013\x02", Ok(())),
            ("DELAY\x01x\x02", Err(13)),
            ("TIMER_DELAY_MS\x015000\x02", Ok(())),
            ("TIMER_DELAY_SEC\x01999999999\x02", Err(13)),
        ] {
            assert_eq!(outcome(text, &all), expected, "{text:?}");
        }
        let settings = LiveSettings { reject_transactions: true, ..LiveSettings::default() };
        let rejecting = Snapshot { settings: Arc::new(settings), ..all };
        assert_eq!(outcome("TRAN_MSG\x01true\x02", &rejecting), Err(16));
    }

    #[test]
    fn a_half_leaves_room_for_what_is_added_later() {
        let (mut longest, mut previous) = (None, 0);
        for value in (MAX_PROPERTIES_BYTES - 300..MAX_PROPERTIES_BYTES).map(|len| vec![b'x'; len]) {
            let text = [b"BIG\x01", &value[..], b"\x02"].concat();
            let mut queue_text = itoa::Buffer::new();
            let mut list = PropertyList::parse(&text);
            match park(&mut list, TARGET, b"id", &mut queue_text) {
                Ok(()) => previous = list.encoded_len(),
                Err(refusal) => {
                    assert_eq!(refusal.code, 13);
                    longest.get_or_insert(previous);
                }
            }
        }
        assert_eq!(longest, Some(MAX_PROPERTIES_BYTES - ROOM_BYTES));
        let added = b"TRANSACTION_CHECK_TIMES\x011000000\x02TIMER_OUT_MS\x019223372036854775807\x02";
        assert!(added.len() <= ROOM_BYTES);
    }
}
