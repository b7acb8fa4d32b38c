//! One io_uring for one thread: the operations that a core needs, as a safe completion interface.
//!
//! Invariants: memory given to the kernel belongs to its operation until the completion is reaped: sends own their bytes
//! inside the ring, receives fill buffers that only the ring lends out; a ring that is dropped with operations under
//! way leaks their memory instead of freeing it. A connection, listener or token is the caller's number and comes back
//! with the completion. It takes no decision: what is armed again, and when, is the caller's.

use crate::disk::DiskFile;
use crate::gather::Gather;
use crate::receive_buffers::{Lent, ReceiveBuffers};
use crate::send_op::SendOp;
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

const KIND_SHIFT: u32 = 56;
const ACCEPT: u64 = 1;
const RECEIVE: u64 = 2;
const SEND: u64 = 3;
const SYNC: u64 = 4;
const WRITE_BACK: u64 = 5;
const WAKE: u64 = 6;
const CANCEL: u64 = 7;

/// Sizes of a ring.
#[derive(Clone, Copy, Debug)]
pub struct RingSizes {
    /// Submission entries; a power of two. There are four times as many completion entries.
    pub entries: u32,
    /// Receive buffers; a power of two.
    pub buffers: u16,
    /// Bytes of each.
    pub buffer_bytes: usize,
}

/// What came back from the kernel.
#[derive(Debug)]
pub enum Event {
    /// A connection was accepted, or accepting failed. `armed`: more will come without asking again.
    Accepted {
        /// As given to [`Ring::accept`].
        listener: u32,
        /// The new socket (close-on-exec).
        result: io::Result<OwnedFd>,
        /// Whether accepting goes on.
        armed: bool,
    },
    /// Bytes arrived, the stream ended (`None`), or receiving failed. `armed`: more will come without asking again.
    Received {
        /// As given to [`Ring::receive`].
        connection: u32,
        /// Bytes, to be read with [`Ring::bytes`] and given back with [`Ring::recycle`].
        result: io::Result<Option<Lent>>,
        /// Whether receiving goes on.
        armed: bool,
    },
    /// A send ended: all, a part, or nothing of it was taken.
    Sent {
        /// As given to [`Ring::send`].
        connection: u32,
        /// The bytes, given back.
        gather: Gather,
        /// Where in `gather` this send began.
        from: usize,
        /// How many bytes were taken.
        result: io::Result<usize>,
    },
    /// A sync ended.
    Synced {
        /// As given to [`Ring::sync`].
        token: u64,
        /// Whether the data is durable.
        result: io::Result<()>,
    },
    /// A write-back was started, or could not be.
    WroteBack(io::Result<()>),
    /// The wake-up was notified. `armed`: the next one will be told too.
    Woken {
        /// Whether to call [`Ring::watch`] again.
        armed: bool,
    },
    /// The end of a cancellation; the cancelled operation reports its own end.
    Cancelled,
}

/// Syncs and write-backs under way keep their file open here.
struct FileOp {
    token: u64,
    _file: Arc<dyn DiskFile>,
}

/// A ring, used by the thread that made it.
pub struct Ring {
    ring: IoUring,
    buffers: Option<ReceiveBuffers>,
    sends: Table<Box<SendOp>>,
    /// Boxes of ended sends, used again: a send allocates nothing when the ring is warm.
    #[expect(clippy::vec_box, reason = "the boxes go back to `sends`, where the kernel needs them not to move")]
    spare_sends: Vec<Box<SendOp>>,
    files: Table<FileOp>,
    reaped: VecDeque<cqueue::Entry>,
    /// Receives that the kernel may still fill buffers for.
    receiving: usize,
    /// The kernel accepts submissions of one thread only.
    _one_thread: PhantomData<*const ()>,
}

impl Ring {
    /// A ring for the calling thread. Errors: see [`crate::probe`], which names the reason.
    pub fn new(sizes: RingSizes) -> io::Result<Ring> {
        let ring = builder().setup_cqsize(sizes.entries * 4).build(sizes.entries)?;
        let buffers = ReceiveBuffers::register(&ring, sizes.buffers, sizes.buffer_bytes)?;
        Ok(Ring {
            ring,
            buffers: Some(buffers),
            sends: Table::default(),
            spare_sends: Vec::new(),
            files: Table::default(),
            reaped: VecDeque::new(),
            receiving: 0,
            _one_thread: PhantomData,
        })
    }

    /// Accepts connections until cancelled or failed. The socket must be in blocking mode (the kernel would report
    /// "would block" instead of waiting otherwise) and stay open until then.
    pub fn accept(&mut self, listener: u32, fd: RawFd) -> io::Result<()> {
        let entry = opcode::AcceptMulti::new(Fd(fd)).flags(libc::SOCK_CLOEXEC).build();
        self.push(entry.user_data(tag(ACCEPT, listener)))
    }

