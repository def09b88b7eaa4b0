use anyhow::Result;

use crate::{ApiServer, Binary, Need, Process};

/// A real kube-controller-manager: service accounts, garbage collection, and signing of node certificates.
#[derive(Debug)]
pub struct ControllerManager {
    _process: Process,
}

// === impl ControllerManager ===

impl ControllerManager {
    pub const NEEDS: &'static [Need] = &[Need::Built(Binary::KubeControllerManager)];

    pub fn start(cluster: &ApiServer) -> Result<Self> {
        let kubeconfig = cluster.kubeconfig_for("system:kube-controller-manager", "system:masters")?;
        let home = cluster.directory();
        let path = Binary::KubeControllerManager.path()?;
        let process = Process::start("kube-controller-manager", &path, home, |command| {
            let file = |name: &str| home.join(name).display().to_string();
            command.args([
                format!("--kubeconfig={}", kubeconfig.display()),
                "--secure-port=0".to_owned(),
                "--leader-elect=false".to_owned(),
                "--use-service-account-credentials".to_owned(),
                "--controllers=*,bootstrapsigner,tokencleaner".to_owned(),
                format!("--root-ca-file={}", file("ca.crt")),
                format!("--cluster-signing-cert-file={}", file("ca.crt")),
                format!("--cluster-signing-key-file={}", file("ca.key")),
                format!("--service-account-private-key-file={}", file("service-account.key")),
            ]);
        })?;
        Ok(Self { _process: process })
    }
}
