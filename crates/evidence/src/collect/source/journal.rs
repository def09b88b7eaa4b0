//! The journal as text: one line per message line, like `journalctl -o short-iso-precise`, in UTC.
//!
//! Unlike the short format it includes the year, which a bundle needs when it is read years later.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use landfall_diagnose::Origins;
use landfall_journal::{Boot, Filter, Id128, Journal as Files, Seek};
use landfall_model::chain;

use super::Source;
use crate::collect::direct;
use crate::collect::host::{Host, descriptor_path};
use crate::collect::piece::Trouble;
use crate::collect::plan::Since;
use crate::collect::sink::{Ends, FileSink, Framing, Sink};
use crate::read::{Parts, parts_of_entry};

/// Files opened concurrently: a process may open 1024, and several items read the journal.
const MAX_FILES: usize = 150;

/// Period before the requested time that is searched: messages of several lines are logged together.
const SEARCHED_MICROSECONDS: u64 = 15 * 60 * 1_000_000;

/// Inverse of the share of the item's time available for this search.
const SEARCH_SHARE: u32 = 4;

/// Maximum number of program names cached in redacted form.
const MAX_NAMES: usize = 4096;

const PLACES: [&str; 4] = [
    "/run/log/journal/*.journal*",
    "/run/log/journal/*/*.journal*",
    "/var/log/journal/*.journal*",
    "/var/log/journal/*/*.journal*",
];

pub(super) struct Journal {
    pub(super) to: String,
    pub(super) unit: Option<String>,
    pub(super) since: Since,
}

/// Several services, each in a file of its own.
pub(super) struct Journals {
    pub(super) to: String,
    pub(super) services: Vec<String>,
}

/// Formats entries as lines of text.
#[derive(Default)]
struct EntryWriter {
    /// Redacted names.
    names: HashMap<Vec<u8>, String>,
    /// Whether the writer of an entry used the name of a component that it is not, by the writer's
    /// identifying fields.
    impersonators: HashMap<Vec<u8>, bool>,
}

// === impl Journal ===

impl Source for Journal {
    fn collect(&self, host: &Host, sink: &mut Sink) -> Result<(), Trouble> {
        let mut journal = open(host, sink.deadline())?;
        let mut filter = self.unit.as_deref().map_or_else(Filter::default, Filter::unit);
        let last = last_boot(host, &mut journal);
        if self.since == Since::Boot
            && let Some(boot) = last
        {
            filter = filter.and(&Filter::boot(boot.id));
        }
        let source =
            self.unit.as_ref().map_or_else(|| "journal".to_owned(), |unit| format!("journal:{unit}"));
        if sink.is_for_diagnosis() {
            return direct::journal(journal, &filter, last, &source, sink);
        }
        write(journal, filter, &self.to, &source, sink);
        Ok(())
    }
}

impl Source for Journals {
    fn collect(&self, host: &Host, sink: &mut Sink) -> Result<(), Trouble> {
        for service in &self.services {
            sink.time_left()?;
            of_unit(host, &format!("{service}.service"), &format!("{}{service}.log", self.to), sink)?;
        }
        Ok(())
    }
}

/// Collects the entries of one unit in the last boot, for the record of a failed unit.
pub(super) fn of_unit(host: &Host, unit: &str, to: &str, sink: &mut Sink) -> Result<(), Trouble> {
    Journal { to: to.to_owned(), unit: Some(unit.to_owned()), since: Since::Boot }.collect(host, sink)
}

/// Opens all journal files of the machine, inside its root.
fn open(host: &Host, deadline: Instant) -> Result<Files, Trouble> {
    let mut files: Vec<File> = Vec::new();
    let mut trouble = Trouble::Absent;
    // Files being written have no `@` in their names and are the most important.
    let found = PLACES.iter().flat_map(|place| host.find(place, deadline).unwrap_or_default());
    let mut paths: Vec<_> = found.filter(|path| !is_of_others(path)).collect();
    // A container may link its journal to the machine's, in its own directory.
    let own = host.fact("/etc/machine-id");
    let is_own =
        |path: &PathBuf| own.as_ref().is_some_and(|own| folder_of(path) == Some(OsStr::new(own.trim())));
    if paths.iter().any(is_own) {
        paths.retain(|path| is_own(path) || folder_of(path) == Some(OsStr::new("journal")));
    }
    paths.sort_by_key(|path| path.to_string_lossy().contains('@'));
    for path in paths.into_iter().take(MAX_FILES) {
        match host.open(&path) {
            Ok(file) => files.push(file),
            Err(error) => trouble = error.into(),
        }
    }
    if files.is_empty() {
        return Err(trouble);
    }
    // Opened by descriptor: a path may have become a link that leads out of the root.
    let journal = Files::open(files.iter().map(descriptor_path));
    match journal.problems().first() {
        Some(problem) if journal.files() == 0 => Err(Trouble::Failed(chain(&problem.error).to_string())),
        _ => Ok(journal),
    }
}

fn folder_of(path: &Path) -> Option<&OsStr> {
    path.parent()?.file_name()
}

/// Returns whether `systemd-journal-remote` wrote the file: it then contains entries of other machines.
fn is_of_others(path: &Path) -> bool {
    let has_folder = folder_of(path).is_some_and(|folder| folder == "remote");
    let has_prefix = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"remote-"));
    has_folder || has_prefix
}

