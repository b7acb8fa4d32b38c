//! The whole store: taken, checked and prepared once a process, before any shard is opened.
//!
//! Owner of `lock`, `abort`, `shards/manifest.json` and the guard against Java (FORMAT.md §§1, 2). Invariants: everything
//! is checked before anything but the lock is touched; the number of shards never falls; before shards are added, the
//! places of all present queues are written down. It opens no log and no queue.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

use sys::disk::{DirItem, Disk, OpenMode};

use crate::config_file::ConfigDir;
use crate::error::OpenError;
use crate::layout::{GUARD_FILE, MAX_SHARDS, ShardId, StoreLayout, parse_offset_file_name};
use crate::manifest::{FORMAT_VERSION, MANIFEST_FILE, Manifest, ManifestError};
use crate::options::StoreOptions;
use crate::placement::Placement;
use crate::tombstones::Tombstones;

/// Most delay levels of a new store.
const MAX_LEVELS: u32 = 1024;

/// What Java writes into the lock file.
const LOCK_TEXT: &[u8] = b"lock";

/// A store that this process has taken.
pub struct StoreHome {
    disk: Arc<dyn Disk>,
    layout: StoreLayout,
    manifest: Manifest,
    tombstones: Arc<Tombstones>,
    was_clean: bool,
    /// Held until the value is dropped.
    _lock: std::sync::Mutex<Box<dyn Send>>,
}

/// What the checks found.
struct Found {
    manifest: Option<Manifest>,
    /// The root holds a commit log, and no manifest says that it is ours.
    is_java: bool,
}

impl StoreHome {
    /// Takes the store at `root`, which is created if absent. `shards`: the number asked for by name (`--shards`), of which
    /// a smaller one than the store's is refused; `default_shards`: for a new store when none was asked for. Errors: see
    /// [`OpenError`]; whatever a check refuses is left as it was.
    pub fn open(
        disk: Arc<dyn Disk>,
        root: &Path,
        options: &StoreOptions,
        shards: Option<u16>,
        default_shards: u16,
    ) -> Result<StoreHome, OpenError> {
        let layout = StoreLayout::new(root);
        check_root(&*disk, root)?;
        disk.create_dir_all(root).map_err(OpenError::io(root))?;
        let lock = disk.lock(&layout.lock()).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => OpenError::Locked(root.to_owned()),
            _ => OpenError::Io { path: layout.lock(), error },
        })?;
        let found = check(&*disk, &layout, options)?;
        let levels = options.delay_level_ms.len() as u32;
        check_levels(found.manifest.as_ref(), levels)?;
        let has = found.manifest.as_ref().map(|manifest| manifest.shards).or(found.is_java.then_some(1));
        let default_shards = if options.light_queues { 1 } else { default_shards };
        let wanted = wanted_shards(root, has, shards, default_shards)?;
        if options.light_queues && wanted > 1 {
            return Err(OpenError::LightQueues { path: root.to_owned(), shards: wanted });
        }
        let was_clean = disk.metadata(&layout.abort()).map_err(OpenError::io(layout.abort()))?.is_none();
        let ours = ConfigDir::new(disk.clone(), layout.shards_dir());
        let tombstones = Tombstones::load(ours.clone()).map_err(OpenError::io(layout.shards_dir()))?;
        let manifest = prepare(&*disk, &layout, &ours, found, wanted, levels)?;
        write_marks(&*disk, &layout).map_err(OpenError::io(root))?;
        Ok(StoreHome { disk, layout, manifest, tombstones: Arc::new(tombstones), was_clean, _lock: lock.into() })
    }

    /// Shards of the store.
    #[must_use]
    pub fn shards(&self) -> u16 {
        self.manifest.shards
    }

    /// Whether the last process to use the store closed it in order.
    #[must_use]
    pub fn was_clean(&self) -> bool {
        self.was_clean
    }

    /// The paths of the store.
    #[must_use]
    pub fn layout(&self) -> &StoreLayout {
        &self.layout
    }

    /// The manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Whether a Java broker made the store.
    #[must_use]
    pub fn created_from_java(&self) -> bool {
        self.manifest.from_java
    }

    /// The folder of the metadata files, in Java's forms.
    #[must_use]
    pub fn config(&self) -> ConfigDir {
        ConfigDir::new(self.disk.clone(), self.layout.config_dir())
    }

    /// The folder of the store's own small files: the placement is stored there.
    #[must_use]
    pub fn shards_config(&self) -> ConfigDir {
        ConfigDir::new(self.disk.clone(), self.layout.shards_dir())
    }

    /// The places of all queues, as written down. Errors: as [`Placement::load`].
    pub fn placement(&self) -> io::Result<Placement> {
        Placement::load(&self.shards_config(), self.manifest.shards, self.manifest.system_queues)
    }

    /// The deleted topics.
    #[must_use]
    pub fn tombstones(&self) -> Arc<Tombstones> {
        self.tombstones.clone()
    }

    /// Removes the files of a Java broker's timers: `timerwheel` and `timerlog/`. It makes them again from the timers' queue.
    ///
    /// # Errors
    /// The disk's.
    pub fn forget_java_timers(&self) -> io::Result<()> {
        let (wheel, log) = (self.layout.root().join("timerwheel"), self.layout.root().join("timerlog"));
        if self.disk.metadata(&wheel)?.is_some() {
            self.disk.remove_file(&wheel)?;
        }
        self.disk.remove_dir_all(&log)?;
        self.disk.sync_dir(self.layout.root())
    }

    /// Removes the mark of an unclean end. Only after every shard has closed without an error.
    pub fn close_clean(self) -> io::Result<()> {
        self.disk.remove_file(&self.layout.abort())?;
        self.disk.sync_dir(self.layout.root())
    }
}

