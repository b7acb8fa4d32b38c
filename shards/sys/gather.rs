//! Bytes queued for one connection: own bytes with runs of the store between them, in order.
//!
//! Invariants: positions of slices ascend and never exceed the number of own bytes; nothing is removed except as a
//! whole. It knows nothing of frames.

use crate::LogSlice;

/// An ordered mix of own bytes and slices of the store, sent as one vectored write.
#[derive(Debug, Default)]
pub struct Gather {
    bytes: Vec<u8>,
    /// Each slice stands before `bytes[position]`.
    slices: Vec<(usize, LogSlice)>,
    slice_bytes: usize,
}

impl Gather {
    /// An empty gather that appends to `bytes`, which must be empty: its capacity is reused.
    pub fn with_buffer(bytes: Vec<u8>) -> Gather {
        assert!(bytes.is_empty());
        Gather { bytes, slices: Vec::new(), slice_bytes: 0 }
    }

    /// Own bytes, to append to. What is there must stay as it is.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends a slice of the store.
    pub fn slice(&mut self, slice: LogSlice) {
        if !slice.is_empty() {
            self.slice_bytes += slice.len();
            self.slices.push((self.bytes.len(), slice));
        }
    }

    /// Total number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.slice_bytes
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.slices.is_empty()
    }

    /// Capacity of the own bytes' buffer.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Gives the buffer of own bytes back, emptied, and drops the slices.
    pub fn into_buffer(mut self) -> Vec<u8> {
        self.bytes.clear();
        self.bytes
    }

    /// All bytes in order, copied. Errors: a slice could not be read.
    pub fn to_vec(&self) -> std::io::Result<Vec<u8>> {
        let mut all = Vec::with_capacity(self.len());
        let mut from = 0;
        for (position, slice) in &self.slices {
            all.extend_from_slice(&self.bytes[from..*position]);
            slice.copy_into(&mut all)?;
            from = *position;
        }
        all.extend_from_slice(&self.bytes[from..]);
        Ok(all)
    }

    pub(crate) fn parts(&self) -> (&[u8], &[(usize, LogSlice)]) {
        (&self.bytes, &self.slices)
    }
}
