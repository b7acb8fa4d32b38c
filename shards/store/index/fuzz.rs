//! What the fuzz targets of the index run: a file or a log of any bytes, in memory. Test support only.

use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use message::PhysicalOffset;
use reactor::{BackgroundTask, Step};
use sys::disk::{DirItem, Disk, DiskFile, FileMeta, Mapping, OpenMode, Space};

use super::file::{FileName, Geometry, HEADER_BYTES, Header, IndexFile};
use super::lookup::{KeyLookup, Walk};
use super::merge::Merge;
use super::rebuild::{LogView, Rebuild};
use super::run::Run;

const GEOMETRY: Geometry = Geometry { slots: 100, items: 200 };
/// More steps than any task over such a file takes.
const MANY_STEPS: usize = 10_000;

/// An index file of these bytes: walks through it, and a merge into it, end.
pub fn file(data: &[u8]) {
    let disk = OneFile::new(data);
    let header = data.first_chunk::<HEADER_BYTES>().map_or(Header::EMPTY, Header::decode);
    let whole = Header { count: header.count.min(GEOMETRY.items), ..header };
    let name = FileName(1);
    let newest = Arc::new(IndexFile { name, file: disk.open(), header: whole });
    for hash in [0, 7, 170_041_853] {
        let query = KeyLookup { hash, begin_ms: i64::MIN, end_ms: i64::MAX, limit: 1000 };
        let below = PhysicalOffset(u64::MAX);
        if let Ok(Ok(found)) =
            Walk::new(GEOMETRY, std::slice::from_ref(&newest), query, below, Vec::new()).run_resident()
        {
            assert!(found.len() < GEOMETRY.items as usize);
        }
    }
    let mut run = Run::new(PhysicalOffset(0));
    (0..100_u64).for_each(|at| run.push((at * 7) as u32, PhysicalOffset(at), at as i64 * 500));
    finish(&mut Merge::new(GEOMETRY, PathBuf::new(), name, (Arc::new(run), 0), Some(newest), true), &disk);
}

/// A log segment of these bytes: reading its keys ends, and only records that belong where they are count.
pub fn scan(data: &[u8]) {
    let disk = OneFile::new(data);
    let log = LogView { dir: PathBuf::new(), segment_bytes: 4096, base: PhysicalOffset(0) };
    finish(&mut Rebuild::new(Arc::new(log), PhysicalOffset(0), PhysicalOffset(4096), 1 << 20), &disk);
}

fn finish(task: &mut dyn BackgroundTask, disk: &OneFile) {
    for _ in 0..MANY_STEPS {
        if !matches!(task.step(disk), Ok(Step::More)) {
            return;
        }
    }
    panic!("the task never ends");
}

/// A disk on which every path is the same file.
struct OneFile(Arc<Mutex<Vec<u8>>>);

impl OneFile {
    fn new(data: &[u8]) -> Self {
        Self(Arc::new(Mutex::new(data.to_vec())))
    }

    fn open(&self) -> Arc<dyn DiskFile> {
        Arc::new(Self(self.0.clone()))
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unsupported<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

impl Disk for OneFile {
    fn open(&self, _path: &Path, _mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        Ok(OneFile::open(self))
    }

    fn list(&self, _dir: &Path) -> io::Result<Vec<DirItem>> {
        Ok(vec![DirItem { name: "00000000000000000000".to_owned(), is_dir: false, len: self.bytes().len() as u64 }])
    }

    fn metadata(&self, _path: &Path) -> io::Result<Option<FileMeta>> {
        Ok(None)
    }

    fn create_dir_all(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        unsupported()
    }

    fn remove_file(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    fn remove_dir_all(&self, _dir: &Path) -> io::Result<()> {
        unsupported()
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, _path: &Path) -> io::Result<Box<dyn Send>> {
        unsupported()
    }

    fn space(&self, _path: &Path) -> io::Result<Space> {
        unsupported()
    }
}

impl DiskFile for OneFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes().len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.bytes().resize(len as usize, 0);
        Ok(())
    }

    fn allocate(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.bytes();
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn read_at_resident(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.read_at(buf, offset).map(Some)
    }

    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut bytes = self.bytes();
        let mut at = offset as usize;
        for buf in bufs {
            let len = bytes.len().max(at + buf.len());
            bytes.resize(len, 0);
            bytes[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn start_write_back(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn is_resident(&self, _offset: u64, _len: u64) -> io::Result<bool> {
        Ok(true)
    }

    fn map(self: Arc<Self>, _len: u64) -> io::Result<Arc<dyn Mapping>> {
        unsupported()
    }

    fn path(&self) -> &Path {
        Path::new("")
    }

    fn raw_fd(&self) -> Option<RawFd> {
        None
    }
}
