use std::fmt;

use serde::{Deserialize, Serialize};

/// A phase of a host's bootstrap from power-on to a ready node, in chronological order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Phase {
    /// Firmware and boot loader, as far as a console shows them.
    Firmware,
    /// Kernel and initial RAM disk.
    Kernel,
    /// Ignition, before the switch to the real root.
    Ignition,
    /// All stages of cloud-init.
    CloudInit,
    /// Container runtime: containerd, CRI-O, Docker.
    Runtime,
    /// Creation of the first control plane: `kubeadm init`, bootkube, `k3s server`, `rke2 server`.
    ControlPlane,
    /// Joining an existing cluster: `kubeadm join`, `nodeadm`, agent modes.
    Join,
    /// Start of the kubelet, registration of the node, and its first status.
    Kubelet,
    /// Pod network and the add-ons that a ready node needs.
    Network,
    /// The node is ready.
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

    /// Returns the name used in every format and on the command line.
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
