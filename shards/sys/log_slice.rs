//! Bytes of the store on their way to a socket.
//!
//! A slice holds what it needs (the mapping, or shared heap bytes) until the kernel has taken it. It does not read
//! mapped memory itself: the kernel does, where a fault is an error code.

use crate::disk::Mapping;
use bytes::Bytes;
use std::fmt;
use std::io;
use std::sync::Arc;

/// A run of bytes to be sent: a range of a mapping, or shared heap bytes.
#[derive(Clone)]
pub enum LogSlice {
    /// `len` bytes of the mapping from `offset`; the range must lie within the mapping.
    Mapped {
        /// The view that holds the range.
        map: Arc<dyn Mapping>,
        /// First byte, from the start of the view.
        offset: u64,
        /// Number of bytes.
        len: u32,
    },
    /// Several ranges of one mapping, in this order; each must lie within it. They share one hold of the mapping.
    Scattered {
        /// The view that holds the ranges.
        map: Arc<dyn Mapping>,
        /// The ranges.
        runs: Box<[MappedRun]>,
        /// Number of bytes of all of them.
        len: u32,
    },
    /// Bytes in memory.
    Heap(Bytes),
}

/// A range of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedRun {
    /// First byte, from the start of the view.
    pub offset: u64,
    /// Number of bytes.
    pub len: u32,
}

impl LogSlice {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        match self {
            LogSlice::Mapped { len, .. } | LogSlice::Scattered { len, .. } => *len as usize,
            LogSlice::Heap(bytes) => bytes.len(),
        }
    }

    /// Ranges of a mapping, in order.
    ///
    /// # Panics
    /// They have no byte, or 4 GiB and more.
    pub fn of_runs(map: Arc<dyn Mapping>, runs: &[MappedRun]) -> LogSlice {
        if let [MappedRun { offset, len }] = *runs {
            return LogSlice::Mapped { map, offset, len };
        }
        let len = runs.iter().try_fold(0u32, |sum, run| sum.checked_add(run.len)).filter(|len| *len > 0);
        LogSlice::Scattered { map, runs: runs.into(), len: len.expect("between one byte and 4 GiB") }
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the bytes to `out`. On an error (of the device, or of a file that was shortened) `out` is as before.
    pub fn copy_into(&self, out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            LogSlice::Heap(bytes) => {
                out.extend_from_slice(bytes);
                Ok(())
            }
            LogSlice::Mapped { map, offset, len } => {
                copy_runs(&**map, &[MappedRun { offset: *offset, len: *len }], out)
            }
            LogSlice::Scattered { map, runs, .. } => copy_runs(&**map, runs, out),
        }
    }
}

fn copy_runs(map: &dyn Mapping, runs: &[MappedRun], out: &mut Vec<u8>) -> io::Result<()> {
    let before = out.len();
    for run in runs {
        let start = out.len();
        out.resize(start + run.len as usize, 0);
        if let Err(error) = map.read(&mut out[start..], run.offset) {
            out.truncate(before);
            return Err(error);
        }
    }
    Ok(())
}

impl fmt::Debug for LogSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogSlice::Mapped { offset, len, .. } => write!(f, "Mapped({offset}+{len})"),
            LogSlice::Scattered { runs, len, .. } => write!(f, "Scattered({}, {len})", runs.len()),
            LogSlice::Heap(bytes) => write!(f, "Heap({})", bytes.len()),
        }
    }
}