    /// Stops accepting; an `Accepted` that is not armed follows.
    pub fn cancel_accept(&mut self, listener: u32) -> io::Result<()> {
        self.push(opcode::AsyncCancel::new(tag(ACCEPT, listener)).build().user_data(tag(CANCEL, 0)))
    }

    /// Receives from a blocking-mode socket until the end of the stream, an error, cancellation, or until the buffers are
    /// used up. At most one at a time for a connection.
    pub fn receive(&mut self, connection: u32, fd: RawFd) -> io::Result<()> {
        let entry = opcode::RecvMulti::new(Fd(fd), crate::receive_buffers::GROUP).build();
        self.push(entry.user_data(tag(RECEIVE, connection)))?;
        self.receiving += 1;
        Ok(())
    }

    /// Stops receiving; a `Received` that is not armed follows, bytes may come before it.
    pub fn cancel_receive(&mut self, connection: u32) -> io::Result<()> {
        self.push(opcode::AsyncCancel::new(tag(RECEIVE, connection)).build().user_data(tag(CANCEL, 0)))
    }

    /// Sends the bytes of `gather` from `from` on, waiting until the peer has room for all of them. Ends early after the
    /// largest number of parts that one call takes, or at a failure. On an error of this call nothing was begun.
    pub fn send(&mut self, connection: u32, fd: RawFd, gather: Gather, from: usize) -> io::Result<()> {
        let mut op = self.spare_sends.pop().unwrap_or_default();
        let prepared = op.prepare(connection, gather, from);
        let index = self.sends.insert(op);
        let entry = prepared.entry(Fd(fd)).user_data(tag(SEND, index));
        self.push(entry).inspect_err(|_| {
            self.sends.remove(index);
        })
    }

    /// Makes the data of the file durable (fdatasync). The file must have a descriptor.
    pub fn sync(&mut self, file: Arc<dyn DiskFile>, token: u64) -> io::Result<()> {
        let fd = file.raw_fd().ok_or(io::ErrorKind::Unsupported)?;
        let index = self.files.insert(FileOp { token, _file: file });
        let entry = opcode::Fsync::new(Fd(fd)).flags(FsyncFlags::DATASYNC).build();
        self.push(entry.user_data(tag(SYNC, index))).inspect_err(|_| {
            self.files.remove(index);
        })
    }

    /// Starts write-back of a range (of all from `offset` on, if `len` is 4 GiB or more).
    pub fn write_back(&mut self, file: Arc<dyn DiskFile>, offset: u64, len: u64) -> io::Result<()> {
        let fd = file.raw_fd().ok_or(io::ErrorKind::Unsupported)?;
        let index = self.files.insert(FileOp { token: 0, _file: file });
        let entry = opcode::SyncFileRange::new(Fd(fd), u32::try_from(len).unwrap_or(0))
            .offset(offset)
            .flags(libc::SYNC_FILE_RANGE_WRITE)
            .build();
        self.push(entry.user_data(tag(WRITE_BACK, index))).inspect_err(|_| {
            self.files.remove(index);
        })
    }