/// Returns the running boot, or the last boot of a mounted disk.
fn last_boot(host: &Host, journal: &mut Files) -> Option<Boot> {
    let boots = journal.boots();
    let running = host.fact("/proc/sys/kernel/random/boot_id");
    let running: Option<Id128> = running.and_then(|id| id.replace('-', "").parse().ok());
    boots.iter().find(|boot| Some(boot.id) == running).or(boots.last()).copied()
}

fn write(mut journal: Files, filter: Filter, to: &str, source: &str, sink: &mut Sink) {
    journal.set_filter(filter);
    let since = sink.since().map(|since| u64::try_from(since.as_microsecond()).unwrap_or_default());
    sink.file(to, source, Framing::Entries, |sink| {
        let mut writer = EntryWriter::default();
        let mut any = false;
        if let Some(since) = since {
            search_before(&mut journal, since, sink);
            journal.seek(Seek::Time(since));
        }
        while let Some(entry) = journal.next() {
            any = true;
            let parts = parts_of_entry(entry).map_err(|error| Trouble::Failed(chain(&error).to_string()))?;
            writer.write(&parts, sink)?;
        }
        match journal.problems().first() {
            Some(problem) if !any => Err(Trouble::Failed(chain(&problem.error).to_string())),
            _ if !any && since.is_some() => Err(Trouble::Skipped("no entries since the requested time")),
            _ if !any => Err(Trouble::Absent),
            _ => Ok(()),
        }
    });
}

/// Searches the entries shortly before a time: a secret of several lines may have started there.
///
/// Earlier entries are omitted unsearched.
fn search_before(journal: &mut Files, since: u64, sink: &mut FileSink<'_>) {
    sink.pass_over_entries();
    let Ok(left) = sink.time_left() else { return };
    let until = Instant::now() + left / SEARCH_SHARE;
    journal.seek(Seek::Time(since.saturating_sub(SEARCHED_MICROSECONDS)));
    while let Some(entry) = journal.next() {
        if entry.cursor().realtime >= since {
            break;
        }
        if Instant::now() >= until {
            // Too many entries: continue as if none had been searched.
            sink.pass_over_entries();
            return;
        }
        let Ok(parts) = parts_of_entry(entry) else { continue };
        for (line, ends) in lines(&parts) {
            sink.search_entry(owner(&parts), line, ends);
        }
    }
    sink.end_search();
}

/// Returns the unit or program whose messages continue each other.
fn owner(parts: &Parts) -> &[u8] {
    if parts.unit().is_empty() { parts.name() } else { parts.unit() }
}

/// Returns the lines of a message. Only the last one may continue in the next entry.
fn lines(parts: &Parts) -> impl Iterator<Item = (&[u8], Ends)> {
    let mut lines = parts.message().split(|byte| *byte == b'\n').peekable();
    std::iter::from_fn(move || {
        let line = lines.next()?;
        let is_last = lines.peek().is_none();
        let ends = if is_last && parts.may_continue() { Ends::Unknown } else { Ends::Line };
        Some((line, ends))
    })
}

// === impl EntryWriter ===

impl EntryWriter {
    fn write(&mut self, parts: &Parts, sink: &mut FileSink<'_>) -> Result<(), Trouble> {
        let host = clean(parts.host(), &mut self.names, sink);
        let name = clean(parts.name(), &mut self.names, sink);
        let head = parts.head(host.as_bytes(), name.as_bytes(), self.is_impersonator(parts));
        for (line, ends) in lines(parts) {
            sink.entry(owner(parts), &head, line, ends)?;
        }
        Ok(())
    }

    fn is_impersonator(&mut self, parts: &Parts) -> bool {
        let key = parts.writer_key();
        if let Some(known) = self.impersonators.get(&key) {
            return *known;
        }
        let is_impersonator = Origins::embedded().is_impersonated(&parts.fields());
        if self.impersonators.len() < MAX_NAMES {
            self.impersonators.insert(key, is_impersonator);
        }
        is_impersonator
    }
}

/// Programs choose their names, and may choose a secret.
fn clean(name: &[u8], names: &mut HashMap<Vec<u8>, String>, sink: &FileSink<'_>) -> String {
    if let Some(clean) = names.get(name) {
        return clean.clone();
    }
    // Redacted before it is simplified: afterwards a secret may no longer be recognizable.
    let clean = sink.clean(&String::from_utf8_lossy(name));
    let clean: String =
        clean.chars().map(|c| if c.is_control() || c.is_whitespace() { '_' } else { c }).collect();
    if names.len() < MAX_NAMES {
        names.insert(name.to_vec(), clean.clone());
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_of_other_machines_are_recognized() {
        for (path, expected) in [
            ("/var/log/journal/remote/remote-192.0.2.1.journal", true),
            ("/var/log/journal/remote/x.journal", true),
            ("/var/log/journal/remote-192.0.2.1.journal", true),
            ("/var/log/journal/0123456789abcdef0123456789abcdef/system.journal", false),
            ("/run/log/journal/system.journal", false),
        ] {
            assert_eq!(is_of_others(Path::new(path)), expected, "{path}");
        }
    }
}
