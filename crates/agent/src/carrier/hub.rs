//! A carrier that pushes reports to a hub over HTTPS.
//!
//! It sends `POST /api/v1/reports`, authenticated by a token or a client certificate.

use std::path::{Path, PathBuf};
use std::time::Duration;

use landfall_model::envelope::ReportId;
use tokio::runtime::Runtime;

use super::line::{Errand, HubError, Line, PushError};
use super::{Carrier, CarryError, runtime};

/// Time from the dial to the end of the response.
const PATIENCE: Duration = Duration::from_secs(20);

/// A carrier to a hub, with the agent's credentials.
#[expect(missing_debug_implementations, reason = "holds the way to a token")]
pub struct Hub {
    line: Line,
    runtime: Runtime,
}

// === impl Hub ===

impl Hub {
    /// Creates a carrier. `authority` is a CA file, by default the machine's trust store. A token, or a
    /// client certificate with its key, authenticates the agent.
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

    /// Every heartbeat: the hub treats a node as silent after three missed ones.
    fn beats(&self) -> Option<u64> {
        Some(1)
    }

    fn carry(&mut self, _: ReportId, envelope: &[u8]) -> Result<(), CarryError> {
        let errand = Errand::report("/api/v1/reports", envelope, PATIENCE);
        self.runtime.block_on(self.line.run(&errand)).map_err(PushError::judged)
    }
}
