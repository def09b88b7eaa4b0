//! Prerequisites of a node and a cluster for `kubeadm join`.

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{HOST_ADDRESS, NodeSpec};
use crate::{ApiServer, ApiServerSpec, Binary, BootstrapToken, Need, eventually};

/// Name of the API server for nodes.
pub const API_NAME: &str = "api.landfall.test";
const SIGN_LIMIT: Duration = Duration::from_mins(1);
const JOIN_CONFIGURATION: &str = "/run/kubeadm/kubeadm-join-config.yaml";

/// The cluster's part of a join: endpoint and token.
#[derive(Clone, Debug)]
pub struct Invitation {
    pub endpoint: String,
    pub token: BootstrapToken,
}

// === impl Invitation ===

impl Invitation {
    pub const NEEDS: &'static [Need] = &[Need::Built(Binary::Kubeadm)];

    /// Returns options for an API server that nodes can reach and whose certificate they accept.
    pub fn api_server() -> ApiServerSpec {
        ApiServerSpec {
            names: vec![API_NAME.to_owned(), HOST_ADDRESS.to_string()],
            ..ApiServerSpec::default()
        }
    }

    /// Creates the cluster objects of `kubeadm init`: its configuration and the kubelet's, the public
    /// `cluster-info`, a token, and the token's permissions. A controller manager must run; it signs
    /// `cluster-info`.
    pub fn create(cluster: &ApiServer) -> Result<Self> {
        let token = BootstrapToken { id: "abcdef".to_owned(), secret: "0123456789abcdef".to_owned() };
        let endpoint = format!("{API_NAME}:{}", cluster.port());
        let configuration = cluster.directory().join("kubeadm.yaml");
        std::fs::write(&configuration, init_configuration(&endpoint, &token)?)
            .context("write kubeadm's configuration")?;
        for phase in [&["upload-config", "all"][..], &["bootstrap-token", "--skip-token-print"]] {
            kubeadm_phase(phase, &configuration, &cluster.admin_kubeconfig())?;
        }
        let cluster_info = |arguments: &[&str]| {
            let all = [&["-n", "kube-public"], arguments, &["configmap", "cluster-info"]].concat();
            cluster.kubectl(&all)
        };
        // kubeadm publishes its own address, which nodes cannot reach. The old signature must be removed with
        // it.
        let published = cluster_info(&["get", "-o", "jsonpath={.data.kubeconfig}"])?;
        ensure!(published.contains(&cluster.url()), "`cluster-info` does not name {}", cluster.url());
        let published = published.replace(&cluster.url(), &format!("https://{endpoint}"));
        let signature = format!("jws-kubeconfig-{}", token.id);
        let patch = json!({"data": {"kubeconfig": published, signature.as_str(): null}}).to_string();
        cluster_info(&["patch", "--type=merge", "--patch", &patch])?;
        let path = format!("jsonpath={{.data.{signature}}}");
        eventually("the controller manager to sign `cluster-info`", SIGN_LIMIT, || {
            let signed = cluster_info(&["get", "-o", &path]).ok()?;
            (!signed.is_empty()).then_some(())
        })?;
        Ok(Self { endpoint, token })
    }

    /// Returns a node that joins at its first boot, as with Cluster API.
    pub fn node(&self, name: &str) -> NodeSpec {
        NodeSpec {
            user_data: self.user_data(&self.join_configuration()),
            hosts: vec![(IpAddr::V4(HOST_ADDRESS), API_NAME.to_owned())],
            ..NodeSpec::new(name)
        }
    }

    /// Returns the configuration for `kubeadm join`.
    pub fn join_configuration(&self) -> Value {
        json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "JoinConfiguration",
            "discovery": {"bootstrapToken": {
                "apiServerEndpoint": self.endpoint,
                "token": self.token.text(),
                "unsafeSkipCAVerification": true,
            }},
            "nodeRegistration": {
                "criSocket": "unix:///run/containerd/containerd.sock",
                // On a machine with version 1 cgroups kubeadm would otherwise fail.
                "ignorePreflightErrors": ["SystemVerification"],
            },
        })
    }

    /// Returns the cloud-config that runs `kubeadm join` with this configuration.
    pub fn user_data(&self, join_configuration: &Value) -> String {
        let done = "/run/cluster-api/bootstrap-success.complete";
        let config = json!({
            "write_files": [
                {"path": JOIN_CONFIGURATION, "permissions": "0640", "content": join_configuration.to_string()},
                // Creates the directory for the success file.
                {"path": "/run/cluster-api/placeholder", "permissions": "0640", "content": ""},
            ],
            "runcmd": [format!("kubeadm join --config {JOIN_CONFIGURATION} && echo success > {done}")],
        });
        format!("#cloud-config\n{config}\n")
    }
}

/// Returns the three documents that `kubeadm init` reads.
fn init_configuration(endpoint: &str, token: &BootstrapToken) -> Result<String> {
    let version = Command::new(Binary::Kubeadm.path()?).args(["version", "-o", "short"]).output();
    let version =
        String::from_utf8(version.context("run `kubeadm`")?.stdout).context("read kubeadm's version")?;
    let init = json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "InitConfiguration",
        "bootstrapTokens": [{"token": token.text(), "ttl": "1h0m0s"}],
        "localAPIEndpoint": {"advertiseAddress": HOST_ADDRESS},
        "nodeRegistration": {"name": "control-plane", "criSocket": "unix:///run/containerd/containerd.sock"},
    });
    let cluster = json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "ClusterConfiguration",
        // Without a version kubeadm requests the latest one from the internet.
        "kubernetesVersion": version.trim(),
        "controlPlaneEndpoint": endpoint,
    });
    let kubelet = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "systemd",
        "failCgroupV1": false,
        // The disk is that of the test machine, which may be full.
        "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%"},
        "imageGCHighThresholdPercent": 100,
    });
    Ok(format!("{init}\n---\n{cluster}\n---\n{kubelet}\n"))
}

fn kubeadm_phase(phase: &[&str], configuration: &Path, kubeconfig: &Path) -> Result<()> {
    let output = Command::new(Binary::Kubeadm.path()?)
        .args(["init", "phase"])
        .args(phase)
        .arg("--config")
        .arg(configuration)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .output()
        .context("run `kubeadm`")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "kubeadm init phase {}: {}", phase.join(" "), errors.trim());
    Ok(())
}
