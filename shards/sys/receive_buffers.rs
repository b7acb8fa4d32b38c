//! The ring of receive buffers that the kernel picks from.
//!
//! Invariants: a buffer is either the kernel's (in the shared ring) or lent to the caller, never both; `lent` says which.
//! A buffer that was given back is seen by the kernel after `publish`.

use io_uring::IoUring;
use io_uring::types::BufRingEntry;
use memmap2::{MmapMut, MmapRaw};
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

/// The only group of buffers of a ring.
pub(crate) const GROUP: u16 = 0;

/// A received run of bytes in a buffer. Give it back with `recycle`: until then the kernel has one buffer less.
#[derive(Debug)]
#[must_use = "the buffer must be given back"]
pub struct Lent {
    id: u16,
    len: u32,
}

pub(crate) struct ReceiveBuffers {
    /// The entries shared with the kernel; on a page, as it requires.
    entries: MmapRaw,
    /// Resident only as far as it was used.
    memory: MmapRaw,
    count: u16,
    buffer_bytes: usize,
    tail: u16,
    published: u16,
    lent: Vec<bool>,
}

impl ReceiveBuffers {
    pub(crate) fn register(ring: &IoUring, count: u16, buffer_bytes: usize) -> io::Result<ReceiveBuffers> {
        assert!(count.is_power_of_two());
        let entries = MmapRaw::from(MmapMut::map_anon(count as usize * size_of::<BufRingEntry>())?);
        let memory = MmapRaw::from(MmapMut::map_anon(count as usize * buffer_bytes)?);
        // SAFETY: the address is a page-aligned mapping with room for `count` entries. It is unmapped only after the ring
        // is closed: `Ring` drops its `ring` first, and leaks this mapping when receives may be under way.
        unsafe { ring.submitter().register_buf_ring_with_flags(entries.as_ptr() as u64, count, GROUP, 0) }?;
        let lent = vec![true; count as usize];
        let mut buffers = ReceiveBuffers { entries, memory, count, buffer_bytes, tail: 0, published: 0, lent };
        for id in 0..count {
            buffers.recycle(Lent { id, len: 0 });
        }
        buffers.publish();
        Ok(buffers)
    }

    pub(crate) fn lend(&mut self, id: u16, len: u32) -> Lent {
        assert!(!std::mem::replace(&mut self.lent[id as usize], true), "a buffer is lent once");
        assert!(len as usize <= self.buffer_bytes);
        Lent { id, len }
    }

    pub(crate) fn bytes(&self, lent: &Lent) -> &[u8] {
        assert!(self.lent[lent.id as usize], "this ring lent it");
        let start = lent.id as usize * self.buffer_bytes;
        // SAFETY: `id` is below `count` (else the index above fails) and `len` at most `buffer_bytes`, so the range lies in
        // the mapping. The buffer is lent: the kernel does not write to it, and it cannot be given back while the result
        // borrows `self`.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(start), lent.len as usize) }
    }

    pub(crate) fn recycle(&mut self, lent: Lent) {
        assert!(std::mem::replace(&mut self.lent[lent.id as usize], false), "a buffer is given back once");
        let slot = (self.tail & (self.count - 1)) as usize;
        let address = self.memory.as_ptr() as u64 + u64::from(lent.id) * self.buffer_bytes as u64;
        // SAFETY: `slot` is below `count`, so the entry lies inside the mapping, which is aligned for it. The kernel reads
        // entries only up to the published tail, and this one lies beyond it. Field writes go one by one because the last
        // field of entry 0 is the shared tail, which is never written here.
        let entry = unsafe { &mut *self.entries.as_mut_ptr().cast::<BufRingEntry>().add(slot) };
        entry.set_addr(address);
        entry.set_len(self.buffer_bytes as u32);
        entry.set_bid(lent.id);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the kernel what was given back.
    pub(crate) fn publish(&mut self) {
        if self.published == self.tail {
            return;
        }
        self.published = self.tail;
        // SAFETY: the first entry of the mapping holds the tail, 2 bytes aligned, valid for as long as the mapping; the
        // kernel only reads it. Release: it sees the entries before it sees the tail.
        unsafe {
            let tail = BufRingEntry::tail(self.entries.as_ptr().cast());
            AtomicU16::from_ptr(tail.cast_mut()).store(self.tail, Ordering::Release);
        }
    }
}
