//! A disk in memory that keeps "written" and "durable" apart.
//!
//! What a process reads is what was written. What survives [`SimulatedDisk::power_cut`] is what was synced, plus any subset
//! of the rest: single sectors of 512 bytes, lengths, creations, renames and removals of names. Faults: an operation that
//! fails, a sync that fails once and drops its data, a full disk. Errors of a sync are reported as Linux does: once for
//! each descriptor that was open. Invariants: deterministic under its seeds; usable from several threads.

mod content;

use std::collections::{BTreeMap, HashSet};
use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sys::disk::{DirItem, Disk, DiskFile, FileMeta, Mapping, OpenMode, Space};

use self::content::{Content, below};

pub use self::content::SECTOR_BYTES;

/// What goes wrong, once. Operations are numbered from 1, see [`SimulatedDisk::operations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation with this number fails; of a write, some first sectors are written.
    Operation(u64),
    /// The first sync at or after the operation with this number fails, and what it should have made durable is dropped:
    /// later syncs succeed and do not bring it back.
    Sync(u64),
}

/// What reads that may not wait find in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// Everything.
    All,
    /// Nothing.
    Nothing,
    /// Each read is a throw of the dice.
    Some,
}

/// The disk. Clones are the same disk.
#[derive(Clone)]
pub struct SimulatedDisk {
    state: Arc<Mutex<State>>,
}

/// A file or a folder of the name table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Node {
    Dir,
    File(usize),
}

type Names = BTreeMap<PathBuf, Node>;

/// A change of names that a sync of its folder makes durable.
#[derive(Clone)]
enum Change {
    Set(PathBuf, Node),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf, Node),
}

struct State {
    names: Names,
    durable_names: Names,
    pending: Vec<Change>,
    files: Vec<Content>,
    locks: HashSet<PathBuf>,
    random: StdRng,
    operations: u64,
    fault: Option<Fault>,
    residency: Residency,
    honest: bool,
    capacity_bytes: u64,
    now_ms: i64,
    /// Descriptors of earlier lives are dead.
    life: u64,
}

impl SimulatedDisk {
    /// An empty disk of 64 GiB. The seed decides what the system writes back by itself.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let root: Names = [(PathBuf::from("/"), Node::Dir)].into();
        let state = State {
            names: root.clone(),
            durable_names: root,
            pending: Vec::new(),
            files: Vec::new(),
            locks: HashSet::new(),
            random: StdRng::seed_from_u64(seed),
            operations: 0,
            fault: None,
            residency: Residency::All,
            honest: true,
            capacity_bytes: 64 << 30,
            now_ms: 1_700_000_000_000,
            life: 0,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// The power goes and comes back: of what was not durable a subset survives that the seed chooses. All descriptors
    /// and locks are gone.
    pub fn power_cut(&self, seed: u64) {
        let mut state = self.state();
        let mut random = StdRng::seed_from_u64(seed);
        let keep = [0.0, 0.5, 0.9, 1.0][below(&mut random, 4) as usize];
        for change in std::mem::take(&mut state.pending) {
            if random.random_bool(keep) {
                apply(&mut state.durable_names, &change);
            }
        }
        // A folder that did not survive takes what is in it along.
        let durable = state.durable_names.clone();
        state.durable_names.retain(|path, _| path.ancestors().skip(1).all(|dir| durable.get(dir) == Some(&Node::Dir)));
        state.names = state.durable_names.clone();
        state.files.iter_mut().for_each(|content| content.cut(&mut random));
        state.new_life();
    }

    /// The process dies (`kill -9`): everything written stays. All descriptors and locks are gone.
    pub fn kill(&self) {
        self.state().new_life();
    }

    /// Operations so far that a [`Fault`] can name: everything that changes the disk or makes it durable.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Sets or clears the fault to come.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.state().fault = fault;
    }

    /// Sets what reads that may not wait find.
    pub fn set_residency(&self, residency: Residency) {
        self.state().residency = residency;
    }

    /// Whether a sync makes anything durable. A test that passes with `false` shows nothing.
    pub fn set_honest(&self, honest: bool) {
        self.state().honest = honest;
    }

