//! A disk in memory that loses power on request.
//!
//! It keeps two views: the view of a running process, and the state that is certain after a power failure. Content
//! becomes certain by fsync of the file, names by fsync of their directory. After a power failure every uncertain
//! change may be on the disk or not, names and content independently; [`Aftermath`] selects one of these states. The
//! worst one is a name that survived with content that did not.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Access, Disk, DraftFile, Lock};

/// A disk, shared by all its clones.
#[derive(Clone, Debug, Default)]
pub struct SimulatedDisk(Arc<Mutex<State>>);

/// Moment of a power failure, relative to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Before,
    After,
}

/// State of the disk after a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aftermath {
    pub data: Data,
    pub names: Names,
}

/// State of content that was never synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    Kept,
    Lost,
    /// The first half of it was written.
    Torn,
}

/// State of names that were never synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    Kept,
    Lost,
}

#[derive(Clone, Debug, Default)]
struct State {
    files: Vec<Content>,
    seen: BTreeMap<PathBuf, Node>,
    certain: BTreeMap<PathBuf, Node>,
    /// Changes of names that are not yet certain, in order.
    pending: Vec<(PathBuf, Option<Node>)>,
    locks: BTreeSet<PathBuf>,
    operations: Vec<String>,
    cut: Option<(usize, Moment)>,
    off: bool,
    /// Counts starts, so that a file or lock of a dead process has no effect on the next one.
    start: u64,
}

#[derive(Clone, Debug, Default)]
struct Content {
    seen: Vec<u8>,
    certain: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    File(usize),
    Dir,
}

#[derive(Debug)]
struct SimulatedDraft {
    disk: SimulatedDisk,
    file: usize,
    path: PathBuf,
}

#[derive(Debug)]
struct SimulatedLock {
    disk: SimulatedDisk,
    path: PathBuf,
    start: u64,
}

// === impl SimulatedDisk ===

impl SimulatedDisk {
    /// Creates an empty disk with these directories.
    pub fn new(dirs: &[&str]) -> Self {
        let disk = Self::default();
        for dir in dirs {
            for ancestor in Path::new(dir).ancestors() {
                disk.state().seen.insert(ancestor.to_owned(), Node::Dir);
                disk.state().certain.insert(ancestor.to_owned(), Node::Dir);
            }
        }
        disk
    }

    /// Schedules a power failure at the operation with this number, counted from 0.
    pub fn cut_power_at(&self, operation: usize, moment: Moment) {
        self.state().cut = Some((operation, moment));
    }

    /// Returns whether the power has failed.
    pub fn is_off(&self) -> bool {
        self.state().off
    }

    /// Returns the number of the next operation.
    pub fn count(&self) -> usize {
        self.state().operations.len()
    }

    /// Returns descriptions of the operations so far.
    pub fn operations(&self) -> Vec<String> {
        self.state().operations.clone()
    }

    /// Restores the power: uncertain changes are decided, locks are released.
    pub fn power_on(&self, aftermath: Aftermath) {
        let mut state = self.state();
        let pending = std::mem::take(&mut state.pending);
        if aftermath.names == Names::Kept {
            for (path, node) in pending {
                set(&mut state.certain, path, node);
            }
        }
        state.forget_orphans();
        state.seen = state.certain.clone();
        for content in &mut state.files {
            if content.seen != content.certain {
                match aftermath.data {
                    Data::Kept => {}
                    Data::Lost => content.seen = content.certain.clone(),
                    Data::Torn => content.seen.truncate(content.seen.len() / 2),
                }
                content.certain = content.seen.clone();
            }
        }
        state.restart();
    }

    /// Simulates a killed process on a running kernel: only locks are lost.
    pub fn restart_process(&self) {
        self.state().restart();
    }

    /// Applies an effect outside the disk, which counts as an operation with a moment before and after it.
    pub fn effect<T>(&self, name: &str, effect: impl FnOnce() -> T) -> io::Result<T> {
        self.operation(format!("effect {name}"), |_| Ok(effect()))
    }

