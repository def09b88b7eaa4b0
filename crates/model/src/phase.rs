use std::fmt;

use serde::{Deserialize, Serialize};

/// A stage in the life of a machine from power to a Ready node, in the order they happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Phase {
    /// Firmware and boot loader, as far as a console shows them.
    Firmware,
    /// Kernel and initial RAM disk.
    Kernel,
    /// Ignition, before the real root is entered.
    Ignition,
    /// cloud-init, all its stages.
    CloudInit,
    /// Container runtime: containerd, CRI-O, Docker.
    Runtime,
    /// A first control plane is made: `kubeadm init`, bootkube, `k3s server`, `rke2 server`.
    ControlPlane,
    /// This machine joins a cluster that exists: `kubeadm join`, `nodeadm`, agent modes.
    Join,
    /// kubelet starts, registers the node and reports status.
    Kubelet,
    /// Pod network and the add-ons a node needs to be Ready.
    Network,
    /// The node is Ready.
    Ready,
}

// === impl Phase ===

impl Phase {
    pub const ALL: [Self; 10] = [
        Self::Firmware,
        Self::Kernel,
        Self::Ignition,
        Self::CloudInit,
        Self::Runtime,
        Self::ControlPlane,
        Self::Join,
        Self::Kubelet,
        Self::Network,
        Self::Ready,
    ];

    /// The name used in every format and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Firmware => "firmware",
            Self::Kernel => "kernel",
            Self::Ignition => "ignition",
            Self::CloudInit => "cloud-init",
            Self::Runtime => "runtime",
            Self::ControlPlane => "control-plane",
            Self::Join => "join",
            Self::Kubelet => "kubelet",
            Self::Network => "network",
            Self::Ready => "ready",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_formats_agree_and_order_is_life_order() {
        for phase in Phase::ALL {
            assert_eq!(serde_json::to_value(phase).unwrap(), phase.name());
        }
        assert!(Phase::ALL.is_sorted());
    }
}
