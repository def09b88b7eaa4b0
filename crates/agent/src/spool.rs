//! What a carrier has yet to bring: one file per report, in the order they were made.

use std::path::{Path, PathBuf};

use landfall_model::envelope::{Envelope, ReportId, written};
use landfall_steps::durable::{self, Access, Disk};

/// Reports that wait. When there are more, the oldest goes: the newest says where the machine stands now.
const MAX_REPORTS: usize = 64;
/// A report is below 100 KiB.
const MAX_REPORT: u64 = 4 << 20;
const SUFFIX: &str = ".json";

/// The folder of one carrier.
#[derive(Clone, Debug)]
pub struct Spool<'d> {
    disk: &'d dyn Disk,
    folder: PathBuf,
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
        Ok(Self { disk, folder: folder.to_owned() })
    }

    /// Adds a report; one that is there already is not added twice.
    pub fn add(&self, envelope: &Envelope) -> Result<(), SpoolError> {
        let bytes = written(envelope).map_err(SpoolError::Envelope)?;
        durable::write(self.disk, &self.path(envelope.id), &bytes, Access::PRIVATE)
            .map_err(SpoolError::Write)?;
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
        let mut ids: Vec<ReportId> = names.iter().filter_map(id).collect();
        // Ids made later sort later.
        ids.sort_unstable();
        Ok(ids)
    }

    /// The report as it was written; nothing when it is gone or cannot be read.
    pub fn read(&self, id: ReportId) -> Option<Vec<u8>> {
        self.disk.read(&self.path(id), MAX_REPORT).ok()
    }

    /// Forgets a report that was brought.
    pub fn remove(&self, id: ReportId) -> Result<(), SpoolError> {
        durable::remove(self.disk, &self.path(id)).map_err(SpoolError::Write)
    }

    fn path(&self, id: ReportId) -> PathBuf {
        self.folder.join(format!("{id}{SUFFIX}"))
    }
}
