//! A carrier to a directory that another process empties: a shared mount, a guest agent, a test.

use std::path::PathBuf;

use landfall_durable::{self as durable, Access, HostDisk};
use landfall_model::envelope::ReportId;

use super::{Carrier, CarryError};

/// A carrier that writes each report atomically as `ID.json`.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

// === impl Folder ===

impl Folder {
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }
}

impl Carrier for Folder {
    fn name(&self) -> &'static str {
        "folder"
    }

    fn carry(&mut self, id: ReportId, envelope: &[u8]) -> Result<(), CarryError> {
        let path = self.path.join(format!("{id}.json"));
        durable::write(&HostDisk, &path, envelope, Access::PRIVATE)
            .map_err(|source| CarryError::Later(Box::new(source)))
    }
}
