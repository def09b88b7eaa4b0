//! Leaves the last report with the agent of another node, in the place of a hub: it keeps it for whoever asks.

use std::path::Path;
use std::time::Duration;

use landfall_model::envelope::ReportId;
use tokio::runtime::Runtime;

use super::line::{Errand, HubError, Line, PushError};
use super::{Carrier, CarryError, runtime};

/// From the dial to the end of the answer: a neighbour is near, and another may be asked.
const PATIENCE: Duration = Duration::from_secs(10);

/// Agents of other nodes, any of which will do.
#[expect(missing_debug_implementations, reason = "holds the way to a key")]
pub struct Neighbour {
    lines: Vec<Line>,
    runtime: Runtime,
}

// === impl Neighbour ===

impl Neighbour {
    /// `places` are `HOST:PORT`; all of them have certificates of this authority.
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

    /// One that says nothing for three of them is called silent.
    fn beats(&self) -> Option<u64> {
        Some(1)
    }

    /// Done when one has it. Who is asked first is left to chance: a fleet that is born together has the same list.
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

/// One that may still take it counts for more than one that never will. Whose report it is, all judge alike: what one does not
/// take from us must not hold up what all would take, because another is away.
fn weight(error: &CarryError) -> u8 {
    match error {
        CarryError::Never(_) => 0,
        CarryError::Later(_) => 1,
        CarryError::NotPermitted(_) => 2,
    }
}

/// Without randomness the order stays, which is no reason to stop.
fn shuffle<T>(items: &mut [T]) {
    for last in (1..items.len()).rev() {
        let mut random = [0; 4];
        let _ = getrandom::fill(&mut random);
        let chosen = u32::from_ne_bytes(random) as usize % (last + 1);
        items.swap(last, chosen);
    }
}
