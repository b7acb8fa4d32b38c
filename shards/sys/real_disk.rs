//! The real disk.
//!
//! Invariants: descriptors are close-on-exec; nothing here writes through a mapping or reads one (a mapping is only a
//! place for the kernel to send from); a write is whole or an error. It keeps no cache and takes no decision.

use crate::disk::{DirItem, Disk, DiskFile, FileMeta, Mapping, OpenMode, Space};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Vectors that one `pwritev` takes (the kernel's UIO_MAXIOV).
const MAX_VECTORS: usize = 1024;

/// The file systems of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_CLOEXEC);
        match mode {
            OpenMode::Read => &mut options,
            OpenMode::ReadWrite => options.write(true),
            OpenMode::Create => options.write(true).create(true).truncate(false),
            OpenMode::CreateNew => options.write(true).create_new(true),
        };
        let file = options.open(path).map_err(|error| at(path, "open", error))?;
        Ok(Arc::new(RealFile { file, path: path.to_owned() }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirItem>> {
        let items = match std::fs::read_dir(dir) {
            Ok(items) => items,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(at(dir, "list", error)),
        };
        let mut list = Vec::new();
        for item in items {
            let item = item.map_err(|error| at(dir, "list", error))?;
            // A folder is one without another look at it: there may be 90,000.
            if item.file_type().is_ok_and(|kind| kind.is_dir()) {
                list.extend(item.file_name().into_string().ok().map(|name| DirItem { name, is_dir: true, len: 0 }));
                continue;
            }
            let meta = match std::fs::metadata(item.path()) {
                Ok(meta) => meta,
                // Removed since, or a dangling link: not there.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(at(&item.path(), "examine", error)),
            };
            let Ok(name) = item.file_name().into_string() else { continue };
            let is_dir = meta.is_dir();
            list.push(DirItem { name, is_dir, len: if is_dir { 0 } else { meta.len() } });
        }
        Ok(list)
    }

    fn metadata(&self, path: &Path) -> io::Result<Option<FileMeta>> {
        match std::fs::metadata(path) {
            Ok(meta) => {
                let since_1970 = meta.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
                let modified_ms = since_1970.map_or(0, |age| age.as_millis() as i64);
                Ok(Some(FileMeta { len: meta.len(), is_dir: meta.is_dir(), modified_ms }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(at(path, "examine", error)),
        }
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut missing = Vec::new();
        for ancestor in dir.ancestors() {
            // A relative path ends in "", which is the working folder.
            if ancestor.as_os_str().is_empty() || self.metadata(ancestor)?.is_some_and(|meta| meta.is_dir) {
                break;
            }
            missing.push(ancestor);
        }
        for folder in missing.into_iter().rev() {
            match std::fs::create_dir(folder) {
                Ok(()) => {}
                // Made by another thread meanwhile.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
                Err(error) => return Err(at(folder, "create folder", error)),
            }
            self.sync_dir(parent(folder))?;
        }
        Ok(())
    }

    fn create_dir_all_unsynced(&self, dir: &Path) -> io::Result<()> {
        std::fs::create_dir_all(dir).map_err(|error| at(dir, "create folder", error))
    }

    fn sync_file_system(&self, path: &Path) -> io::Result<()> {
        let file = File::open(path).map_err(|error| at(path, "open", error))?;
        rustix::fs::syncfs(&file).map_err(|error| at(path, "sync the file system of", error.into()))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to).map_err(|error| at(from, "rename", error))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path).map_err(|error| at(path, "remove", error))
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        match std::fs::remove_dir_all(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(dir, "remove folder", error)),
            _ => Ok(()),
        }
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let folder = File::open(dir).map_err(|error| at(dir, "open folder", error))?;
        folder.sync_all().map_err(|error| at(dir, "sync folder", error))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|error| at(path, "open", error))?;
        lock_first_byte(&file).map_err(|error| at(path, "lock", error))?;
        Ok(Box::new(file))
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let existing = path.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("."));
        let stat = rustix::fs::statvfs(existing).map_err(|error| at(existing, "examine", error.into()))?;
        Ok(Space { total: stat.f_blocks * stat.f_frsize, available: stat.f_bavail * stat.f_frsize })
    }
}

