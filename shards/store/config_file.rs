//! Small whole files: replaced in one step, with the previous version kept beside as `<name>.bak`, as Java keeps it.
//!
//! Owner of `config/*.json`, and of the store's own small files under `shards/`. Invariants: at every moment, also after a
//! power cut, either the file or its `.bak` holds a whole version; what [`ConfigDir::write`] returned is durable. A damaged
//! main file is moved aside, so that it never becomes the backup. It knows no format: the caller judges content.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sys::disk::{Disk, OpenMode};

/// A folder of small files. Cheap to clone; callers write one name from one place at a time.
#[derive(Clone)]
pub struct ConfigDir {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

impl ConfigDir {
    /// The files of `dir`. The folder is created by the first write.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, dir: PathBuf) -> Self {
        Self { disk, dir }
    }

    /// The folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The content of a file: the main one if it is not empty and `valid` accepts it, else its `.bak` under the same
    /// conditions. `None`: there is no such file. Errors: the disk's, and `InvalidData` when a file is there but neither
    /// version is usable (starting empty would lose what it held).
    pub fn read(&self, name: &str, valid: &dyn Fn(&[u8]) -> bool) -> io::Result<Option<Vec<u8>>> {
        let main = self.dir.join(name);
        let usable = |bytes: &Vec<u8>| !bytes.is_empty() && valid(bytes);
        let found = self.disk.read(&main)?;
        let had_main = match found {
            Some(bytes) if usable(&bytes) => return Ok(Some(bytes)),
            Some(_) => true,
            None => false,
        };
        let backup = self.disk.read(&self.backup(name))?;
        let had_backup = backup.is_some();
        if let Some(bytes) = backup.filter(usable) {
            if had_main {
                tracing::warn!(file = %main.display(), "damaged: its backup is used, the damaged file is kept as .damaged");
                self.disk.rename(&main, &self.dir.join(format!("{name}.damaged")))?;
                self.disk.sync_dir(&self.dir)?;
            }
            return Ok(Some(bytes));
        }
        if had_main || had_backup {
            let reason = format!("{}: empty or damaged, and so is or there is no backup", main.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        Ok(None)
    }

    /// Replaces a file; the previous version becomes `<name>.bak`. Durable when it returns. An error leaves the previous
    /// version in place, as the main file or as the backup.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let (main, temporary) = (self.dir.join(name), self.dir.join(format!("{name}.tmp")));
        self.disk.create_dir_all(&self.dir)?;
        write_file(&*self.disk, &temporary, bytes)?;
        if self.disk.metadata(&main)?.is_some_and(|meta| meta.len > 0) {
            self.disk.rename(&main, &self.backup(name))?;
        }
        self.disk.rename(&temporary, &main)?;
        self.disk.sync_dir(&self.dir)
    }

    fn backup(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.bak"))
    }
}

/// Writes a file from its start, cuts it to this length and syncs its bytes (not its folder).
pub(crate) fn write_file(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = disk.open(path, OpenMode::Create)?;
    file.set_len(0)?;
    file.write_at(&[IoSlice::new(bytes)], 0)?;
    file.sync_data()
}
