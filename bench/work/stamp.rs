//! The time in a message's body, by which its way to the consumer is measured.
//!
//! Layout: 8 bytes number of the run, 8 bytes nanoseconds of the run's clock, big endian. A body of another run, or none of
//! ours, has no time.

/// Bytes of a stamp: the least size of a body that carries one.
pub const STAMP_BYTES: u32 = 16;

/// A stamp.
#[must_use]
pub fn stamp(run: u64, ns: u64) -> [u8; STAMP_BYTES as usize] {
    let mut bytes = [0; STAMP_BYTES as usize];
    bytes[..8].copy_from_slice(&run.to_be_bytes());
    bytes[8..].copy_from_slice(&ns.to_be_bytes());
    bytes
}

/// The time in a body of this run.
#[must_use]
pub fn read(run: u64, body: &[u8]) -> Option<u64> {
    let (of, rest) = body.split_first_chunk::<8>()?;
    let (ns, _) = rest.split_first_chunk::<8>()?;
    (u64::from_be_bytes(*of) == run).then(|| u64::from_be_bytes(*ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_back_by_its_run_alone() {
        let mut body = stamp(7, 1 << 40).to_vec();
        body.extend_from_slice(b"rest");
        assert_eq!((read(7, &body), read(8, &body), read(7, &body[..15])), (Some(1 << 40), None, None));
    }
}
