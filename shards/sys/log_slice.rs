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
    /// Bytes in memory.
    Heap(Bytes),
}

impl LogSlice {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        match self {
            LogSlice::Mapped { len, .. } => *len as usize,
            LogSlice::Heap(bytes) => bytes.len(),
        }
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
                let start = out.len();
                out.resize(start + *len as usize, 0);
                let result = map.read(&mut out[start..], *offset);
                if result.is_err() {
                    out.truncate(start);
                }
                result
            }
        }
    }
}

impl fmt::Debug for LogSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogSlice::Mapped { offset, len, .. } => write!(f, "Mapped({offset}+{len})"),
            LogSlice::Heap(bytes) => write!(f, "Heap({})", bytes.len()),
        }
    }
}
