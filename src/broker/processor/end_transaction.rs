//! END_TRANSACTION (37) and RESUME_CHECK_HALF_MESSAGE (323): which shard's half message is meant, and what is asked.

use crate::owner::Refusal;
use crate::services::transaction::halves::End;
use crate::services::transaction::{EndTransaction, TransactionRequest, not_found};
use message::PhysicalOffset;
use message::ids::OffsetMessageId;
use message::sys_flag;
use remoting::scan::EndHeader;
use remoting::{Command, ResponseCode};
use smallvec::SmallVec;
use store::ShardId;

/// What to do with a request.
#[derive(Debug)]
pub enum Admission {
    /// Ask the transactions of this shard.
    Ask(ShardId, TransactionRequest),
    /// The state is not known yet: nothing is done, and nothing answered.
    Nothing,
    /// Answer with this.
    Refuse(Refusal),
}

/// The end of a transaction with this header, in a store of `shards` shards. `frame` is the one that was scanned.
pub fn admit_end(fields: &EndHeader, frame: &[u8], shards: u16) -> Admission {
    match end(fields, frame, shards) {
        Ok(Some((shard, request))) => Admission::Ask(shard, TransactionRequest::End(request)),
        Ok(None) => Admission::Nothing,
        Err(refusal) => Admission::Refuse(refusal),
    }
}

/// A half message that was given up is to be checked again.
pub fn admit_resume(command: &Command, shards: u16) -> Admission {
    match resume(command, shards) {
        Ok((shard, request)) => Admission::Ask(shard, request),
        Err(refusal) => Admission::Refuse(refusal),
    }
}

fn end(fields: &EndHeader, frame: &[u8], shards: u16) -> Result<Option<(ShardId, EndTransaction)>, Refusal> {
    let end = match fields.end {
        0 => return Ok(None),
        sys_flag::TRANSACTION_COMMIT => End::Commit,
        sys_flag::TRANSACTION_ROLLBACK => End::Rollback,
        other => {
            let remark = format!("commitOrRollback field wrong: {other}");
            return Err(Refusal::new(ResponseCode::SystemError, remark));
        }
    };
    let offset = PhysicalOffset::from_i64(fields.log_offset).ok_or_else(not_found)?;
    let request = EndTransaction {
        table_offset: fields.table_offset,
        offset,
        group: SmallVec::from_slice(&fields.producer_group.text(frame)),
        end,
        from_check: fields.from_check,
    };
    Ok(Some((shard_of(offset, shards)?, request)))
}

fn resume(command: &Command, shards: u16) -> Result<(ShardId, TransactionRequest), Refusal> {
    let id = command.ext.text("msgId")?;
    let wrong = || Refusal::new(ResponseCode::SystemError, format!("msgId {id:?} is no offset message id"));
    let offset = OffsetMessageId::parse(id.as_bytes()).ok_or_else(wrong)?.offset;
    Ok((shard_of(offset, shards)?, TransactionRequest::ResumeCheck(offset)))
}

fn shard_of(offset: PhysicalOffset, shards: u16) -> Result<ShardId, Refusal> {
    ShardId::of(offset).filter(|shard| shard.0 < shards).ok_or_else(not_found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use remoting::RequestCode;
    use remoting::scan::{Fields, scan};
    use store::SHARD_SPAN;

    fn request(fields: &[(&str, &str)]) -> Command {
        let all = [
            ("producerGroup", "pg"),
            ("tranStateTableOffset", "3"),
            ("commitLogOffset", "379"),
            ("commitOrRollback", "8"),
        ];
        let replaced = all.into_iter().map(|(name, value)| {
            (name, fields.iter().find(|(other, _)| *other == name).map_or(value, |(_, value)| *value))
        });
        let others = fields.iter().copied().filter(|(name, _)| all.iter().all(|(other, _)| other != name));
        let start = Command::request(RequestCode::EndTransaction, 0);
        replaced
            .chain(others)
            .filter(|(_, value)| !value.is_empty())
            .fold(start, |command, (name, value)| command.with_field(name, value))
    }

    fn code(fields: &[(&str, &str)]) -> Result<(u16, EndTransaction), i32> {
        let frame = request(fields).to_frame();
        let header = match scan(&frame).expect("a frame").fields {
            Fields::End(header) => header,
            // Answered with SYSTEM_ERROR before anything else.
            Fields::Invalid(_) => return Err(1),
            other => panic!("{other:?}"),
        };
        match admit_end(&header, &frame, 2) {
            Admission::Ask(shard, TransactionRequest::End(request)) => Ok((shard.0, request)),
            Admission::Ask(..) => Err(-2),
            Admission::Nothing => Err(-1),
            Admission::Refuse(refusal) => Err(refusal.code),
        }
    }

    #[test]
    fn the_log_offset_names_the_shard() {
        let (shard, first) = code(&[("bname", "broker-a"), ("odd", "x")]).unwrap();
        assert_eq!((shard, first.table_offset, first.offset.0, first.end), (0, 3, 379, End::Commit));
        assert_eq!((&first.group[..], first.from_check), (&b"pg"[..], false));
        let offset = (SHARD_SPAN + 1).to_string();
        let (shard, second) =
            code(&[("commitLogOffset", &offset), ("commitOrRollback", "12"), ("fromTransactionCheck", "true")])
                .unwrap();
        assert_eq!((shard, second.end, second.from_check), (1, End::Rollback, true));
    }

    #[test]
    fn nonsense_is_refused() {
        for fields in [
            ("commitLogOffset", "-1"),
            ("commitLogOffset", "9223372036854775807"),
            ("commitLogOffset", "72057594037927936"),
            ("commitLogOffset", "x"),
            ("commitLogOffset", ""),
            ("tranStateTableOffset", ""),
            ("commitOrRollback", "4"),
            ("commitOrRollback", "99999999999"),
            ("commitOrRollback", ""),
        ] {
            assert_eq!(code(&[fields]).unwrap_err(), 1, "{fields:?}");
        }
        assert_eq!(code(&[("commitOrRollback", "0"), ("commitLogOffset", "-1")]).unwrap_err(), -1);
        assert!(code(&[("producerGroup", "")]).unwrap().1.group.is_empty());
        for id in ["", "zz", "7F000001000086CF", "7F000001000086CF0100000000000000"] {
            let command = Command::request(RequestCode::ResumeCheckHalfMessage, 0).with_field("msgId", id);
            let refused = admit_resume(&command, 2);
            assert!(matches!(refused, Admission::Refuse(Refusal { code: 1, .. })), "{id}: {refused:?}");
        }
    }
}
