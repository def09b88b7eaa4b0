//! Pushes reports to a hub over HTTPS: `POST /api/v1/reports`, known by a token or a client certificate.

use std::path::{Path, PathBuf};
use std::time::Duration;

use landfall_model::envelope::ReportId;
use tokio::runtime::Runtime;

use super::line::{Errand, HubError, Line, PushError};
use super::{Carrier, CarryError, runtime};

/// From the dial to the end of the answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A hub, and who we are to it.
#[expect(missing_debug_implementations, reason = "holds the way to a token")]
pub struct Hub {
    line: Line,
    runtime: Runtime,
}

// === impl Hub ===

impl Hub {
    /// `authority` tells whom to trust, else those this machine trusts; a token, or a client certificate with its key, tells
    /// who we are.
    pub fn new(
        address: &str,
        authority: Option<&Path>,
        token: Option<PathBuf>,
        certificate: Option<(&Path, &Path)>,
    ) -> Result<Self, HubError> {
        let line = Line::new(address, authority, token, certificate)?;
        Ok(Self { line, runtime: runtime().map_err(HubError::Network)? })
    }
}

impl Carrier for Hub {
    fn name(&self) -> &'static str {
        "hub"
    }

    /// One that says nothing for three of them is called silent.
    fn beats(&self) -> Option<u64> {
        Some(1)
    }

    fn carry(&mut self, _: ReportId, envelope: &[u8]) -> Result<(), CarryError> {
        let errand = Errand::report("/api/v1/reports", envelope, PATIENCE);
        self.runtime.block_on(self.line.run(&errand)).map_err(PushError::judged)
    }
}
