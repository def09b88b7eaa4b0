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
    let service = format!(
        "\
# Goes on with an in-place bootstrap after each boot. Put here, and taken away, by `landfall node in-place`.
[Unit]
Description=Go on with the in-place bootstrap of this machine
Documentation=man:landfall-node-in-place(1)
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
EnvironmentFile=-/etc/landfall/environment
ExecStart={PROGRAM} node in-place --go-on --reboot=systemd
# Waiting and what may come out better later are told by exit codes; refused and wrong usage stay as they are.
Restart=on-failure
RestartSec=15
RestartPreventExitStatus=64 77
SuccessExitStatus=100
# The daemon that is run must come to its end.
KillMode=mixed
TimeoutStopSec=120

[Install]
WantedBy=multi-user.target
"
    );
    let gate = format!(
        "\
# Keeps the kubelet from starting while this machine is between two lives.
[Unit]
Description=Wait until the kubelet of this machine may start
Before=kubelet.service

[Service]
Type=oneshot
RemainAfterExit=true
ExecStart={PROGRAM} node in-place --gate
TimeoutStartSec=infinity
"
    );
    let drop_in = format!(
        "\
# Put here, and taken away, by `landfall node in-place`.
[Unit]
Requires={GATE}
After={GATE}
"
    );
    vec![
        Placed::File { path: at(GATE), text: gate },
        Placed::File { path: at(SERVICE), text: service },
        Placed::Link { path: at("multi-user.target.wants").join(SERVICE), to: at(SERVICE) },
        Placed::File { path: at(DROP_IN), text: drop_in },
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
