//! Several files as one journal: merged, without duplicates, and followed while they grow.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::boot::Boot;
use crate::cursor::Cursor;
use crate::damage::Damage;
use crate::entry::Entry;
use crate::file::{Error, JournalFile, Seek};
use crate::filter::Filter;
use crate::id128::Id128;
use crate::watch::Watch;

/// Maximum number of open files: every file stays open while it is read, and a process may open 1024 by default.
/// journald keeps 100 archived files.
const MAX_FILES: usize = 800;

/// Maximum number of unreadable files that are recorded.
const MAX_PROBLEMS: usize = 100;

/// A journal with several files.
///
/// Entries have journalctl's order. Files of the same sequence are merged by sequence number, the same boot by time
/// since boot, and all others by wall clock. An entry in several files is returned once.
#[derive(Debug)]
pub struct Journal {
    paths: Vec<PathBuf>,
    members: Vec<Member>,
    filter: Filter,
    origin: Seek,
    /// The last returned entry and its file.
    last: Option<(Cursor, Identity)>,
    problems: Vec<Problem>,
    watch: Option<Watch>,
}

/// A file or directory that could not be read; the journal continues without it.
#[derive(Debug)]
pub struct Problem {
    pub path: PathBuf,
    pub error: Error,
}

#[derive(Debug)]
struct Member {
    path: PathBuf,
    identity: Identity,
    file: JournalFile<File>,
    head: Head,
}

/// The identity of a file, which it keeps when journald renames it on rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Identity {
    device: u64,
    inode: u64,
}

/// The next entry of a member.
#[derive(Clone, Copy, Debug)]
enum Head {
    Unread,
    Ready(Cursor),
    /// No entry until the file grows.
    Ended,
}

// === impl Journal ===

impl Journal {
    /// Opens files, and directories in journald's layout: `*.journal` and `*.journal~`, directly in the directory or in
    /// subdirectories named after a host. [`problems`](Self::problems) returns the unreadable ones.
    /// [`wait`](Self::wait) searches again for a directory that does not exist yet.
    pub fn open(paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        let mut journal = Self {
            paths: paths.into_iter().map(Into::into).collect(),
            members: Vec::new(),
            filter: Filter::default(),
            origin: Seek::Start,
            last: None,
            problems: Vec::new(),
            watch: None,
        };
        journal.discover();
        journal
    }

    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns the number of open files.
    pub fn files(&self) -> usize {
        self.members.len()
    }

    /// Returns all damage found so far, with its file.
    pub fn damage(&self) -> impl Iterator<Item = (&Path, &Damage)> {
        self.members.iter().flat_map(|member| {
            member.file.damage().first().iter().map(move |damage| (member.path.as_path(), damage))
        })
    }

    /// Returns the number of unreadable locations in all files.
    pub fn damage_count(&self) -> u64 {
        self.members.iter().map(|member| member.file.damage().count()).sum()
    }

    /// Sets a filter and restarts at the first matching entry.
    pub fn set_filter(&mut self, filter: Filter) {
        self.filter = filter;
        let filter = &self.filter;
        each_member(&mut self.members, &mut self.problems, |file| file.set_filter(filter.clone()));
        self.restart(Seek::Start);
    }

    pub fn seek(&mut self, seek: Seek) {
        each_member(&mut self.members, &mut self.problems, |file| file.seek(seek));
        self.restart(seek);
    }

