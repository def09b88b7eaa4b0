use anyhow::Result;
use serde_json::json;

use crate::ApiServer;

/// A token with which nodes request their first certificate.
#[derive(Clone, Debug)]
pub struct BootstrapToken {
    pub id: String,
    pub secret: String,
}

// === impl BootstrapToken ===

impl BootstrapToken {
    /// Creates the token in the cluster, and the permissions to request a node's certificate with automatic
    /// approval.
    pub fn create(cluster: &ApiServer) -> Result<Self> {
        let token = Self { id: "abcdef".to_owned(), secret: "0123456789abcdef".to_owned() };
        let bind = |name: &str, role: &str, group: &str| {
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
            })
        };
        let bootstrappers = "system:bootstrappers";
        let approve = "system:certificates.k8s.io:certificatesigningrequests";
        cluster.apply(&json!({
            "apiVersion": "v1",
            "kind": "List",
            "items": [
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "type": "bootstrap.kubernetes.io/token",
                    "metadata": {"name": format!("bootstrap-token-{}", token.id), "namespace": "kube-system"},
                    "stringData": {
                        "token-id": token.id,
                        "token-secret": token.secret,
                        "usage-bootstrap-authentication": "true",
                        "usage-bootstrap-signing": "true",
                        "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
                    },
                },
                bind("test:bootstrap", "system:node-bootstrapper", bootstrappers),
                bind("test:approve", &format!("{approve}:nodeclient"), bootstrappers),
                bind("test:renew", &format!("{approve}:selfnodeclient"), "system:nodes"),
            ],
        }))?;
        Ok(token)
    }

    /// Returns the token in command line form.
    pub fn text(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}
