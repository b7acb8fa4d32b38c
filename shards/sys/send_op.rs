//! One send under way: the bytes, and the vectors by which the kernel finds them.
//!
//! Invariant: between `prepare` and `finish` nothing in it changes or moves (it is boxed, and its buffers are its own),
//! so the pointers handed to the kernel stay good.

use crate::disk::Mapping;
use crate::gather::Gather;
use crate::{LogSlice, MappedRun};
use io_uring::{opcode, squeue, types::Fd};

/// Parts that one call takes (the kernel's UIO_MAXIOV).
const MAX_VECTORS: usize = 1024;

/// All of it or an error code, and no signal when the peer is gone.
const FLAGS: i32 = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;

pub(crate) struct SendOp {
    connection: u32,
    gather: Gather,
    from: usize,
    header: libc::msghdr,
    vectors: Vec<libc::iovec>,
}

/// What the kernel is to be told; points into the `SendOp` that prepared it.
pub(crate) enum Prepared {
    Plain { start: *const u8, len: u32 },
    Vectored(*const libc::msghdr),
}

impl Default for SendOp {
    fn default() -> SendOp {
        // SAFETY: `msghdr` is pointers and integers, for which all zeros (no name, no vectors, no control) is a value.
        let header = unsafe { std::mem::zeroed() };
        SendOp { connection: 0, gather: Gather::default(), from: 0, header, vectors: Vec::new() }
    }
}

impl SendOp {
    pub(crate) fn prepare(self: &mut Box<Self>, connection: u32, gather: Gather, from: usize) -> Prepared {
        assert!(from < gather.len(), "something to send");
        self.connection = connection;
        self.from = from;
        self.gather = gather;
        let (bytes, slices) = self.gather.parts();
        if slices.is_empty() {
            let rest = &bytes[from..];
            return Prepared::Plain { start: rest.as_ptr(), len: rest.len().min(1 << 30) as u32 };
        }
        self.vectors.clear();
        gather_vectors(bytes, slices, from, &mut self.vectors);
        fetch_ahead(&self.vectors);
        self.header.msg_iov = self.vectors.as_mut_ptr();
        self.header.msg_iovlen = self.vectors.len() as _;
        Prepared::Vectored(&raw const self.header)
    }

    pub(crate) fn finish(self: &mut Box<Self>) -> (u32, Gather, usize) {
        self.vectors.clear();
        (self.connection, std::mem::take(&mut self.gather), self.from)
    }
}

impl Prepared {
    pub(crate) fn entry(self, fd: Fd) -> squeue::Entry {
        match self {
            Prepared::Plain { start, len } => opcode::Send::new(fd, start, len).flags(FLAGS).build(),
            Prepared::Vectored(header) => opcode::SendMsg::new(fd, header).flags(FLAGS as u32).build(),
        }
    }
}

fn gather_vectors(bytes: &[u8], slices: &[(usize, LogSlice)], skip: usize, vectors: &mut Vec<libc::iovec>) {
    let mut skip = skip;
    let mut push = |start: *const u8, len: usize| {
        if skip >= len {
            skip -= len;
        } else if vectors.len() < MAX_VECTORS {
            // The kernel only reads through it, whatever the type of the field says.
            let iov_base = start.wrapping_add(skip).cast_mut().cast();
            vectors.push(libc::iovec { iov_base, iov_len: len - skip });
            skip = 0;
        }
    };
    let mut from = 0;
    for (position, slice) in slices {
        push(bytes[from..].as_ptr(), position - from);
        from = *position;
        match slice {
            LogSlice::Heap(heap) => push(heap.as_ptr(), heap.len()),
            LogSlice::Mapped { map, offset, len } => {
                let start = inside(&**map, MappedRun { offset: *offset, len: *len });
                push(start, *len as usize);
            }
            LogSlice::Scattered { map, runs, .. } => {
                for run in runs {
                    push(inside(&**map, *run), run.len as usize);
                }
            }
        }
    }
    push(bytes[from..].as_ptr(), bytes.len() - from);
}

/// Where a range begins, which must lie within the mapping.
fn inside(map: &dyn Mapping, run: MappedRun) -> *const u8 {
    assert!(run.offset.checked_add(u64::from(run.len)).is_some_and(|end| end <= map.len()), "inside the mapping");
    map.as_ptr().wrapping_add(run.offset as usize)
}

/// Has the processor fetch bytes that the kernel is about to copy. The records of one queue lie apart in the log, and the
/// kernel's copy waits for memory at the start of each; fetched ahead they come side by side. No more than its cache keeps.
fn fetch_ahead(vectors: &[libc::iovec]) {
    const MOST_BYTES: usize = 256 << 10;
    let mut left = MOST_BYTES;
    for vector in vectors {
        let bytes = vector.iov_len.min(left);
        left -= bytes;
        #[cfg(target_arch = "x86_64")]
        for at in (0..bytes).step_by(64) {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            // SAFETY: a hint. It reads nothing, and never faults whatever the address is.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(vector.iov_base.cast::<i8>().wrapping_add(at)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(skip: usize) -> (usize, usize) {
        let mut gather = Gather::default();
        for part in 0..700 {
            gather.bytes().extend_from_slice(&[part as u8; 3]);
            gather.slice(LogSlice::Heap(vec![7; 5].into()));
        }
        let (bytes, slices) = gather.parts();
        let mut vectors = Vec::new();
        gather_vectors(bytes, slices, skip, &mut vectors);
        (vectors.len(), vectors.iter().map(|vector| vector.iov_len).sum())
    }

    #[test]
    fn vectors_are_cut_at_the_kernels_limit_and_skip_what_was_sent() {
        assert_eq!(total(0), (1024, 512 * 8));
        assert_eq!(total(8 * 400), (600, 300 * 8));
        assert_eq!(total(8 * 699 + 1), (2, 7));
        assert_eq!(total(8 * 699 + 6), (1, 2));
    }
}