    /// Returns the next matching entry, or `None` at the current end. A file that fails is skipped from then on.
    #[expect(
        clippy::should_implement_trait,
        reason = "the entry borrows the journal, which Iterator cannot express"
    )]
    pub fn next(&mut self) -> Option<Entry<'_, File>> {
        let mut best: Option<(usize, Cursor)> = None;
        let mut index = 0;
        while index < self.members.len() {
            match self.members[index].peek(self.last) {
                Ok(Some(head)) => {
                    if best.is_none_or(|(_, other)| order(&head, &other) == Ordering::Less) {
                        best = Some((index, head));
                    }
                    index += 1;
                }
                Ok(None) => index += 1,
                Err(error) => {
                    let member = self.members.remove(index);
                    note(&mut self.problems, member.path, error);
                }
            }
        }
        let (index, head) = best?;
        let member = &mut self.members[index];
        self.last = Some((head, member.identity));
        member.head = Head::Unread;
        Some(Entry::new(&mut member.file))
    }

    /// Waits for new data, at most for `timeout`, and then checks all files again. Returns `true` if there is something
    /// new; in any case [`next`](Self::next) may be called again.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        let watch = match &mut self.watch {
            Some(watch) => watch,
            empty => empty.insert(Watch::new()?),
        };
        let new_places =
            self.paths.iter().flat_map(|path| places(path)).filter(|path| watch.add(path)).count();
        // Data written before the watch was added is found by the check, not by waiting.
        if new_places == 0 || timeout.is_zero() {
            watch.wait(timeout)?;
        }
        Ok(self.refresh())
    }

    /// Checks all files again, and searches for new ones. Returns `true` if there is something new.
    pub fn refresh(&mut self) -> bool {
        let mut grown = false;
        let problems = &mut self.problems;
        self.members.retain_mut(|member| match member.refresh() {
            Ok(more) => {
                grown |= more;
                true
            }
            Err(error) => {
                note(problems, member.path.clone(), error);
                false
            }
        });
        self.discover() || grown
    }

    /// Returns the boots in the journal, the oldest first.
    pub fn boots(&mut self) -> Vec<Boot> {
        let mut boots: Vec<Boot> = Vec::new();
        let found = &mut boots;
        each_member(&mut self.members, &mut self.problems, |file| file.boots(found));
        boots.sort_unstable_by_key(|boot| (boot.first, boot.id));
        boots
    }

    fn restart(&mut self, origin: Seek) {
        self.origin = origin;
        self.last = None;
        for member in &mut self.members {
            member.head = Head::Unread;
        }
    }

    /// Opens new files and closes those that are deleted and read to the end. Returns `true` if there are new ones.
    fn discover(&mut self) -> bool {
        let known: HashSet<_> = self.members.iter().map(|member| member.identity).collect();
        let mut seen = HashSet::new();
        let mut found = false;
        for path in std::mem::take(&mut self.paths) {
            let files = match files_in(&path) {
                Ok(files) => files,
                Err(source) => {
                    note(&mut self.problems, path.clone(), Error::Open { path: path.clone(), source });
                    Vec::new()
                }
            };
            self.paths.push(path);
            for (path, identity) in files {
                // The same file may have two names.
                if !seen.insert(identity) || known.contains(&identity) {
                    continue;
                }
                match self.open_member(&path, identity) {
                    Ok(member) => {
                        self.members.push(member);
                        found = true;
                    }
                    Err(error) => note(&mut self.problems, path, error),
                }
            }
        }
        self.members.retain(|member| !member.is_spent(&seen));
        found
    }

    fn open_member(&self, path: &Path, identity: Identity) -> Result<Member, Error> {
        if self.members.len() >= MAX_FILES {
            let source = io::Error::other("too many journal files at once");
            return Err(Error::Open { path: path.to_owned(), source });
        }
        let mut file = JournalFile::open(path)?;
        file.set_filter(self.filter.clone())?;
        match (self.last, self.origin) {
            (Some((cursor, _)), _) => file.seek(Seek::At(cursor))?,
            // A file that appears later contains only new entries.
            (None, Seek::End | Seek::Start) => {}
            (None, origin) => file.seek(origin)?,
        }
        Ok(Member { path: path.to_owned(), identity, file, head: Head::Unread })
    }
}

// === impl Member ===

