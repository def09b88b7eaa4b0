//! The queue of a carrier on disk: one file per report, in the order of creation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use landfall_durable::{self as durable, Access, Disk};
use landfall_model::envelope::ReportId;

use crate::keeper::{MAX_REPORT, SignedReport};

/// Reports per spool. Beyond it, the oldest is dropped: the newest has the current state.
const MAX_REPORTS: usize = 64;
const SUFFIX: &str = ".json";
/// Directory of all spools, below the state directory.
pub(crate) const SPOOLS: &str = "spool";
/// Reports kept in memory when the disk rejects them.
const MAX_UNWRITTEN: usize = 8;

/// The spool directory of one carrier.
#[derive(Clone, Debug)]
pub struct Spool<'d> {
    disk: &'d dyn Disk,
    folder: PathBuf,
    aside: Arc<Mutex<Aside>>,
}

/// Differences between the spool and its directory, on a full or read-only disk.
#[derive(Debug, Default)]
struct Aside {
    unwritten: BTreeMap<ReportId, Vec<u8>>,
    /// Delivered reports whose files could not be removed.
    brought: BTreeSet<ReportId>,
    /// The last report that the receiver did not permit from this node.
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
}

// === impl Spool ===

impl<'d> Spool<'d> {
    pub fn open(disk: &'d dyn Disk, folder: &Path) -> Result<Self, SpoolError> {
        durable::create_dir(disk, folder, Access::PRIVATE_DIR).map_err(SpoolError::Write)?;
        Ok(Self { disk, folder: folder.to_owned(), aside: Arc::default() })
    }

    /// Adds a report unless it is already spooled. A report that the disk rejects is kept in memory, and the
    /// error has the reason.
    pub fn add(&self, report: &SignedReport) -> Result<(), SpoolError> {
        let (id, envelope) = (report.message.id, &report.envelope);
        if self.disk.read(&self.path(id), MAX_REPORT).is_ok_and(|known| known == *envelope) {
            return Ok(());
        }
        if let Err(error) = durable::write(self.disk, &self.path(id), envelope, Access::PRIVATE) {
            let mut aside = self.aside();
            aside.unwritten.insert(id, envelope.clone());
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

    /// Returns the spooled reports, oldest first.
    pub fn waiting(&self) -> Result<Vec<ReportId>, SpoolError> {
        let listed = self.disk.names(&self.folder);
        let names = listed.map_err(|source| SpoolError::List { folder: self.folder.clone(), source })?;
        let id = |name: &std::ffi::OsString| name.to_str()?.strip_suffix(SUFFIX)?.parse().ok();
        let aside = self.aside();
        // IDs sort in the order of creation.
        let mut ids: BTreeSet<ReportId> = names.iter().filter_map(id).collect();
        ids.extend(aside.unwritten.keys());
        Ok(ids.difference(&aside.brought).copied().collect())
    }

    /// Whether an unchanged report may be added. While reports are spooled, the receiver is unreachable, and
    /// many unchanged reports would displace new ones. A report that is not permitted does not count: a newer
    /// one replaces it.
    pub(crate) fn takes_repeats(&self) -> bool {
        let not_permitted = self.aside().not_permitted;
        self.waiting().is_ok_and(|waiting| waiting.iter().all(|id| Some(*id) == not_permitted))
    }

    pub(crate) fn not_permitted(&self, id: ReportId) {
        self.aside().not_permitted = Some(id);
    }

    /// Returns the report as written, or `None` if it is missing or unreadable.
    pub fn read(&self, id: ReportId) -> Option<Vec<u8>> {
        let unwritten = self.aside().unwritten.get(&id).cloned();
        unwritten.or_else(|| self.disk.read(&self.path(id), MAX_REPORT).ok())
    }

    /// Removes a delivered report. If its file cannot be removed, this process does not deliver it again.
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
