/// Which kind of host the files are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A machine of OpenShift; the bootstrap machine of `openshift-install`, where there is one.
    Openshift,
    /// A machine of kubeadm.
    Kubeadm,
    /// A machine of k3s.
    K3s,
    /// A machine of Cluster API with kubeadm, which is configured by a `KubeadmControlPlane` or `KubeadmConfigTemplate`.
    Capi,
}

// === impl Target ===

impl Target {
    pub const ALL: [Self; 4] = [Self::Openshift, Self::Kubeadm, Self::K3s, Self::Capi];

    /// Where the kubelet looks for static pods.
    pub(crate) fn static_pods(self) -> &'static str {
        match self {
            Self::K3s => "/var/lib/rancher/k3s/agent/pod-manifests",
            Self::Openshift | Self::Kubeadm | Self::Capi => "/etc/kubernetes/manifests",
        }
    }
}
