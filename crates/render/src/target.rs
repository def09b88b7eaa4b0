/// The kind of host that the files are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An OpenShift machine; for bootstraps, the bootstrap machine of `openshift-install`.
    Openshift,
    /// A kubeadm machine.
    Kubeadm,
    /// A k3s machine.
    K3s,
    /// A Cluster API machine with kubeadm, configured by a `KubeadmControlPlane` or `KubeadmConfigTemplate`.
    Capi,
}

// === impl Target ===

impl Target {
    pub const ALL: [Self; 4] = [Self::Openshift, Self::Kubeadm, Self::K3s, Self::Capi];

    /// Returns the kubelet's directory of static pods.
    pub(crate) fn static_pods(self) -> &'static str {
        match self {
            Self::K3s => "/var/lib/rancher/k3s/agent/pod-manifests",
            Self::Openshift | Self::Kubeadm | Self::Capi => "/etc/kubernetes/manifests",
        }
    }
}
