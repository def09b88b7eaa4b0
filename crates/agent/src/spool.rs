//! What a carrier has yet to bring: one file per report, in the order they were made.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use landfall_model::envelope::{Envelope, ReportId, written};
use landfall_steps::durable::{self, Access, Disk};

/// Reports that wait. When there are more, the oldest goes: the newest says where the machine stands now.
const MAX_REPORTS: usize = 64;
/// A report is below 100 KiB.
const MAX_REPORT: u64 = 4 << 20;
const SUFFIX: &str = ".json";
/// Where the spools of all carriers are, below the state folder.
pub(crate) const SPOOLS: &str = "spool";
/// Reports that wait in memory when the disk does not take them.
const MAX_UNWRITTEN: usize = 8;

/// The folder of one carrier.
#[derive(Clone, Debug)]
pub struct Spool<'d> {
    disk: &'d dyn Disk,
    folder: PathBuf,
    aside: Arc<Mutex<Aside>>,
}

/// Where the disk and what is so differ: it is full, or may only be read.
#[derive(Debug, Default)]
struct Aside {
    unwritten: BTreeMap<ReportId, Vec<u8>>,
    /// Brought, and still there.
    brought: BTreeSet<ReportId>,
    /// The last one that the other side did not take from us.
    not_permitted: Option<ReportId>,
}

#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    #[error("cannot write to the spool")]
    Write(#[source] durable::Error),
    #[error("cannot list the spool `{}`", folder.display())]
    List {
        folder: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot put the report into its envelope")]
    Envelope(#[source] serde_json::Error),
}

// === impl Spool ===

impl<'d> Spool<'d> {
    pub fn open(disk: &'d dyn Disk, folder: &Path) -> Result<Self, SpoolError> {
        durable::create_dir(disk, folder, Access::PRIVATE_DIR).map_err(SpoolError::Write)?;
        Ok(Self { disk, folder: folder.to_owned(), aside: Arc::default() })
    }

    /// Adds a report; one that is there already is not added twice. One that the disk does not take waits in memory, and the
    /// error says why.
    pub fn add(&self, envelope: &Envelope) -> Result<(), SpoolError> {
        let bytes = written(envelope).map_err(SpoolError::Envelope)?;
        if self.disk.read(&self.path(envelope.id), MAX_REPORT).is_ok_and(|known| known == bytes) {
            return Ok(());
        }
        if let Err(error) = durable::write(self.disk, &self.path(envelope.id), &bytes, Access::PRIVATE) {
            let mut aside = self.aside();
            aside.unwritten.insert(envelope.id, bytes);
            while aside.unwritten.len() > MAX_UNWRITTEN {
                aside.unwritten.pop_first();
            }
            return Err(SpoolError::Write(error));
        }
        let waiting = self.waiting()?;
        for id in &waiting[..waiting.len().saturating_sub(MAX_REPORTS)] {
            self.remove(*id)?;
        }
        Ok(())
    }

    /// The reports that wait, oldest first.
    pub fn waiting(&self) -> Result<Vec<ReportId>, SpoolError> {
        let listed = self.disk.names(&self.folder);
        let names = listed.map_err(|source| SpoolError::List { folder: self.folder.clone(), source })?;
        let id = |name: &std::ffi::OsString| name.to_str()?.strip_suffix(SUFFIX)?.parse().ok();
        let aside = self.aside();
        // Ids made later sort later.
        let mut ids: BTreeSet<ReportId> = names.iter().filter_map(id).collect();
        ids.extend(aside.unwritten.keys());
        Ok(ids.difference(&aside.brought).copied().collect())
    }

    /// Whether a report that says nothing new may be added. While something waits to be brought, the other side is away: many of
    /// those would push out what was news. One that is not taken from us waits for a newer one to take its place.
    pub(crate) fn takes_repeats(&self) -> bool {
        let not_permitted = self.aside().not_permitted;
        self.waiting().is_ok_and(|waiting| waiting.iter().all(|id| Some(*id) == not_permitted))
    }

    pub(crate) fn not_permitted(&self, id: ReportId) {
        self.aside().not_permitted = Some(id);
    }

    /// The report as it was written; nothing when it is gone or cannot be read.
    pub fn read(&self, id: ReportId) -> Option<Vec<u8>> {
        let unwritten = self.aside().unwritten.get(&id).cloned();
        unwritten.or_else(|| self.disk.read(&self.path(id), MAX_REPORT).ok())
    }

    /// Forgets a report that was brought. One that the disk keeps is not brought again by this process.
    pub fn remove(&self, id: ReportId) -> Result<(), SpoolError> {
        if self.aside().unwritten.remove(&id).is_some() {
            return Ok(());
        }
        durable::remove(self.disk, &self.path(id)).map_err(|error| {
            self.aside().brought.insert(id);
            SpoolError::Write(error)
        })
    }

    fn aside(&self) -> MutexGuard<'_, Aside> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, id: ReportId) -> PathBuf {
        self.folder.join(format!("{id}{SUFFIX}"))
    }
}
