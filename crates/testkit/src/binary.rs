use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cache::{brought, cache_dir, fingerprint};

const KUBERNETES: Module = Module {
    name: "kubernetes",
    // Without these flags the binaries report version v0.0.0, which kubelet and kubeadm reject.
    link_flags: "-s -w \
        -X k8s.io/component-base/version.gitVersion=v1.36.4 \
        -X k8s.io/component-base/version.gitMajor=1 \
        -X k8s.io/component-base/version.gitMinor=36 \
        -X k8s.io/component-base/version.gitTreeState=clean",
    go_mod: include_str!("../../../testbed/kubernetes/go.mod"),
};
const CONTAINERD: Module = Module {
    name: "containerd",
    link_flags: "-s -w -X github.com/containerd/containerd/v2/version.Version=v2.3.7",
    go_mod: include_str!("../../../testbed/containerd/go.mod"),
};
const KONNECTIVITY: Module = Module {
    name: "konnectivity",
    link_flags: "-s -w",
    go_mod: include_str!("../../../testbed/konnectivity/go.mod"),
};
const NATS: Module =
    Module { name: "nats", link_flags: "-s -w", go_mod: include_str!("../../../testbed/nats/go.mod") };
const VERSITYGW: Module = Module {
    name: "versitygw",
    link_flags: "-s -w",
    go_mod: include_str!("../../../testbed/versitygw/go.mod"),
};

const HELM: Module =
    Module { name: "helm", link_flags: "-s -w", go_mod: include_str!("../../../testbed/helm/go.mod") };

/// A binary built from its Go module at a pinned version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    KubeApiserver,
    KubeControllerManager,
    Kubelet,
    Kubeadm,
    Kubectl,
    Containerd,
    ContainerdShim,
    Ctr,
    KonnectivityServer,
    KonnectivityAgent,
    NatsServer,
    Versitygw,
    Helm,
}

/// A directory of `testbed/` whose `go.mod` pins one project.
#[derive(Debug)]
struct Module {
    name: &'static str,
    link_flags: &'static str,
    go_mod: &'static str,
}

// === impl Binary ===

impl Binary {
    pub const ALL: [Self; 13] = [
        Self::KubeApiserver,
        Self::KubeControllerManager,
        Self::Kubelet,
        Self::Kubeadm,
        Self::Kubectl,
        Self::Containerd,
        Self::ContainerdShim,
        Self::Ctr,
        Self::KonnectivityServer,
        Self::KonnectivityAgent,
        Self::NatsServer,
        Self::Versitygw,
        Self::Helm,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::Kubelet => "kubelet",
            Self::Kubeadm => "kubeadm",
            Self::Kubectl => "kubectl",
            Self::Containerd => "containerd",
            Self::ContainerdShim => "containerd-shim-runc-v2",
            Self::Ctr => "ctr",
            Self::KonnectivityServer => "proxy-server",
            Self::KonnectivityAgent => "proxy-agent",
            Self::NatsServer => "nats-server",
            Self::Versitygw => "versitygw",
            Self::Helm => "helm",
        }
    }

    fn package(self) -> String {
        match self {
            Self::Containerd | Self::ContainerdShim | Self::Ctr => {
                format!("github.com/containerd/containerd/v2/cmd/{}", self.name())
            }
            Self::KonnectivityServer => "sigs.k8s.io/apiserver-network-proxy/cmd/server".to_owned(),
            Self::KonnectivityAgent => "sigs.k8s.io/apiserver-network-proxy/cmd/agent".to_owned(),
            Self::NatsServer => "github.com/nats-io/nats-server/v2".to_owned(),
            Self::Versitygw => "github.com/versity/versitygw/cmd/versitygw".to_owned(),
            Self::Helm => "helm.sh/helm/v3/cmd/helm".to_owned(),
            _ => format!("k8s.io/kubernetes/cmd/{}", self.name()),
        }
    }

    fn module(self) -> &'static Module {
        match self {
            Self::Containerd | Self::ContainerdShim | Self::Ctr => &CONTAINERD,
            Self::KonnectivityServer | Self::KonnectivityAgent => &KONNECTIVITY,
            Self::NatsServer => &NATS,
            Self::Versitygw => &VERSITYGW,
            Self::Helm => &HELM,
            _ => &KUBERNETES,
        }
    }

    /// Returns the path of the binary, built or not: in `$LANDFALL_TESTBED_BIN` if set, else in the cache, in
    /// a directory that depends on the pinned versions.
    pub fn path(self) -> Result<PathBuf> {
        if let Some(path) = brought(self.name()) {
            return Ok(path);
        }
        let module = self.module();
        let version = fingerprint(&[module.go_mod, module.link_flags]);
        Ok(cache_dir()?.join(format!("{}-{version}", module.name)).join(self.name()))
    }

    /// Builds the binary if it does not exist. `testbed` is the repository's directory of that name.
    pub fn build(self, testbed: &Path) -> Result<()> {
        let target = self.path()?;
        if target.is_file() {
            return Ok(());
        }
        ensure!(
            brought(self.name()).is_none(),
            "`{}` is not in $LANDFALL_TESTBED_BIN; hint: unset the variable to have it built",
            self.name()
        );
        let directory = target.parent().context("a cached program has a folder")?;
        std::fs::create_dir_all(directory).with_context(|| format!("create `{}`", directory.display()))?;
        // Built under a temporary name and renamed, so that an interrupted build leaves no incomplete binary.
        let partial = directory.join(format!(".{}.{}", self.name(), std::process::id()));
        let status = Command::new("go")
            .current_dir(testbed.join(self.module().name))
            .args([
                "build",
                "-mod=readonly",
                "-trimpath",
                "-buildvcs=false",
                "-ldflags",
                self.module().link_flags,
                "-o",
            ])
            .arg(&partial)
            .arg(self.package())
            .env("CGO_ENABLED", "0")
            .env("GOTOOLCHAIN", "local")
            .env_remove("GOFLAGS")
            .status()
            .context("run `go`; hint: the full test bed needs Go 1.26 or newer")?;
        ensure!(status.success(), "`go build` of `{}` failed", self.name());
        std::fs::rename(&partial, &target).with_context(|| format!("put `{}` in place", target.display()))
    }
}