impl Member {
    /// Returns the next entry of this file that follows the last returned one.
    fn peek(&mut self, last: Option<(Cursor, Identity)>) -> Result<Option<Cursor>, Error> {
        loop {
            let head = match self.head {
                Head::Ready(head) => head,
                Head::Ended => return Ok(None),
                Head::Unread => {
                    if !self.file.advance().map_err(Error::Read)? {
                        self.head = Head::Ended;
                        self.file.release();
                        return Ok(None);
                    }
                    self.file.cursor()
                }
            };
            // Copies of returned entries are duplicates, and so are entries of another file that sort before the last
            // one. Within the same file, the order of the file counts, even if damage changed a number in it.
            let passed = last.is_some_and(|(last, from)| {
                from != self.identity && order(&head, &last) != Ordering::Greater
            });
            if !passed {
                self.head = Head::Ready(head);
                return Ok(Some(head));
            }
            self.head = Head::Unread;
        }
    }

    fn refresh(&mut self) -> Result<bool, Error> {
        let grown = self.file.refresh()?;
        if let (true, Head::Ended) = (grown, self.head) {
            self.head = Head::Unread;
        }
        Ok(grown)
    }

    fn is_spent(&self, present: &HashSet<Identity>) -> bool {
        matches!(self.head, Head::Ended) && !present.contains(&self.identity)
    }
}

/// Compares the positions of two entries. Equal means the same entry.
fn order(a: &Cursor, b: &Cursor) -> Ordering {
    let by_number = if a.seqnum_id == b.seqnum_id { a.seqnum.cmp(&b.seqnum) } else { Ordering::Equal };
    let by_uptime = || if a.boot_id == b.boot_id { a.monotonic.cmp(&b.monotonic) } else { Ordering::Equal };
    by_number
        .then_with(by_uptime)
        .then_with(|| a.realtime.cmp(&b.realtime))
        .then_with(|| a.xor_hash.cmp(&b.xor_hash))
}

/// Calls a function for every file; one that fails is skipped from then on.
fn each_member(
    members: &mut Vec<Member>,
    problems: &mut Vec<Problem>,
    mut run: impl FnMut(&mut JournalFile<File>) -> Result<(), Error>,
) {
    members.retain_mut(|member| match run(&mut member.file) {
        Ok(()) => true,
        Err(error) => {
            note(problems, member.path.clone(), error);
            false
        }
    });
}

fn note(problems: &mut Vec<Problem>, path: PathBuf, error: Error) {
    if problems.len() < MAX_PROBLEMS && problems.iter().all(|problem| problem.path != path) {
        problems.push(Problem { path, error });
    }
}

/// Returns the journal files at a path, by name.
fn files_in(path: &Path) -> io::Result<Vec<(PathBuf, Identity)>> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        // journald creates its directories when it first writes to them.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !is_journal(path) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    if !metadata.is_dir() {
        return Ok(vec![(path.to_owned(), Identity::of(&metadata))]);
    }
    let mut files = Vec::new();
    for folder in places(path) {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            // A file may be rotated between the two calls; the next check finds its new name.
            if is_journal(&path)
                && let Ok(metadata) = fs::metadata(&path)
                && metadata.is_file()
            {
                files.push((path, Identity::of(&metadata)));
            }
        }
    }
    files.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(files)
}

/// Returns the directory and its subdirectories named after a host (with an optional namespace), or the file.
fn places(path: &Path) -> Vec<PathBuf> {
    let mut places = vec![path.to_owned()];
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    places.extend(entries.filter(|entry| is_machine(&entry.file_name())).map(|entry| entry.path()));
    places.retain(|place| place.exists());
    places
}

fn is_machine(name: &std::ffi::OsStr) -> bool {
    let name = name.as_encoded_bytes();
    let machine = name.split(|byte| *byte == b'.').next().unwrap_or_default();
    Id128::parse(machine).is_some()
}

fn is_journal(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "journal" || extension == "journal~")
}

// === impl Identity ===

impl Identity {
    fn of(metadata: &fs::Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}
