//! systemd configuration, as text only: a service that continues the attempt after each boot, and a gate before the
//! kubelet.

use std::path::PathBuf;

use crate::in_place::places::{PROGRAM, UNITS};

pub const SERVICE: &str = "landfall-in-place.service";
const GATE: &str = "landfall-in-place-gate.service";
const DROP_IN: &str = "kubelet.service.d/05-landfall-in-place.conf";

/// A file or a link to install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    File { path: PathBuf, text: String },
    Link { path: PathBuf, to: PathBuf },
}

/// Returns the path of the drop-in that makes the kubelet wait: without it, the gate is open.
pub fn drop_in() -> PathBuf {
    PathBuf::from(UNITS).join(DROP_IN)
}

/// Returns the files to remove once the ledger records the end: the gate first, then units that a boot starts, then
/// the others.
pub fn to_remove() -> Vec<PathBuf> {
    let at = |name: &str| PathBuf::from(UNITS).join(name);
    let link = at("multi-user.target.wants").join(SERVICE);
    vec![drop_in(), at(GATE), link, at(SERVICE), PROGRAM.into()]
}

/// Returns all files in the order of installation: the gate exists before the kubelet requires it.
pub fn placed() -> Vec<Placed> {
    let at = |name: &str| PathBuf::from(UNITS).join(name);
    let file = |name: &str, text: &str| Placed::File { path: at(name), text: text.to_owned() };
    vec![
        file(GATE, include_str!("../../units/landfall-in-place-gate.service")),
        file(SERVICE, include_str!("../../units/landfall-in-place.service")),
        Placed::Link { path: at("multi-user.target.wants").join(SERVICE), to: at(SERVICE) },
        file(DROP_IN, include_str!("../../units/05-landfall-in-place.conf")),
    ]
}

// === impl Placed ===

impl Placed {
    pub fn path(&self) -> &std::path::Path {
        match self {
            Self::File { path, .. } | Self::Link { path, .. } => path,
        }
    }
}
