//! The end marks of a shard's half messages: which are to be written, and up to where none is needed any more. Pure.
//!
//! Role: batches marks to one record of the op queue, in Java's form, and finds the queue offset from which a start (Java's or
//! ours) has to read them. Invariants: a mark leaves only when a record with it is stored; [`Marks::low`] is at or below each
//! record with a mark of a half that is not below the halves' own low. Bounded: of very many records neighbours are joined.

use std::collections::VecDeque;

/// A record takes no more marks once its body has this many bytes (Java's `transactionOpMsgMaxSize`).
const MAX_BODY_BYTES: usize = 4096;
/// Records that are told apart; beyond, neighbours are joined (which only makes `low` lower).
const MAX_RECORDS: usize = 1 << 16;
/// Name of the tag of each mark, and that the writer waits for the flush: the properties of a mark's record, in Java's order.
pub const PROPERTIES: &[u8] = b"WAIT\x01true\x02TAGS\x01d\x02";

/// A record of marks.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Its offset in the op queue.
    at: u64,
    /// The largest half queue offset in it.
    largest: u64,
}

/// See the head of the file.
#[derive(Debug, Default)]
pub struct Marks {
    due: Vec<u64>,
    writing: VecDeque<(u64, Vec<u64>)>,
    next_batch: u64,
    records: VecDeque<Record>,
    /// Offset in the op queue behind the last record.
    end: u64,
}

impl Marks {
    /// None yet; the op queue is read from here on.
    pub fn starting_at(end: u64) -> Self {
        Self { end, ..Self::default() }
    }

    /// A half is to be marked.
    pub fn add(&mut self, half: u64) {
        self.due.push(half);
    }

    /// A half is not to be marked after all: what should have ended it was not stored, and so no mark of it is.
    pub fn withdraw(&mut self, half: u64) {
        for halves in self.writing.iter_mut().map(|(_, halves)| halves).chain([&mut self.due]) {
            halves.retain(|due| *due != half);
        }
    }

    /// What waits to be written.
    pub fn due(&self) -> &[u64] {
        &self.due
    }

    /// Body of the next record, with the number of its batch; `None` when nothing is due. Then say
    /// [`Marks::stored`] or [`Marks::failed`].
    pub fn next_record(&mut self) -> Option<(u64, Vec<u8>)> {
        if self.due.is_empty() {
            return None;
        }
        let (mut body, mut text) = (Vec::new(), itoa::Buffer::new());
        let mut count = 0;
        while count < self.due.len() && body.len() < MAX_BODY_BYTES {
            body.extend_from_slice(text.format(self.due[count]).as_bytes());
            body.push(b',');
            count += 1;
        }
        let rest = self.due.split_off(count);
        let batch = self.next_batch;
        self.next_batch += 1;
        self.writing.push_back((batch, std::mem::replace(&mut self.due, rest)));
        Some((batch, body))
    }

    /// A record is stored at this offset of the op queue. Gives the halves that it marks.
    pub fn stored(&mut self, batch: u64, at: u64) -> Vec<u64> {
        let halves = self.take(batch);
        self.found(at, halves.iter().copied());
        halves
    }

    /// A record was not stored: its marks are due again. Gives their halves.
    pub fn failed(&mut self, batch: u64) -> Vec<u64> {
        let mut halves = self.take(batch);
        let failed = halves.clone();
        halves.append(&mut self.due);
        self.due = halves;
        failed
    }

    fn take(&mut self, batch: u64) -> Vec<u64> {
        let at = self.writing.iter().position(|(number, _)| *number == batch);
        at.and_then(|at| self.writing.remove(at)).map(|(_, halves)| halves).unwrap_or_default()
    }

    /// The op queue has a record here with marks of these halves. Records come in their order.
    pub fn found(&mut self, at: u64, halves: impl Iterator<Item = u64>) {
        self.end = self.end.max(at + 1);
        let Some(largest) = halves.max() else { return };
        self.records.push_back(Record { at, largest });
        if self.records.len() > MAX_RECORDS {
            let joined = self.records.make_contiguous().chunks(2);
            self.records = joined
                .map(|pair| Record {
                    at: pair[0].at,
                    largest: pair.iter().map(|record| record.largest).max().unwrap_or(0),
                })
                .collect();
        }
    }

    /// Where a start has to read marks from, when all halves below `low_half` are ended.
    pub fn low(&mut self, low_half: u64) -> u64 {
        while self.records.pop_front_if(|record| record.largest < low_half).is_some() {}
        self.peek_low(low_half)
    }

    /// The same, without forgetting anything.
    pub fn peek_low(&self, low_half: u64) -> u64 {
        self.records.iter().find(|record| record.largest >= low_half).map_or(self.end, |record| record.at)
    }
}

/// The half queue offsets in the body of a mark's record; what is no number is passed over, as Java does.
pub fn parse(body: &[u8]) -> impl Iterator<Item = u64> {
    body.split(|byte| *byte == b',').filter_map(|text| std::str::from_utf8(text).ok()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_a_turn_share_a_record_of_bounded_size() {
        let mut marks = Marks::starting_at(7);
        assert_eq!(marks.next_record(), None);
        (0..1000).for_each(|half| marks.add(1_000_000 + half));
        let (first, body) = marks.next_record().unwrap();
        assert!(body.len() >= MAX_BODY_BYTES && body.len() < MAX_BODY_BYTES + 21 && body.ends_with(b","));
        let (second, rest) = marks.next_record().unwrap();
        assert_eq!(marks.next_record(), None);
        let all: Vec<u64> = parse(&body).chain(parse(&rest)).collect();
        assert_eq!(all, (1_000_000..1_001_000).collect::<Vec<u64>>());
        assert_eq!(marks.low(0), 7, "nothing is stored yet");
        marks.failed(second);
        assert_eq!(marks.stored(first, 7).len() + marks.due().len(), 1000);
        assert_eq!((marks.low(1_000_000), marks.low(1_001_000)), (7, 8));
    }

    #[test]
    fn the_low_offset_skips_only_what_is_not_needed() {
        let mut marks = Marks::starting_at(0);
        for (at, halves) in [(0, vec![5]), (1, vec![1, 9]), (2, vec![2]), (3, vec![])] {
            marks.found(at, halves.into_iter());
        }
        for (low_half, expected) in [(0, 0), (5, 0), (6, 1), (9, 1), (10, 4)] {
            assert_eq!((marks.peek_low(low_half), marks.low(low_half)), (expected, expected), "{low_half}");
        }
    }

    #[test]
    fn very_many_records_are_joined_downwards() {
        let mut marks = Marks::starting_at(0);
        let last = 3 * MAX_RECORDS as u64;
        (0..last).for_each(|at| marks.found(at, std::iter::once(at)));
        assert!(marks.records.len() <= MAX_RECORDS);
        assert!((last - 100..=last - 1).contains(&marks.low(last - 1)) && marks.low(last) == last);
    }

    #[test]
    fn what_is_no_offset_is_passed_over() {
        assert_eq!(parse(b"1,x,,22,-3,18446744073709551616,7").collect::<Vec<_>>(), [1, 22, 7]);
        assert_eq!(parse(b"42").collect::<Vec<_>>(), [42], "the form of old Java brokers");
    }
}
