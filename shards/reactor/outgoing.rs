//! What waits to be sent on one connection.
//!
//! Two buffers: this one, which the service fills, and the one that the kernel works on. A turn's bytes leave as one
//! send; while it is under way the next turns fill this one.

use sys::{Gather, LogSlice};

/// The output queue of a connection.
#[derive(Debug, Default)]
pub struct Outgoing {
    queued: Gather,
    /// Bytes given to the kernel and not yet taken by it.
    in_flight: usize,
}

impl Outgoing {
    /// Bytes to append to. What is there already must stay as it is.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        self.queued.bytes()
    }

    /// Appends bytes of the store, without copying them.
    pub fn slice(&mut self, slice: LogSlice) {
        self.queued.slice(slice);
    }

    /// Bytes queued here or given to the kernel, and not yet taken by it.
    pub fn pending(&self) -> usize {
        self.queued.len() + self.in_flight
    }

    /// For drivers: whether something waits to be given to the kernel.
    pub fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// For drivers: whether a send is under way.
    pub fn is_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    /// For drivers: takes what is queued, to be sent now. Nothing may be under way.
    pub fn take(&mut self) -> Gather {
        assert_eq!(self.in_flight, 0, "one send at a time");
        self.in_flight = self.queued.len();
        std::mem::take(&mut self.queued)
    }

    /// For drivers: the send under way ended.
    pub fn landed(&mut self) {
        self.in_flight = 0;
    }

    pub(crate) fn lend_buffer(&mut self, spare: &mut Vec<Vec<u8>>) {
        if self.queued.capacity() == 0
            && self.queued.is_empty()
            && let Some(buffer) = spare.pop()
        {
            self.queued = Gather::with_buffer(buffer);
        }
    }

    pub(crate) fn return_buffer(&mut self) -> Option<Vec<u8>> {
        (self.queued.is_empty() && self.queued.capacity() > 0).then(|| std::mem::take(&mut self.queued).into_buffer())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_slices_keep_their_order() {
        let mut out = Outgoing::default();
        out.bytes().extend_from_slice(b"head ");
        out.slice(LogSlice::Heap(b"body".as_slice().into()));
        out.slice(LogSlice::Heap(Default::default()));
        out.bytes().extend_from_slice(b" tail");
        assert_eq!(out.pending(), 14);
        let sent = out.take();
        assert_eq!(sent.to_vec().unwrap(), b"head body tail");
        out.bytes().extend_from_slice(b"next");
        assert_eq!(out.pending(), 18, "both buffers count");
        out.landed();
        assert_eq!(out.pending(), 4);
    }
}
