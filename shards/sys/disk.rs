//! The disk as the store sees it: two small traits, so that a simulated disk can take the place of the real one.
//!
//! Invariants: paths are whole paths (nothing depends on the working folder changing); a rename, a creation or a removal
//! is durable only after [`Disk::sync_dir`] of its folder; written bytes are durable only after [`DiskFile::sync_data`]
//! (or the ring's own sync of [`DiskFile::raw_fd`]) returned without an error. After a failed sync the state of the
//! bytes is unknown and the sync must never be retried on the same pages.

use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;

/// How a file is opened. Every descriptor is close-on-exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Reading only; the file must exist.
    Read,
    /// Reading and writing; the file must exist.
    ReadWrite,
    /// Reading and writing; created empty if absent.
    Create,
    /// Reading and writing; an error (`AlreadyExists`) if the file is there.
    CreateNew,
}

/// One name in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirItem {
    /// The last part of the path. Names that are not UTF-8 are left out of listings: the store makes none.
    pub name: String,
    /// Whether it is a folder.
    pub is_dir: bool,
    /// Length in bytes (0 for folders).
    pub len: u64,
}

/// What is known of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMeta {
    /// Length in bytes.
    pub len: u64,
    /// Whether it is a folder.
    pub is_dir: bool,
    /// Last change, milliseconds since 1970.
    pub modified_ms: i64,
}

/// Room on the file system of a path, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Size of the file system.
    pub total: u64,
    /// What an ordinary user may still write.
    pub available: u64,
}

/// A disk: the real one or a simulated one.
pub trait Disk: Send + Sync {
    /// Opens a file. Errors: as the system reports them, with the path in the text.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;

    /// The items of a folder, in no order. A missing folder is an empty list.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirItem>>;

    /// What is at the path; `None` if nothing.
    fn metadata(&self, path: &Path) -> io::Result<Option<FileMeta>>;

    /// Creates the folder and those above it, and syncs every folder in which an entry was made.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// Creates the folder and those above it, without any sync: for many folders that [`Disk::sync_file_system`] or
    /// syncs of their parents make durable together.
    fn create_dir_all_unsynced(&self, dir: &Path) -> io::Result<()> {
        self.create_dir_all(dir)
    }

    /// Makes everything on the file system of the path durable, files, lengths and names alike: cheaper than thousands
    /// of single syncs. `Unsupported` where there is no such operation.
    fn sync_file_system(&self, _path: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Replaces `to` by `from` in one step. Durable after a sync of the folder(s).
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file. A missing one is an error (`NotFound`).
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a folder and all in it. A missing one is no error.
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// Makes the entries of a folder durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Takes the lock of the file (created if absent) the way Java's `FileLock` on byte 0 does, until the value is
    /// dropped. `WouldBlock` when another holder, in this process or another one, has it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send>>;

    /// Room on the file system that holds the path (or its nearest existing parent).
    fn space(&self, path: &Path) -> io::Result<Space>;

    /// The whole file; `None` if it does not exist.
    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        let file = match self.open(path, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let len = usize::try_from(file.len()?).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while filled < len {
            match file.read_at(&mut bytes[filled..], filled as u64)? {
                0 => break,
                n => filled += n,
            }
        }
        bytes.truncate(filled);
        Ok(Some(bytes))
    }
}

/// An open file. All offsets and lengths in bytes.
pub trait DiskFile: Send + Sync {
    /// Length of the file.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file holds no byte.
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// Cuts the file or extends it with a hole.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Reserves blocks for the range, so that later writes there cannot meet a full disk, and extends the file over it.
    /// The range reads as zeros where nothing was written.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Reads up to `buf.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Reads only what is in the page cache, waiting for no device: `None` when the first byte is not there, fewer bytes
    /// than asked when only the beginning is.
    fn read_at_resident(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>>;

    /// Writes all the bytes, or reports an error: how many went out is then unknown.
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// Makes all written bytes durable (fdatasync).
    fn sync_data(&self) -> io::Result<()>;

    /// Starts write-back of the range, without waiting for it to finish.
    fn start_write_back(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Whether the file may hold a byte that was ever written at or behind `offset`: `false` only when it is known to be a
    /// hole to its end. As fine as the file system's blocks.
    fn has_data_from(&self, _offset: u64) -> io::Result<bool> {
        Ok(true)
    }

    /// Whether the whole range is in the page cache now.
    fn is_resident(&self, offset: u64, len: u64) -> io::Result<bool>;

    /// A read-only view of the first `len` bytes. The view keeps the file open.
    fn map(self: Arc<Self>, len: u64) -> io::Result<Arc<dyn Mapping>>;

    /// The path it was opened by.
    fn path(&self) -> &Path;

    /// The descriptor for operations of the ring; `None` for a simulated file, whose driver calls the methods itself.
    fn raw_fd(&self) -> Option<RawFd>;
}

/// A read-only view of a file's beginning.
pub trait Mapping: Send + Sync {
    /// Bytes in view.
    fn len(&self) -> u64;

    /// Whether nothing is in view.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the view begins: for the kernel only, never to be read by our own code.
    fn as_ptr(&self) -> *const u8;

    /// Reads `buf.len()` bytes through the file: an I/O error or a shortened file is an error, never a signal.
    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
}
