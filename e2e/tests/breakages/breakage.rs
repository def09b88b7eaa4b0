//! The table: what is broken, how, and what the diagnosis must say.

use serde::Deserialize;

/// One thing broken, as `breakages/*.toml` has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Breakage {
    pub(crate) name: String,
    /// The cause that must come out on top.
    pub(crate) cause: String,
    /// Commands that break it and set the components to work. In `node.toml` they run on the node, with the functions of
    /// `node.sh`; in `control-plane.toml` on this machine, and what they print is the log.
    pub(crate) run: String,
    /// Commands for the cluster, before `run`: `kubectl` as its administrator.
    #[serde(default)]
    pub(crate) cluster: String,
    /// What the components say once they have failed. Until then the evidence is not looked at.
    pub(crate) until: String,
    /// Commands that put the node right again.
    #[serde(default)]
    pub(crate) mend: String,
    /// Commands that put the cluster right again.
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
    /// The entries of a table; only the one that `LANDFALL_BREAKAGE` names, when it is set.
    pub(crate) fn read(table: &str) -> Vec<Self> {
        let table: Table = toml::from_str(table).unwrap();
        let only = std::env::var("LANDFALL_BREAKAGE").ok();
        let chosen = |breakage: &Self| {
            only.as_ref().is_none_or(|only| only.split(',').any(|name| name == breakage.name))
        };
        table.breakage.into_iter().filter(chosen).collect()
    }
}
