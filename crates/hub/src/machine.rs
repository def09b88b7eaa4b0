//! Details of the machine in a bundle beside its logs: failing units and the results of probes.

use std::collections::VecDeque;
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use landfall_evidence::bundle;

use crate::bundles::BundleError;

/// Maximum number of files per kind: a failing machine has few failed units.
const MAX_PARTS: usize = 40;
/// Maximum number of bytes shown of such a file.
const MAX_PART: u64 = 16 << 10;
/// Maximum number of bytes decompressed to find them.
const MAX_UNPACKED: u64 = 1 << 30;
/// Maximum compressed size of a bundle that is read during the request of a page.
pub(crate) const MAX_PACKED: u64 = 64 << 20;
/// Maximum number of cached machines; a page with live updates requests the same one repeatedly.
const MAX_REMEMBERED: usize = 64;

/// Units and probes of one bundle.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// Failing units first.
    pub(crate) units: Vec<Part>,
    pub(crate) probes: Vec<Part>,
}

/// A small file, or its beginning.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Cache of the last requested machines by the digest of their bundle. Bundles do not change.
#[derive(Debug, Default)]
pub(crate) struct Remembered(Mutex<VecDeque<(String, Arc<Machine>)>>);

// === impl Remembered ===

impl Remembered {
    pub(crate) fn get(&self, digest: &str) -> Option<Arc<Machine>> {
        let machines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        machines.iter().find(|(known, _)| known == digest).map(|(_, machine)| Arc::clone(machine))
    }

    pub(crate) fn add(&self, digest: String, machine: &Arc<Machine>) {
        let mut machines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        machines.retain(|(known, _)| *known != digest);
        machines.push_back((digest, Arc::clone(machine)));
        if machines.len() > MAX_REMEMBERED {
            machines.pop_front();
        }
    }
}

/// Reads a bundle. Blocking.
pub(crate) fn read(packed: impl Read) -> Result<Machine, BundleError> {
    let mut machine = Machine::default();
    bundle::walk(packed, MAX_UNPACKED, &mut |_, record, content| {
        if let Some(record) = record {
            machine.take(&record.item.path, content)?;
        }
        Ok(ControlFlow::Continue(()))
    })
    .map_err(BundleError::NotABundle)?;
    machine.units.sort_by(|one, other| (!one.is_bad(), &one.name).cmp(&(!other.is_bad(), &other.name)));
    machine.probes.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(machine)
}

// === impl Machine ===

impl Machine {
    fn take(&mut self, path: &str, content: &mut dyn Read) -> std::io::Result<()> {
        let unit = path.strip_prefix("unit-status/").and_then(|name| name.strip_suffix(".txt"));
        let (parts, name) = match (unit, path.strip_prefix("bootstrap/probes/")) {
            (Some(unit), _) => (&mut self.units, unit),
            (None, Some(probe)) => (&mut self.probes, probe.trim_end_matches(".txt")),
            (None, None) => return Ok(()),
        };
        if parts.len() < MAX_PARTS {
            parts.push(Part::read(name, path, content)?);
        }
        Ok(())
    }
}

// === impl Part ===

impl Part {
    fn read(name: &str, path: &str, content: &mut dyn Read) -> std::io::Result<Self> {
        let mut bytes = Vec::new();
        content.take(MAX_PART).read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Self { name: name.to_owned(), path: path.to_owned(), text })
    }

    /// Returns the line with the state of the unit.
    pub(crate) fn state(&self) -> Option<&str> {
        self.text.lines().find_map(|line| line.trim().strip_prefix("Active:")).map(str::trim)
    }

    /// Returns whether the unit failed. systemd calls a unit that is restarted repeatedly *activating*, not
    /// *failed*.
    pub(crate) fn is_bad(&self) -> bool {
        self.state().is_some_and(|state| state.starts_with("failed") || state.contains("(auto-restart)"))
    }
}
