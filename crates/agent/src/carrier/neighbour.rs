//! A carrier that leaves the last report with the agent of another node.
//!
//! That agent stores it and serves it to readers.

use std::path::Path;
use std::time::Duration;

use landfall_model::envelope::ReportId;
use tokio::runtime::Runtime;

use super::line::{Errand, HubError, Line, PushError};
use super::{Carrier, CarryError, runtime};

/// Time from the dial to the end of the response: a peer is near, and another one can be tried.
const PATIENCE: Duration = Duration::from_secs(10);

/// A carrier to the agents of other nodes; one delivery to any of them is enough.
#[expect(missing_debug_implementations, reason = "holds the way to a key")]
pub struct Neighbour {
    lines: Vec<Line>,
    runtime: Runtime,
}

// === impl Neighbour ===

impl Neighbour {
    /// Creates a carrier. `places` are `HOST:PORT`, and this CA has issued the certificates of all of them.
    pub fn new(places: &[String], authority: &Path, certificate: (&Path, &Path)) -> Result<Self, HubError> {
        if places.is_empty() {
            return Err(HubError::NoNeighbour);
        }
        let line =
            |place: &String| Line::new(&format!("https://{place}"), Some(authority), None, Some(certificate));
        let lines = places.iter().map(line).collect::<Result<_, _>>()?;
        Ok(Self { lines, runtime: runtime().map_err(HubError::Network)? })
    }
}

impl Carrier for Neighbour {
    fn name(&self) -> &'static str {
        "neighbour"
    }

    /// Every heartbeat: the hub treats a node as silent after three missed ones.
    fn beats(&self) -> Option<u64> {
        Some(1)
    }

    /// Returns once one peer has stored the report. The order is random, because nodes that boot together
    /// have the same list.
    fn carry(&mut self, _: ReportId, envelope: &[u8]) -> Result<(), CarryError> {
        let errand = Errand::report("/neighbours", envelope, PATIENCE);
        shuffle(&mut self.lines);
        let mut failed: Option<CarryError> = None;
        for line in &self.lines {
            match self.runtime.block_on(line.run(&errand)).map_err(PushError::judged) {
                Ok(()) => return Ok(()),
                Err(error) if failed.as_ref().is_none_or(|known| weight(&error) > weight(known)) => {
                    failed = Some(error);
                }
                Err(_) => {}
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Ranks errors; the highest one is returned. A peer that may still accept the report outweighs one that
/// never will. All peers apply the same naming rule, so a report that one peer does not permit must not wait
/// for an unreachable one.
fn weight(error: &CarryError) -> u8 {
    match error {
        CarryError::Never(_) => 0,
        CarryError::Later(_) => 1,
        CarryError::NotPermitted(_) => 2,
    }
}

/// Shuffles the items. Without random bytes, the order stays, which is acceptable.
fn shuffle<T>(items: &mut [T]) {
    for last in (1..items.len()).rev() {
        let mut random = [0; 4];
        let _ = getrandom::fill(&mut random);
        let chosen = u32::from_ne_bytes(random) as usize % (last + 1);
        items.swap(last, chosen);
    }
}
