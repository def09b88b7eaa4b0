//! The cause catalog: possible causes of a verdict and their relations.

use std::collections::BTreeMap;

use landfall_model::report::Class;
use landfall_model::{Cause, Phase};
use serde::Deserialize;

/// One cause, as `rules/causes.toml` describes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CauseEntry {
    pub name: Cause,
    /// Summary in one line; used if the matching rule has no more specific title.
    pub title: String,
    pub meaning: String,
    pub component: String,
    pub phase: Phase,
    pub class: Class,
    pub fix: String,
    pub prevent: String,
    /// Degree of generality: 0 names the exact problem. A finding explains more general ones.
    #[serde(default)]
    pub generality: u8,
    /// Whether applications also cause it. It then has little significance on a working node.
    #[serde(default)]
    pub workload: bool,
    /// Whether the fix destroys data, so that a single claim is not sufficient to name this cause.
    #[serde(default)]
    pub destructive: bool,
    #[serde(default)]
    pub references: Vec<String>,
    /// Broader names for the same problem, shown only when this one is not.
    #[serde(default)]
    pub general: Vec<Cause>,
    /// Causes that follow from this one.
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

    /// Returns the entry if its name is already in use.
    pub(crate) fn insert(&mut self, entry: CauseEntry) -> Result<(), Box<CauseEntry>> {
        match self.entries.entry(entry.name.clone()) {
            std::collections::btree_map::Entry::Vacant(slot) => {
                slot.insert(entry);
                Ok(())
            }
            std::collections::btree_map::Entry::Occupied(_) => Err(Box::new(entry)),
        }
    }

    /// Returns the first name that an entry uses but the catalog does not contain.
    pub(crate) fn dangling(&self) -> Option<(&Cause, &Cause)> {
        self.entries.values().find_map(|entry| {
            let mut named = entry.general.iter().chain(&entry.explains);
            named.find(|cause| !self.entries.contains_key(*cause)).map(|cause| (&entry.name, cause))
        })
    }
}