    /// Reports each notification of an event descriptor, which must stay open as long as the ring.
    pub fn watch(&mut self, fd: RawFd) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).multi(true).build();
        self.push(entry.user_data(tag(WAKE, 0)))
    }

    /// One call to the kernel: submits what was asked, and waits for a completion at most as long as `wait` says (`None`:
    /// not at all; then, with nothing to do, there is no call). Being interrupted is no error.
    pub fn enter(&mut self, wait: Option<Duration>) -> io::Result<()> {
        self.buffers_mut().publish();
        let result = match wait {
            None => {
                let submission = self.ring.submission();
                if submission.is_empty() && !submission.taskrun() && !submission.cq_overflow() {
                    return Ok(());
                }
                drop(submission);
                self.ring.submitter().submit_with_args(0, &SubmitArgs::new())
            }
            Some(time) => {
                let time = Timespec::from(time);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        match result {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // Timed out; a signal; completions must be reaped first; memory is short for the moment.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Whether completions are there, or work of the kernel's that the next `enter` turns into some.
    pub fn has_completions(&mut self) -> bool {
        !self.reaped.is_empty() || !self.ring.completion().is_empty() || self.ring.submission().taskrun()
    }

    /// Moves up to `max` completions out of the shared queue; [`Ring::next_event`] gives them. How many are there.
    pub fn reap(&mut self, max: usize) -> usize {
        let room = max.saturating_sub(self.reaped.len());
        self.reaped.extend(self.ring.completion().take(room));
        self.reaped.len()
    }

    /// The next reaped completion.
    pub fn next_event(&mut self) -> Option<Event> {
        let entry = self.reaped.pop_front()?;
        let (kind, number) = (entry.user_data() >> KIND_SHIFT, entry.user_data() as u32);
        let armed = cqueue::more(entry.flags());
        let result = match entry.result() {
            negative if negative < 0 => Err(io::Error::from_raw_os_error(-negative)),
            bytes => Ok(bytes as u32),
        };
        Some(match kind {
            ACCEPT => Event::Accepted { listener: number, result: result.map(accepted_socket), armed },
            RECEIVE => self.received(number, result, armed, entry.flags()),
            SEND => {
                let mut op = self.sends.remove(number);
                let (connection, gather, from) = op.finish();
                self.spare_sends.push(op);
                Event::Sent { connection, gather, from, result: result.map(|n| n as usize) }
            }
            SYNC => Event::Synced { token: self.files.remove(number).token, result: result.map(drop) },
            WRITE_BACK => {
                self.files.remove(number);
                Event::WroteBack(result.map(drop))
            }
            WAKE => Event::Woken { armed },
            CANCEL => Event::Cancelled,
            _ => unreachable!("the kernel returned a tag that was never given: {:#x}", entry.user_data()),
        })
    }

    /// The bytes that were received.
    pub fn bytes(&self, lent: &Lent) -> &[u8] {
        self.buffers.as_ref().expect("present until the drop").bytes(lent)
    }

    /// Gives a receive buffer back; the kernel gets it with the next [`Ring::enter`].
    pub fn recycle(&mut self, lent: Lent) {
        self.buffers_mut().recycle(lent);
    }

    /// Sends under way.
    pub fn sends(&self) -> usize {
        self.sends.len()
    }

    /// Syncs and write-backs under way.
    pub fn file_operations(&self) -> usize {
        self.files.len()
    }

    fn received(&mut self, connection: u32, result: io::Result<u32>, armed: bool, flags: u32) -> Event {
        if !armed {
            self.receiving -= 1;
        }
        let len = *result.as_ref().unwrap_or(&0);
        let lent = cqueue::buffer_select(flags).map(|id| self.buffers_mut().lend(id, len));
        let result = match (result, lent) {
            (Ok(0), lent) => {
                // The end of the stream; its buffer, if one was taken, holds nothing.
                lent.into_iter().for_each(|lent| self.recycle(lent));
                Ok(None)
            }
            (Ok(_), Some(lent)) => Ok(Some(lent)),
            (Ok(_), None) => unreachable!("bytes without a buffer"),
            (Err(error), lent) => {
                lent.into_iter().for_each(|lent| self.recycle(lent));
                Err(error)
            }
        };
        Event::Received { connection, result, armed }
    }

    fn buffers_mut(&mut self) -> &mut ReceiveBuffers {
        self.buffers.as_mut().expect("present until the drop")
    }

    fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        if self.ring.submission().is_full() {
            self.submit_early()?;
        }
        // SAFETY: every entry is built in this module. Its memory is owned by `sends` (boxed, so that it does not move) or
        // by `buffers`, neither of which is freed before the completion was reaped; entries of the other kinds point to
        // no memory. Files are kept open by `files`; a descriptor that a caller closed early gives an error, no more.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| io::ErrorKind::ResourceBusy.into())
    }

    /// Makes room in the submission queue. Completions may have to be reaped before the kernel takes more.
    #[cold]
    fn submit_early(&mut self) -> io::Result<()> {
        for _ in 0..1000 {
            self.enter(None)?;
            if !self.ring.submission().is_full() {
                return Ok(());
            }
            let completions = self.ring.completion();
            self.reaped.extend(completions);
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel ends the operations only some time after the descriptor is closed, and may use their memory until
        // then.
        if self.receiving > 0 {
            std::mem::forget(self.buffers.take());
        }
        std::mem::take(&mut self.sends).into_values().for_each(std::mem::forget);
    }
}

/// The flags that every ring here has; the probe builds one too.
pub(crate) fn builder() -> io_uring::Builder {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all().dontfork();
    builder
}

fn tag(kind: u64, number: u32) -> u64 {
    kind << KIND_SHIFT | u64::from(number)
}

fn accepted_socket(fd: u32) -> OwnedFd {
    // SAFETY: the result of a successful accept is a new descriptor that nobody else has.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

impl AsFd for Ring {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        // SAFETY: the ring's descriptor is open as long as `self.ring`, which the result borrows.
        unsafe { std::os::fd::BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

/// Values by small numbers that are used again.
struct Table<T> {
    values: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { values: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.values[index as usize] = Some(value);
                index
            }
            None => {
                self.values.push(Some(value));
                self.values.len() as u32 - 1
            }
        }
    }

    fn remove(&mut self, index: u32) -> T {
        self.free.push(index);
        self.values[index as usize].take().expect("an operation ends once")
    }

    fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    fn into_values(self) -> impl Iterator<Item = T> {
        self.values.into_iter().flatten()
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