    /// Sets the size of the disk: writes that would need more fail with `StorageFull`.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity_bytes = bytes;
    }

    /// Sets the time that changed files get, ms since 1970.
    pub fn set_now_ms(&self, now_ms: i64) {
        self.state().now_ms = now_ms;
    }

    /// All paths there are, folders included.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        self.state().names.keys().cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new_life(&mut self) {
        self.life += 1;
        self.locks.clear();
        self.fault = None;
    }

    /// Counts an operation; an error if it is the one to fail.
    fn operation(&mut self) -> io::Result<()> {
        self.operations += 1;
        if self.fault == Some(Fault::Operation(self.operations)) {
            self.fault = None;
            return Err(io::Error::other("a simulated failure"));
        }
        Ok(())
    }

    fn change(&mut self, change: Change) {
        apply(&mut self.names, &change);
        self.pending.push(change);
    }

    fn file(&self, path: &Path) -> io::Result<usize> {
        match self.names.get(path) {
            Some(&Node::File(file)) => Ok(file),
            Some(Node::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(not_found(path)),
        }
    }

    fn occupied(&self) -> u64 {
        let size = |node: &Node| if let Node::File(file) = node { self.files[*file].occupied() } else { 0 };
        self.names.values().map(size).sum()
    }

    fn room_for(&self, file: usize, at: u64, len: u64) -> io::Result<()> {
        let growth = self.files[file].growth(at, len);
        if growth > 0 && self.occupied() + growth > self.capacity_bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn parent_exists(&self, path: &Path) -> io::Result<()> {
        match path.parent().and_then(|dir| self.names.get(dir)) {
            Some(Node::Dir) => Ok(()),
            _ => Err(not_found(path)),
        }
    }
}

fn apply(names: &mut Names, change: &Change) {
    match change {
        Change::Set(path, node) => {
            names.insert(path.clone(), *node);
        }
        Change::Remove(path) => {
            names.remove(path);
        }
        Change::Rename(from, to, node) => {
            names.remove(from);
            names.insert(to.clone(), *node);
        }
    }
}

fn not_found(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{}: not there", path.display()))
}

impl Disk for SimulatedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state();
        let found = state.file(path);
        let file = match (found, mode) {
            (Ok(_), OpenMode::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Ok(file), _) => file,
            (Err(error), OpenMode::Create | OpenMode::CreateNew) if error.kind() == io::ErrorKind::NotFound => {
                state.parent_exists(path)?;
                state.operation()?;
                let mut content = Content::default();
                content.modified_ms = state.now_ms;
                let file = state.files.len();
                state.files.push(content);
                state.change(Change::Set(path.to_owned(), Node::File(file)));
                file
            }
            (Err(error), _) => return Err(error),
        };
        let seen = Mutex::new(state.files[file].sync_errors);
        let (disk, life) = (self.clone(), state.life);
        Ok(Arc::new(SimulatedFile { disk, file, path: path.to_owned(), life, seen }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirItem>> {
        let state = self.state();
        let items = state.names.iter().filter(|(path, _)| path.parent() == Some(dir));
        let item = |(path, node): (&PathBuf, &Node)| DirItem {
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            is_dir: *node == Node::Dir,
            len: if let Node::File(file) = node { state.files[*file].len() } else { 0 },
        };
        Ok(items.map(item).collect())
    }

    fn metadata(&self, path: &Path) -> io::Result<Option<FileMeta>> {
        let state = self.state();
        Ok(state.names.get(path).map(|node| match node {
            Node::Dir => FileMeta { len: 0, is_dir: true, modified_ms: 0 },
            Node::File(file) => {
                let content = &state.files[*file];
                FileMeta { len: content.len(), is_dir: false, modified_ms: content.modified_ms }
            }
        }))
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        let missing = |state: &State| dir.ancestors().filter(|dir| !state.names.contains_key(*dir)).count();
        if missing(&state) == 0 {
            return if state.names.get(dir) == Some(&Node::Dir) {
                Ok(())
            } else {
                Err(io::ErrorKind::AlreadyExists.into())
            };
        }
        state.operation()?;
        for ancestor in dir.ancestors() {
            match state.names.get(ancestor) {
                Some(Node::Dir) => break,
                Some(Node::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
                None => {
                    state.names.insert(ancestor.to_owned(), Node::Dir);
                    state.durable_names.insert(ancestor.to_owned(), Node::Dir);
                }
            }
        }
        Ok(())
    }

    fn create_dir_all_unsynced(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        let mut missing: Vec<&Path> = dir.ancestors().take_while(|dir| !state.names.contains_key(*dir)).collect();
        if !missing.is_empty() {
            state.operation()?;
        }
        missing.reverse();
        missing.into_iter().for_each(|dir| state.change(Change::Set(dir.to_owned(), Node::Dir)));
        Ok(())
    }

    fn sync_file_system(&self, _path: &Path) -> io::Result<()> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.operation()?;
        if matches!(state.fault, Some(Fault::Sync(from)) if state.operations >= from) {
            state.fault = None;
            state.files.iter_mut().for_each(Content::lose_dirty);
            return Err(io::Error::other("a simulated failure of a sync"));
        }
        if state.honest {
            let pending = std::mem::take(&mut state.pending);
            pending.iter().for_each(|change| apply(&mut state.durable_names, change));
            state.files.iter_mut().for_each(Content::sync);
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        let node = Node::File(state.file(from)?);
        state.parent_exists(to)?;
        state.operation()?;
        state.change(Change::Rename(from.to_owned(), to.to_owned(), node));
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.file(path)?;
        state.operation()?;
        state.change(Change::Remove(path.to_owned()));
        Ok(())
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        if !state.names.contains_key(dir) {
            return Ok(());
        }
        state.operation()?;
        let mut inside: Vec<PathBuf> = state.names.keys().filter(|path| path.starts_with(dir)).cloned().collect();
        inside.reverse();
        inside.into_iter().for_each(|path| state.change(Change::Remove(path)));
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        if state.names.get(dir) != Some(&Node::Dir) {
            return Err(not_found(dir));
        }
        state.operation()?;
        let concerns = |change: &Change| match change {
            Change::Set(path, _) | Change::Remove(path) => path.parent() == Some(dir),
            Change::Rename(from, to, _) => from.parent() == Some(dir) || to.parent() == Some(dir),
        };
        let (synced, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut state.pending).into_iter().partition(concerns);
        state.pending = rest;
        synced.iter().for_each(|change| apply(&mut state.durable_names, change));
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send>> {
        self.open(path, OpenMode::Create)?;
        let mut state = self.state();
        if !state.locks.insert(path.to_owned()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(Lock { disk: self.clone(), path: path.to_owned(), life: state.life }))
    }

    fn space(&self, _path: &Path) -> io::Result<Space> {
        let state = self.state();
        let total = state.capacity_bytes;
        Ok(Space { total, available: total.saturating_sub(state.occupied()) })
    }
}

struct Lock {
    disk: SimulatedDisk,
    path: PathBuf,
    life: u64,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if state.life == self.life {
            state.locks.remove(&self.path);
        }
    }
}

/// A descriptor.
struct SimulatedFile {
    disk: SimulatedDisk,
    file: usize,
    path: PathBuf,
    life: u64,
    /// Failed syncs of the file that this descriptor has reported, or that were before it.
    seen: Mutex<u64>,
}

impl SimulatedFile {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.disk.state();
        if state.life == self.life { Ok(state) } else { Err(io::Error::other("a descriptor of an earlier life")) }
    }

    /// Whether a read that may not wait finds its bytes now.
    fn resident(state: &mut State) -> bool {
        match state.residency {
            Residency::All => true,
            Residency::Nothing => false,
            Residency::Some => state.random.random_bool(0.5),
        }
    }
}

impl DiskFile for SimulatedFile {
    fn has_data_from(&self, offset: u64) -> io::Result<bool> {
        Ok(self.state()?.files[self.file].has_data_from(offset))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.state()?.files[self.file].len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state()?;
        state.operation()?;
        state.files[self.file].set_len(len);
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut state = self.state()?;
        state.operation()?;
        state.room_for(self.file, offset, len)?;
        state.files[self.file].allocate(offset, len);
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(self.state()?.files[self.file].read(buf, offset))
    }

    fn read_at_resident(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        let mut state = self.state()?;
        Ok(Self::resident(&mut state).then(|| state.files[self.file].read(buf, offset)))
    }

    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        let mut guard = self.state()?;
        let state = &mut *guard;
        let failed = state.operation();
        let failed = failed.and_then(|()| state.room_for(self.file, offset, bytes.len() as u64));
        let written = match failed {
            Ok(()) => bytes.len(),
            // As in a page cache, it stops at a block's border: a number that lies inside of one is never half there.
            Err(_) => {
                let end = (offset + below(&mut state.random, bytes.len() as u64)) / SECTOR_BYTES * SECTOR_BYTES;
                end.saturating_sub(offset) as usize
            }
        };
        let now_ms = state.now_ms;
        let content = &mut state.files[self.file];
        content.modified_ms = now_ms;
        if failed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::StorageFull) {
            return failed;
        }
        content.write(&bytes[..written], offset);
        if state.random.random_bool(0.1) {
            content.write_back_some(&mut state.random);
        }
        failed
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut guard = self.state()?;
        let state = &mut *guard;
        state.operation()?;
        let content = &mut state.files[self.file];
        match state.fault {
            Some(Fault::Sync(from)) if state.operations >= from => {
                state.fault = None;
                content.lose_dirty();
            }
            _ if state.honest => content.sync(),
            _ => {}
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen < content.sync_errors {
            *seen = content.sync_errors;
            return Err(io::Error::other("a simulated failure of a sync"));
        }
        Ok(())
    }

    fn start_write_back(&self, _offset: u64, _len: u64) -> io::Result<()> {
        let mut guard = self.state()?;
        let state = &mut *guard;
        state.files[self.file].write_back_some(&mut state.random);
        Ok(())
    }

    fn is_resident(&self, _offset: u64, _len: u64) -> io::Result<bool> {
        Ok(Self::resident(&mut *self.state()?))
    }

    fn map(self: Arc<Self>, len: u64) -> io::Result<Arc<dyn Mapping>> {
        Ok(Arc::new(SimulatedMapping { file: self, len }))
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn raw_fd(&self) -> Option<RawFd> {
        None
    }
}

/// A view that shows what is written, also later.
struct SimulatedMapping {
    file: Arc<SimulatedFile>,
    len: u64,
}

impl Mapping for SimulatedMapping {
    fn len(&self) -> u64 {
        self.len
    }

    /// There is no kernel here: nobody may use it.
    fn as_ptr(&self) -> *const u8 {
        std::ptr::null()
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self.file.read_at(buf, offset)? {
            count if count == buf.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
