//! The table of breakages: what is broken, how, and the expected diagnosis.

use serde::Deserialize;

/// One breakage, as in `breakages/*.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Breakage {
    pub(crate) name: String,
    /// The expected cause of the verdict.
    pub(crate) cause: String,
    /// Commands that break it and start the components. In `node.toml` they run on the node, with the
    /// functions of `node.sh`. In `control-plane.toml` they run on this machine, and their output is the log.
    pub(crate) run: String,
    /// Commands for the cluster, before `run`: `kubectl` as its administrator.
    #[serde(default)]
    pub(crate) cluster: String,
    /// Text in the components' logs that shows the failure. Evidence is read only after it appears.
    pub(crate) until: String,
    /// Commands that repair the node.
    #[serde(default)]
    pub(crate) mend: String,
    /// Commands that repair the cluster.
    #[serde(default)]
    pub(crate) mend_cluster: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    breakage: Vec<Breakage>,
}

// === impl Breakage ===

impl Breakage {
    /// Returns the entries of a table; only the one named by `LANDFALL_BREAKAGE`, if set.
    pub(crate) fn read(table: &str) -> Vec<Self> {
        let table: Table = toml::from_str(table).unwrap();
        let only = std::env::var("LANDFALL_BREAKAGE").ok();
        let chosen = |breakage: &Self| {
            only.as_ref().is_none_or(|only| only.split(',').any(|name| name == breakage.name))
        };
        table.breakage.into_iter().filter(chosen).collect()
    }
}