/// The number of shards that the store will have.
fn wanted_shards(root: &Path, has: Option<u16>, asked: Option<u16>, default: u16) -> Result<u16, OpenError> {
    let refused = |what: String| OpenError::Unsupported { path: root.to_owned(), what };
    let wanted = asked.or(has).unwrap_or_else(|| default.clamp(1, MAX_SHARDS));
    if !(1..=MAX_SHARDS).contains(&wanted) {
        return Err(refused(format!("to get {wanted} shards (a store has 1 to {MAX_SHARDS})")));
    }
    match has {
        Some(has) if wanted < has => Err(OpenError::FewerShards { path: root.to_owned(), has, asked: wanted }),
        _ => Ok(wanted),
    }
}

fn check_root(disk: &dyn Disk, root: &Path) -> Result<(), OpenError> {
    match disk.metadata(root).map_err(OpenError::io(root))? {
        Some(meta) if !meta.is_dir => Err(OpenError::Damaged {
            path: root.to_owned(),
            reason: "is a file; the data folder was expected".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Reads and judges, changes nothing.
fn check(disk: &dyn Disk, layout: &StoreLayout, options: &StoreOptions) -> Result<Found, OpenError> {
    let manifest = read_manifest(disk, layout)?;
    check_kind(disk, layout)?;
    let mut segments = 0;
    for shard in 0..manifest.as_ref().map_or(1, |manifest| manifest.shards) {
        segments += check_segments(disk, &layout.shard(ShardId(shard)).commit_log, options.segment_size_bytes)?;
    }
    check_shards_present(disk, layout, manifest.as_ref())?;
    let is_java = manifest.is_none() && segments > 0;
    Ok(Found { manifest, is_java })
}

/// Refuses a store of which a part is gone: an empty shard in place of one whose disk is not mounted, or one shard in place
/// of several, would hide messages and give out their offsets again.
fn check_shards_present(disk: &dyn Disk, layout: &StoreLayout, manifest: Option<&Manifest>) -> Result<(), OpenError> {
    let Some(manifest) = manifest else {
        let path = layout.guard();
        return match disk.metadata(&path).map_err(OpenError::io(&path))? {
            None => Ok(()),
            Some(_) => Err(OpenError::Damaged {
                path: layout.shards_dir().join(MANIFEST_FILE),
                reason: "is missing, but the guard file in commitlog/ says that the store has several shards"
                    .to_owned(),
            }),
        };
    };
    for id in 0..manifest.shards {
        let path = layout.shard(ShardId(id)).commit_log;
        if disk.metadata(&path).map_err(OpenError::io(&path))?.is_none() {
            let reason = format!("is missing: the folder of shard {id} is gone, or its disk is not mounted");
            return Err(OpenError::Damaged { path, reason });
        }
    }
    Ok(())
}

fn read_manifest(disk: &dyn Disk, layout: &StoreLayout) -> Result<Option<Manifest>, OpenError> {
    let path = layout.shards_dir().join(MANIFEST_FILE);
    let mut damaged = None;
    // The main file, or its backup when a write was cut short. Read by hand: nothing may be moved aside here.
    for name in [MANIFEST_FILE.to_owned(), format!("{MANIFEST_FILE}.bak")] {
        let Some(bytes) = disk.read(&layout.shards_dir().join(name)).map_err(OpenError::io(&path))? else { continue };
        match Manifest::parse(&bytes) {
            Ok(manifest) => return Ok(Some(manifest)),
            Err(ManifestError::Newer(found)) => {
                return Err(OpenError::Newer { path: layout.root().to_owned(), found, known: FORMAT_VERSION });
            }
            Err(ManifestError::Damaged(reason)) => damaged = damaged.or(Some(reason)),
        }
    }
    match damaged {
        Some(reason) => Err(OpenError::Damaged { path, reason }),
        None => Ok(None),
    }
}

/// Refuses the kinds of Java store that are not read.
fn check_kind(disk: &dyn Disk, layout: &StoreLayout) -> Result<(), OpenError> {
    let list = |name: &str| disk.list(&layout.root().join(name)).map_err(OpenError::io(layout.root().join(name)));
    let refused = |what: &str| OpenError::Unsupported { path: layout.root().to_owned(), what: what.to_owned() };
    // 5.4.0 makes an empty database in rocksdbstore/ even when its queues are files: only data counts.
    let has_data = |item: &DirItem| item.len > 0 && (item.name.ends_with(".sst") || item.name.ends_with(".log"));
    let is_database = |item: &DirItem| item.name == "CURRENT" || item.name.starts_with("MANIFEST-");
    if list("rocksdbstore")?.iter().any(has_data) || list("consumequeue")?.iter().any(is_database) {
        return Err(refused("a RocksDB store (storeType=defaultRocksDB)"));
    }
    // Tables in databases lie in folders under config/; users and acls are those of access control, not the store's.
    for item in list("config")?.iter().filter(|item| item.is_dir && !["users", "acls"].contains(&item.name.as_str())) {
        let inside = list(&format!("config/{}", item.name))?;
        if inside.iter().any(is_database) && inside.iter().any(has_data) {
            return Err(refused(
                "a store with its tables in RocksDB (configManagerVersion=v2 or a RocksDB store type)",
            ));
        }
    }
    if !list("batchconsumequeue")?.is_empty() {
        return Err(refused("a store with batch consume queues (queue.type=BatchCQ)"));
    }
    Ok(())
}

/// Checks the length of a log's segments; returns how many there are.
fn check_segments(disk: &dyn Disk, dir: &Path, expected: u64) -> Result<usize, OpenError> {
    let mut segments: Vec<DirItem> = disk.list(dir).map_err(OpenError::io(dir))?;
    segments.retain(|item| !item.is_dir && parse_offset_file_name(&item.name).is_some());
    segments.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let last = segments.len().saturating_sub(1);
    for (at, item) in segments.iter().enumerate() {
        // An empty last file is what a crash leaves while a segment is made; recovery removes it.
        if item.len != expected && !(item.len == 0 && at == last) {
            let path = dir.join(&item.name);
            return Err(OpenError::WrongSize { path, found: item.len, expected, setting: "mappedFileSizeCommitLog" });
        }
    }
    Ok(segments.len())
}

/// Each delay level has a queue of its own in each shard; how many there can be is settled when the store is made.
fn check_levels(manifest: Option<&Manifest>, levels: u32) -> Result<(), OpenError> {
    let room = manifest.map_or(MAX_LEVELS, |manifest| manifest.system_queues.schedule);
    if (1..=room).contains(&levels) { Ok(()) } else { Err(OpenError::DelayLevels { levels, room }) }
}

/// Makes folders, placement, guard and manifest what `wanted` shards need. In this order: a crash in between leaves the
/// old number of shards, and the next start does it again.
fn prepare(
    disk: &dyn Disk,
    layout: &StoreLayout,
    ours: &ConfigDir,
    found: Found,
    wanted: u16,
    levels: u32,
) -> Result<Manifest, OpenError> {
    let shards_dir = layout.shards_dir();
    let at = || OpenError::io(shards_dir.clone());
    for id in 0..wanted {
        let shard = layout.shard(ShardId(id));
        disk.create_dir_all(&shard.commit_log).map_err(OpenError::io(&shard.commit_log))?;
    }
    disk.create_dir_all(&layout.config_dir()).map_err(OpenError::io(layout.config_dir()))?;
    disk.create_dir_all(&shards_dir).map_err(at())?;
    let (old, known) = match found.manifest {
        Some(manifest) => (manifest, true),
        None => {
            let mut manifest = Manifest::new(if found.is_java { 1 } else { wanted }, found.is_java);
            manifest.system_queues.schedule = manifest.system_queues.schedule.max(levels);
            (manifest, false)
        }
    };
    let mut manifest = old.clone();
    manifest.shards = wanted;
    if wanted > old.shards {
        let mut placement = Placement::load(ours, wanted, old.system_queues).map_err(at())?;
        for (topic, queues) in present_queues(disk, layout, old.shards)? {
            placement.pin(&topic, queues);
        }
        placement.store(ours).map_err(at())?;
    }
    set_guard(disk, layout, wanted > 1).map_err(OpenError::io(layout.guard()))?;
    if !known || manifest != old {
        ours.write(MANIFEST_FILE, &manifest.encode()).map_err(at())?;
    }
    Ok(manifest)
}

/// Every topic of the store with the number of queues that it has: from the queues' folders and from the topic table.
fn present_queues(disk: &dyn Disk, layout: &StoreLayout, shards: u16) -> Result<Vec<(String, u32)>, OpenError> {
    let mut topics = std::collections::BTreeMap::<String, u32>::new();
    for id in 0..shards {
        let dir = layout.shard(ShardId(id)).consume_queue;
        for topic in disk.list(&dir).map_err(OpenError::io(&dir))?.into_iter().filter(|item| item.is_dir) {
            let queues = disk.list(&dir.join(&topic.name)).map_err(OpenError::io(&dir))?;
            let count =
                queues.iter().filter_map(|item| item.name.parse::<u32>().ok()?.checked_add(1)).max().unwrap_or(0);
            let known = topics.entry(topic.name).or_default();
            *known = (*known).max(count);
        }
    }
    let config = layout.config_dir();
    for name in ["topics.json", "topics.json.bak"] {
        let bytes = disk.read(&config.join(name)).map_err(OpenError::io(config.join(name)))?.unwrap_or_default();
        for (topic, count) in topic_table(&bytes) {
            let known = topics.entry(topic).or_default();
            *known = (*known).max(count);
        }
    }
    Ok(topics.into_iter().collect())
}

/// The queue numbers of a `topics.json`; empty when it is damaged (the broker then refuses or takes the backup).
fn topic_table(bytes: &[u8]) -> Vec<(String, u32)> {
    let Ok(table) = serde_json::from_slice::<serde_json::Value>(bytes) else { return Vec::new() };
    let Some(topics) = table.get("topicConfigTable").and_then(|topics| topics.as_object()) else { return Vec::new() };
    let queues = |topic: &serde_json::Value, field| {
        topic.get(field).and_then(serde_json::Value::as_u64).and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
    };
    let count = |topic| queues(topic, "readQueueNums").max(queues(topic, "writeQueueNums"));
    topics.iter().map(|(name, topic)| (name.clone(), count(topic))).collect()
}

/// Makes the guard file, or removes it.
fn set_guard(disk: &dyn Disk, layout: &StoreLayout, wanted: bool) -> io::Result<()> {
    let (path, dir) = (layout.guard(), layout.shard(ShardId(0)).commit_log);
    let there = disk.metadata(&path)?.is_some_and(|meta| meta.len > 0);
    match (wanted, there) {
        (true, false) => {
            let text =
                format!("{GUARD_FILE}: this store has several shards. A Java broker would serve one of them only.\n");
            crate::config_file::write_file(disk, &path, text.as_bytes())?;
            disk.sync_dir(&dir)
        }
        (false, true) => {
            disk.remove_file(&path)?;
            disk.sync_dir(&dir)
        }
        _ => Ok(()),
    }
}

/// Writes the text of the lock file and the mark of an unclean end (the process's number, as Java does).
fn write_marks(disk: &dyn Disk, layout: &StoreLayout) -> io::Result<()> {
    let lock = disk.open(&layout.lock(), OpenMode::Create)?;
    if lock.len()? == 0 {
        lock.write_at(&[IoSlice::new(LOCK_TEXT)], 0)?;
    }
    crate::config_file::write_file(disk, &layout.abort(), std::process::id().to_string().as_bytes())?;
    disk.sync_dir(layout.root())
}