    /// Returns an independent disk with the same content and history.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self(Arc::new(Mutex::new(self.state().clone())))
    }

    /// Returns the distinct states that a power failure now could leave.
    pub fn aftermaths(&self) -> Vec<Aftermath> {
        let mut found = Vec::new();
        for aftermath in Aftermath::ALL {
            let fork = self.fork();
            fork.power_on(aftermath);
            let content = fork.content();
            if !found.iter().any(|(_, other): &(Aftermath, BTreeMap<_, _>)| *other == content) {
                found.push((aftermath, content));
            }
        }
        found.into_iter().map(|(aftermath, _)| aftermath).collect()
    }

    fn content(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        let state = self.state();
        let content = |node: &Node| match node {
            Node::File(file) => Some(state.files[*file].seen.clone()),
            Node::Dir => None,
        };
        state.seen.iter().map(|(path, node)| (path.clone(), content(node))).collect()
    }

    /// Returns the content that a process sees now, without counting as an operation.
    pub fn peek(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.state();
        match state.seen.get(path)? {
            Node::File(file) => Some(state.files[*file].seen.clone()),
            Node::Dir => None,
        }
    }

    /// Changes content without any process, as a failing disk does.
    pub fn damage(&self, path: &Path, bytes: &[u8]) {
        let mut state = self.state();
        if let Some(Node::File(file)) = state.seen.get(path).copied() {
            state.files[file] = Content { seen: bytes.to_vec(), certain: bytes.to_vec() };
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn operation<T>(&self, name: String, act: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state();
        if state.off {
            return Err(power_is_off());
        }
        let number = state.operations.len();
        state.operations.push(name);
        if state.cut == Some((number, Moment::Before)) {
            state.off = true;
            return Err(power_is_off());
        }
        let result = act(&mut state);
        if state.cut == Some((number, Moment::After)) {
            state.off = true;
            return Err(power_is_off());
        }
        result
    }

    fn look<T>(&self, look: impl FnOnce(&State) -> io::Result<T>) -> io::Result<T> {
        let state = self.state();
        if state.off { Err(power_is_off()) } else { look(&state) }
    }
}

impl Disk for SimulatedDisk {
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        self.look(|state| {
            let bytes = &state.files[state.file(path)?].seen;
            if bytes.len() as u64 > limit {
                Err(io::ErrorKind::FileTooLarge.into())
            } else {
                Ok(bytes.clone())
            }
        })
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.look(|state| {
            state.dir(dir)?;
            let within = state.seen.keys().filter(|path| path.parent() == Some(dir));
            Ok(within.filter_map(|path| path.file_name().map(OsString::from)).collect())
        })
    }

    fn open_draft(&self, path: &Path, _: Access) -> io::Result<Box<dyn DraftFile>> {
        let file = self.operation(format!("open {}", path.display()), |state| {
            if let Ok(file) = state.file(path) {
                state.files[file].seen.clear();
                return Ok(file);
            }
            state.dir(path.parent().unwrap_or(Path::new("/")))?;
            state.files.push(Content::default());
            let file = state.files.len() - 1;
            state.name(path, Some(Node::File(file)));
            Ok(file)
        })?;
        Ok(Box::new(SimulatedDraft { disk: self.clone(), file, path: path.to_owned() }))
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.operation(format!("sync {}", path.display()), |state| {
            let file = state.file(path)?;
            state.sync(file);
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operation(format!("rename {}", to.display()), |state| {
            let file = state.file(from)?;
            // One change for both names: a rename within a directory is atomic.
            state.seen.remove(from);
            state.seen.insert(to.to_owned(), Node::File(file));
            state.pending.push((to.to_owned(), Some(Node::File(file))));
            state.pending.push((from.to_owned(), None));
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.operation(format!("sync directory {}", dir.display()), |state| {
            state.dir(dir)?;
            let (now, later) = std::mem::take(&mut state.pending)
                .into_iter()
                .partition::<Vec<_>, _>(|(path, _)| path.parent() == Some(dir));
            state.pending = later;
            for (path, node) in now {
                set(&mut state.certain, path, node);
            }
            Ok(())
        })
    }

    fn sync_all(&self) -> io::Result<()> {
        self.operation("sync everything".to_owned(), |state| {
            for (path, node) in std::mem::take(&mut state.pending) {
                set(&mut state.certain, path, node);
            }
            for content in &mut state.files {
                content.certain.clone_from(&content.seen);
            }
            Ok(())
        })
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.operation(format!("remove {}", path.display()), |state| {
            state.file(path)?;
            state.name(path, None);
            Ok(())
        })
    }

    fn create_dir(&self, path: &Path, _: Access) -> io::Result<()> {
        self.operation(format!("create directory {}", path.display()), |state| {
            state.dir(path.parent().unwrap_or(Path::new("/")))?;
            if state.seen.contains_key(path) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            state.name(path, Some(Node::Dir));
            Ok(())
        })
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        let mut state = self.state();
        if state.off {
            return Err(power_is_off());
        }
        if !state.locks.insert(path.to_owned()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(SimulatedLock { disk: self.clone(), path: path.to_owned(), start: state.start }))
    }
}

fn set(names: &mut BTreeMap<PathBuf, Node>, path: PathBuf, node: Option<Node>) {
    match node {
        Some(node) => names.insert(path, node),
        None => names.remove(&path),
    };
}

fn power_is_off() -> io::Error {
    io::Error::other("the power is off")
}

// === impl State ===

impl State {
    fn file(&self, path: &Path) -> io::Result<usize> {
        match self.seen.get(path) {
            Some(Node::File(file)) => Ok(*file),
            Some(Node::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn dir(&self, path: &Path) -> io::Result<()> {
        match self.seen.get(path) {
            Some(Node::Dir) => Ok(()),
            Some(Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn name(&mut self, path: &Path, node: Option<Node>) {
        set(&mut self.seen, path.to_owned(), node);
        self.pending.push((path.to_owned(), node));
    }

    fn sync(&mut self, file: usize) {
        self.files[file].certain = self.files[file].seen.clone();
    }

    /// Removes the names in lost directories.
    fn forget_orphans(&mut self) {
        let names = self.certain.clone();
        self.certain.retain(|path, _| {
            path.ancestors()
                .skip(1)
                .filter(|dir| !dir.as_os_str().is_empty())
                .all(|dir| names.contains_key(dir))
        });
    }

    fn restart(&mut self) {
        self.locks.clear();
        self.cut = None;
        self.off = false;
        self.start += 1;
    }
}

// === impl SimulatedDraft ===

impl DraftFile for SimulatedDraft {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.disk.operation(format!("write {}", self.path.display()), |state| {
            state.files[self.file].seen.extend_from_slice(bytes);
            Ok(())
        })
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.operation(format!("sync {}", self.path.display()), |state| {
            state.sync(self.file);
            Ok(())
        })
    }
}

// === impl SimulatedLock ===

impl Lock for SimulatedLock {}

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if state.start == self.start {
            state.locks.remove(&self.path);
        }
    }
}

// === impl Aftermath ===

impl Aftermath {
    /// All possible states.
    pub const ALL: [Self; 6] = [
        Self { data: Data::Kept, names: Names::Kept },
        Self { data: Data::Kept, names: Names::Lost },
        Self { data: Data::Lost, names: Names::Kept },
        Self { data: Data::Lost, names: Names::Lost },
        Self { data: Data::Torn, names: Names::Kept },
        Self { data: Data::Torn, names: Names::Lost },
    ];
}
