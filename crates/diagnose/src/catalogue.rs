//! The catalogue of causes: what a verdict may name, and how causes relate.

use std::collections::BTreeMap;

use landfall_model::report::Class;
use landfall_model::{Cause, Phase};
use serde::Deserialize;

/// One cause, as `rules/causes.toml` describes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CauseEntry {
    pub name: Cause,
    /// What happened, in one line; used when the rule that found it has nothing finer to say.
    pub title: String,
    pub meaning: String,
    pub component: String,
    pub phase: Phase,
    pub class: Class,
    pub fix: String,
    pub prevent: String,
    /// How much the name leaves open: 0 says exactly what is wrong. A finding explains those that are more general.
    #[serde(default)]
    pub generality: u8,
    /// Applications bring it about too, so it means little once the node works.
    #[serde(default)]
    pub workload: bool,
    /// The fix destroys data, so a single claim is not enough to name this cause.
    #[serde(default)]
    pub destructive: bool,
    #[serde(default)]
    pub references: Vec<String>,
    /// The broader names for the same trouble: shown only when this one is not.
    #[serde(default)]
    pub general: Vec<Cause>,
    /// What else this cause brings about.
    #[serde(default)]
    pub explains: Vec<Cause>,
}

/// All causes by name.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    entries: BTreeMap<Cause, CauseEntry>,
}

// === impl Catalogue ===

impl Catalogue {
    pub fn get(&self, cause: &Cause) -> Option<&CauseEntry> {
        self.entries.get(cause)
    }

    pub fn iter(&self) -> impl Iterator<Item = &CauseEntry> {
        self.entries.values()
    }

    /// Returns the entry back when its name is taken.
    pub(crate) fn insert(&mut self, entry: CauseEntry) -> Result<(), Box<CauseEntry>> {
        match self.entries.entry(entry.name.clone()) {
            std::collections::btree_map::Entry::Vacant(slot) => {
                slot.insert(entry);
                Ok(())
            }
            std::collections::btree_map::Entry::Occupied(_) => Err(Box::new(entry)),
        }
    }

    /// The first name used by an entry that is not itself in the catalogue.
    pub(crate) fn dangling(&self) -> Option<(&Cause, &Cause)> {
        self.entries.values().find_map(|entry| {
            let mut named = entry.general.iter().chain(&entry.explains);
            named.find(|cause| !self.entries.contains_key(*cause)).map(|cause| (&entry.name, cause))
        })
    }
}