/// An open file of the real disk.
#[derive(Debug)]
struct RealFile {
    file: File,
    path: PathBuf,
}

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        loop {
            match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, len) {
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP) => return self.allocate_by_writing(offset, len),
                result => return Ok(result?),
            }
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.file.read_at(&mut buf[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn read_at_resident(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        let len = buf.len() as u64;
        loop {
            let mut target = [IoSliceMut::new(buf)];
            match rustix::io::preadv2(&self.file, &mut target, offset, ReadWriteFlags::NOWAIT) {
                Ok(n) => return Ok(Some(n)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                // The file system cannot tell (some network and overlay ones): ask for residency, then read.
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) if self.is_resident(offset, len)? => {
                    return self.read_at(buf, offset).map(Some);
                }
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut written = 0;
        if bufs.len() <= MAX_VECTORS {
            written = self.write_some(bufs, offset)?;
        }
        while written < total {
            // Rare: a signal, a nearly full disk, or more vectors than one call takes.
            let rest = vectors_from(bufs, written);
            written += match self.write_some(&rest[..rest.len().min(MAX_VECTORS)], offset + written as u64)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => n,
            };
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn start_write_back(&self, offset: u64, len: u64) -> io::Result<()> {
        let (start, bytes) = (signed(offset)?, signed(len)?);
        // SAFETY: no memory is passed; the descriptor is open for as long as `self` lives.
        let result = unsafe { libc::sync_file_range(self.file.as_raw_fd(), start, bytes, libc::SYNC_FILE_RANGE_WRITE) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn has_data_from(&self, offset: u64) -> io::Result<bool> {
        // Reads and writes name their place, so that nobody minds where the descriptor stands.
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(offset)) {
            Err(Errno::NXIO) => Ok(false),
            // Found, or the file system does not tell.
            _ => Ok(true),
        }
    }

    fn is_resident(&self, offset: u64, len: u64) -> io::Result<bool> {
        if len == 0 {
            return Ok(true);
        }
        match resident_by_cachestat(&self.file, offset, len) {
            Ok(resident) => Ok(resident),
            // Older than Linux 6.5, filtered by a container, or not ours to ask.
            Err(_) => resident_by_mincore(&self.file, offset, len),
        }
    }

    fn map(self: Arc<Self>, len: u64) -> io::Result<Arc<dyn Mapping>> {
        let bytes = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let view = MmapOptions::new()
            .len(bytes)
            .map_raw_read_only(&self.file)
            .map_err(|error| at(&self.path, "map", error))?;
        Ok(Arc::new(RealMapping { view, file: self }))
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn raw_fd(&self) -> Option<RawFd> {
        Some(self.file.as_raw_fd())
    }
}

impl RealFile {
    fn write_some(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        loop {
            match rustix::io::pwritev(&self.file, bufs, offset) {
                Err(Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }

    /// For file systems without `fallocate`: zeros, only past the present end, so that nothing written is touched.
    fn allocate_by_writing(&self, offset: u64, len: u64) -> io::Result<()> {
        let zeros = vec![0; 1 << 20];
        let end = offset + len;
        let mut position = self.len()?.max(offset);
        while position < end {
            let step = zeros.len().min((end - position) as usize);
            self.write_at(&[IoSlice::new(&zeros[..step])], position)?;
            position += step as u64;
        }
        Ok(())
    }
}

/// A view for the kernel to send from. Reads of our own go through the file.
struct RealMapping {
    view: MmapRaw,
    file: Arc<RealFile>,
}

impl Mapping for RealMapping {
    fn len(&self) -> u64 {
        self.view.len() as u64
    }

    fn as_ptr(&self) -> *const u8 {
        self.view.as_ptr()
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.len()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "beyond the mapping"));
        }
        match self.file.read_at(buf, offset)? {
            n if n == buf.len() => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than its mapping")),
        }
    }
}

/// Takes the lock of byte 0 as an open-file-description lock: Java's `FileLock` (a process lock) and ours exclude each
/// other, and unlike a process lock it is not lost when this process closes another descriptor of the file.
fn lock_first_byte(file: &File) -> io::Result<()> {
    // SAFETY: `flock` is plain integers, for which all zeros is a value.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = libc::F_WRLCK as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    range.l_start = 0;
    range.l_len = 1;
    // SAFETY: `range` is a valid `flock` that lives over the call; the descriptor is open.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) };
    match result {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EACCES) => Err(io::ErrorKind::WouldBlock.into()),
            error => Err(error),
        },
    }
}

fn resident_by_cachestat(file: &File, offset: u64, len: u64) -> io::Result<bool> {
    #[repr(C)]
    struct Range {
        offset: u64,
        len: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Counts {
        cached: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    const CACHESTAT: libc::c_long = 451;
    let range = Range { offset, len };
    let mut counts = Counts::default();
    // SAFETY: both structures have the kernel's layout (five u64, two u64) and live over the call; flags are 0.
    let result =
        unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut counts, 0 as libc::c_uint) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let page = rustix::param::page_size() as u64;
    Ok(counts.cached >= (offset + len).div_ceil(page) - offset / page)
}

fn resident_by_mincore(file: &File, offset: u64, len: u64) -> io::Result<bool> {
    let page = rustix::param::page_size() as u64;
    let start = offset / page * page;
    let bytes = (offset + len - start) as usize;
    let view = MmapOptions::new().offset(start).len(bytes).map_raw_read_only(file)?;
    let mut pages = vec![0u8; bytes.div_ceil(page as usize)];
    // SAFETY: the range is a live mapping of `bytes` bytes that starts on a page (memmap2 aligns its base, and `start` is
    // aligned, so base and pointer are the same), and `pages` has one byte for each of its pages.
    let result = unsafe { libc::mincore(view.as_mut_ptr().cast(), bytes, pages.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(pages.iter().all(|page| page & 1 == 1))
}

fn vectors_from<'a>(bufs: &'a [IoSlice<'a>], mut skip: usize) -> Vec<IoSlice<'a>> {
    let mut rest = Vec::with_capacity(bufs.len());
    for buf in bufs {
        if skip >= buf.len() {
            skip -= buf.len();
        } else {
            rest.push(IoSlice::new(&buf[skip..]));
            skip = 0;
        }
    }
    rest
}

fn signed(value: u64) -> io::Result<i64> {
    i64::try_from(value).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The error with the path and what was tried; its kind stays.
fn at(path: &Path, what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temp_file(name: &str, mode: OpenMode) -> (tempfile::TempDir, Arc<dyn DiskFile>) {
        let dir = tempfile::tempdir().unwrap();
        let file = RealDisk.open(&dir.path().join(name), mode).unwrap();
        (dir, file)
    }

    #[test]
    fn open_modes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let kind = |mode| RealDisk.open(&path, mode).err().map(|error| error.kind());
        assert_eq!(kind(OpenMode::Read), Some(io::ErrorKind::NotFound));
        assert_eq!(kind(OpenMode::ReadWrite), Some(io::ErrorKind::NotFound));
        assert_eq!(kind(OpenMode::CreateNew), None);
        assert_eq!(kind(OpenMode::CreateNew), Some(io::ErrorKind::AlreadyExists));
        RealDisk.open(&path, OpenMode::Create).unwrap().write_at(&[IoSlice::new(b"abc")], 0).unwrap();
        assert_eq!(RealDisk.open(&path, OpenMode::Create).unwrap().len().unwrap(), 3, "create does not cut");
        let reader = RealDisk.open(&path, OpenMode::Read).unwrap();
        assert!(reader.write_at(&[IoSlice::new(b"x")], 0).is_err());
        let text = RealDisk.open(&dir.path().join("none"), OpenMode::Read).err().unwrap().to_string();
        assert!(text.contains("none"), "{text}");
    }

    #[test]
    fn descriptors_are_close_on_exec() {
        let (_dir, file) = temp_file("f", OpenMode::Create);
        // SAFETY: F_GETFD only reads a flag of an open descriptor.
        let flags = unsafe { libc::fcntl(file.raw_fd().unwrap(), libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }

    #[test]
    fn vectored_writes_of_any_number_of_parts() {
        let (dir, file) = temp_file("f", OpenMode::Create);
        let parts: Vec<Vec<u8>> = (0..3000u32).map(|n| vec![n as u8; (n % 7) as usize]).collect();
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        file.write_at(&slices, 10).unwrap();
        let whole = RealDisk.read(&dir.path().join("f")).unwrap().unwrap();
        assert_eq!(whole[..10], [0; 10]);
        assert_eq!(whole[10..], parts.concat());
        let rest = vectors_from(&slices, 9);
        assert_eq!(rest.iter().map(|part| part.len()).sum::<usize>(), parts.concat().len() - 9);
    }

    #[test]
    fn a_write_at_a_full_disk_is_an_error() {
        let file = RealDisk.open(Path::new("/dev/full"), OpenMode::ReadWrite).unwrap();
        let error = file.write_at(&[IoSlice::new(b"x")], 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn allocation_extends_with_zeros_and_keeps_what_is_there() {
        for by_writing in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("f");
            let file = RealFile { file: File::create_new(&path).unwrap(), path: path.clone() };
            file.write_at(&[IoSlice::new(b"kept")], 0).unwrap();
            match by_writing {
                true => file.allocate_by_writing(0, 3 << 20).unwrap(),
                false => file.allocate(0, 3 << 20).unwrap(),
            }
            let bytes = RealDisk.read(&path).unwrap().unwrap();
            assert_eq!(bytes.len(), 3 << 20);
            assert_eq!(&bytes[..4], b"kept");
            assert!(bytes[4..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn fresh_pages_are_resident_and_dropped_ones_are_not() {
        let (_dir, file) = temp_file("f", OpenMode::Create);
        file.write_at(&[IoSlice::new(&[7; 1 << 20])], 0).unwrap();
        file.sync_data().unwrap();
        assert!(file.is_resident(100, 1 << 19).unwrap());
        let mut buf = [0; 64];
        assert_eq!(file.read_at_resident(&mut buf, 4096).unwrap(), Some(64));
        assert_eq!(buf, [7; 64]);
        // SAFETY: advice about an open descriptor, no memory.
        let advised = unsafe { libc::posix_fadvise(file.raw_fd().unwrap(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        assert_eq!(advised, 0);
        let resident = file.is_resident(0, 1 << 20).unwrap();
        let real = File::open(file.path()).unwrap();
        assert_eq!(resident, resident_by_mincore(&real, 0, 1 << 20).unwrap(), "both ways agree");
        if !resident {
            assert_eq!(file.read_at_resident(&mut buf, 1 << 18).unwrap(), None);
        }
        assert!(file.is_resident(0, 0).unwrap());
    }

    #[test]
    fn a_mapping_is_read_through_the_file_and_survives_its_shortening() {
        let (_dir, file) = temp_file("f", OpenMode::Create);
        file.write_at(&[IoSlice::new(&[9; 10_000])], 0).unwrap();
        let map = file.clone().map(10_000).unwrap();
        let mut buf = [0; 100];
        map.read(&mut buf, 9_900).unwrap();
        assert_eq!(buf, [9; 100]);
        assert!(map.read(&mut buf, 9_901).is_err(), "beyond the view");
        let slice = crate::LogSlice::Mapped { map: map.clone(), offset: 8_000, len: 100 };
        file.set_len(5_000).unwrap();
        assert_eq!(map.read(&mut buf, 8_000).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let mut out = vec![1];
        assert!(slice.copy_into(&mut out).is_err());
        let runs = [(0, 5), (8_000, 5)].map(|(offset, len)| crate::MappedRun { offset, len });
        assert!(crate::LogSlice::of_runs(map, &runs).copy_into(&mut out).is_err());
        assert_eq!(out, [1]);
        assert!(file.map(0).unwrap().is_empty());
    }

    #[test]
    fn folders_are_made_listed_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b/c");
        RealDisk.create_dir_all(&deep).unwrap();
        RealDisk.create_dir_all(&deep).unwrap();
        RealDisk.open(&deep.join("f"), OpenMode::Create).unwrap().set_len(12).unwrap();
        assert_eq!(RealDisk.list(&deep).unwrap(), [DirItem { name: "f".into(), is_dir: false, len: 12 }]);
        assert!(RealDisk.list(&deep.join("missing")).unwrap().is_empty());
        assert!(RealDisk.metadata(&deep).unwrap().unwrap().is_dir);
        RealDisk.rename(&deep.join("f"), &deep.join("g")).unwrap();
        RealDisk.remove_file(&deep.join("g")).unwrap();
        assert_eq!(RealDisk.remove_file(&deep.join("g")).unwrap_err().kind(), io::ErrorKind::NotFound);
        RealDisk.remove_dir_all(&dir.path().join("a")).unwrap();
        RealDisk.remove_dir_all(&dir.path().join("a")).unwrap();
        assert_eq!(RealDisk.metadata(&deep).unwrap(), None);
        assert!(RealDisk.space(&deep).unwrap().total > 0);
    }

    #[test]
    fn a_lock_excludes_others_until_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = RealDisk.lock(&path).unwrap();
        assert_eq!(RealDisk.lock(&path).err().map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
        // A process lock, as Java takes it, meets ours too.
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let java = rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        assert!(matches!(java, Err(Errno::AGAIN | Errno::ACCESS)), "{java:?}");
        drop(file);
        drop(held);
        RealDisk.lock(&path).map(drop).unwrap();
    }
}
