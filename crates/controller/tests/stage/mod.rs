//! A cluster with the controller installed, and nodes simulated by the test.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use landfall_controller::manifests::{self, Platform, Rights, Settings};
use landfall_model::in_place::STATE_ANNOTATION;
use landfall_testkit::{ApiServer, ApiServerSpec, eventually};
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::{Value, json};

pub(crate) const NAMESPACE: &str = "landfall";
/// Generous, because the test host is loaded and every pass has a minimum interval.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

pub(crate) struct Stage {
    server: ApiServer,
    /// Kubeconfig of the controller's account.
    pub(crate) controller: PathBuf,
}

pub(crate) fn settings() -> Settings {
    Settings {
        namespace: NAMESPACE.to_owned(),
        selector: String::new(),
        image: "registry.example/landfall:1".to_owned(),
        template: Some("template".to_owned()),
        runner_arguments: Vec::new(),
    }
}

// === impl Stage ===

impl Stage {
    pub(crate) fn set() -> Self {
        // Required by the privileged pods of a cluster.
        let spec = ApiServerSpec {
            arguments: vec!["--allow-privileged=true".to_owned()],
            ..ApiServerSpec::default()
        };
        let server = ApiServer::start_with(&spec).unwrap();
        for (_, object) in manifests::install(&settings(), Rights::Approving, Platform::Kubernetes, &[]) {
            // No kubelet would run it.
            if object["kind"] != "Deployment" {
                server.apply(&object).unwrap();
            }
        }
        server
            .kubectl(&[
                "wait",
                "--for=condition=Established",
                "crd/nodebootstraps.landfall.dev",
                "--timeout=60s",
            ])
            .unwrap();
        server.kubectl(&["create", "serviceaccount", "-n", "default", "default"]).unwrap();
        let bootstrappers = [
            "create",
            "clusterrolebinding",
            "bootstrappers",
            "--clusterrole=system:node-bootstrapper",
            "--group=system:bootstrappers",
        ];
        server.kubectl(&bootstrappers).unwrap();
        let token = server.kubectl(&["create", "token", "-n", NAMESPACE, "landfall-controller"]).unwrap();
        let controller = kubeconfig(&server, "controller", token.trim());
        Self { server, controller }
    }

    /// Waits for a condition; a failure shows the state of the cluster.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, probe: impl FnMut() -> Option<()>) {
        if let Err(error) = eventually(what, PATIENCE, probe) {
            let shown =
                self.kubectl(&["get", "nodebootstraps,nodes,pods,pdb,csr,events", "-A", "-o", "wide"]);
            panic!("{error}\n{shown}");
        }
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        self.server.kubectl(arguments).unwrap()
    }

    /// Whether the API server would reject a write; the object is not changed.
    pub(crate) fn is_refused(&self, arguments: &[&str]) -> bool {
        self.server.kubectl(&[arguments, &["--dry-run=server"]].concat()).is_err()
    }

    pub(crate) fn apply(&self, object: &Value) {
        self.server.apply(object).unwrap();
    }

    /// Creates a node that its kubelet has registered and reports ready.
    pub(crate) fn node(&self, name: &str, labels: &[(&str, &str)]) {
        let labels: serde_json::Map<String, Value> =
            labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
        self.server.apply(&node).unwrap();
        self.boot(name, "boot-0");
    }

    pub(crate) fn boot(&self, name: &str, boot: &str) {
        self.server.report_ready(name, boot).unwrap();
        // Removes the taints of a new node, which no controller would remove here.
        self.kubectl(&["patch", "node", name, "--type=merge", "-p", r#"{"spec":{"taints":null}}"#]);
    }

    pub(crate) fn annotate(&self, node: &str, told: &str) {
        self.kubectl(&["annotate", "--overwrite", "node", node, &format!("{STATE_ANNOTATION}={told}")]);
    }

    /// Creates a pod that a controller would recreate elsewhere.
    pub(crate) fn pod(&self, namespace: &str, name: &str, node: &str) {
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": "1", "controller": true});
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}, "ownerReferences": [owner]},
            "spec": {"nodeName": node, "containers": [{"name": "x", "image": "x"}]},
        });
        self.server.apply(&pod).unwrap();
        // Budgets count running pods only.
        let ready =
            json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        let patch = ready.to_string();
        self.kubectl(&["patch", "pod", name, "-n", namespace, "--subresource=status", "-p", &patch]);
    }

    pub(crate) fn budget(&self, name: &str, allowed: u32) {
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}},
        });
        self.server.apply(&budget).unwrap();
        self.allow(name, allowed);
    }

    /// Writes the status that the disruption controller would compute.
    pub(crate) fn allow(&self, name: &str, allowed: u32) {
        let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "expectedPods": 1,
            "currentHealthy": 1, "desiredHealthy": 1}});
        let patch = status.to_string();
        self.kubectl(&[
            "patch",
            "pdb",
            name,
            "-n",
            "default",
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ]);
    }

    pub(crate) fn secret(&self, name: &str) {
        self.kubectl(&["create", "secret", "generic", name, "-n", NAMESPACE, "--from-literal=bootstrap={}"]);
    }

    /// Creates a request for a first certificate with the identity of a bootstrap token.
    pub(crate) fn request(&self, name: &str, node: &str) {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
        parameters.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        let pem = parameters.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        let request = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
            "spec": {
                "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                "usages": ["digital signature", "client auth"],
                "request": BASE64.encode(pem),
            },
        });
        let kubeconfig =
            self.server.kubeconfig_for("system:bootstrap:abcdef", "system:bootstrappers").unwrap();
        let file = self.server.directory().join(format!("csr-{name}.json"));
        std::fs::write(&file, request.to_string()).unwrap();
        let (kubeconfig, file) =
            (format!("--kubeconfig={}", kubeconfig.display()), file.display().to_string());
        // Of two equal flags, the last one counts.
        self.kubectl(&[&kubeconfig, "create", "-f", &file]);
    }

    /// Creates a kubeconfig with a pod's token, as the kubelet would issue it.
    pub(crate) fn token_of_pod(&self, pod: &str) -> PathBuf {
        let token = self.kubectl(&[
            "create",
            "token",
            "-n",
            NAMESPACE,
            "landfall-in-place",
            "--bound-object-kind=Pod",
            &format!("--bound-object-name={pod}"),
        ]);
        kubeconfig(&self.server, pod, token.trim())
    }

    pub(crate) fn get(&self, kind: &str, name: &str, path: &str) -> Option<String> {
        let found = self.server.kubectl(&["get", kind, name, "-o", &format!("jsonpath={path}")]).ok()?;
        (!found.is_empty()).then_some(found)
    }

    pub(crate) fn get_in(&self, namespace: &str, kind: &str, name: &str, path: &str) -> Option<String> {
        let path = format!("jsonpath={path}");
        self.server.kubectl(&["get", kind, name, "-n", namespace, "-o", &path]).ok()
    }

    /// Returns one field of the controller's record of a node.
    pub(crate) fn status(&self, node: &str, field: &str) -> Option<String> {
        self.get("nodebootstrap", node, &format!("{{.status.{field}}}"))
    }

    pub(crate) fn exists(&self, kind: &str, namespace: &str, name: &str) -> bool {
        self.server.kubectl(&["get", kind, name, "-n", namespace]).is_ok()
    }

    /// Runs `kubectl auth can-i`, which fails for "no".
    pub(crate) fn may(&self, user: &str, question: &[&str]) -> bool {
        let arguments: Vec<&str> =
            ["auth", "can-i", user].into_iter().chain(question.iter().copied()).collect();
        self.server.kubectl(&arguments).is_ok()
    }
}

fn kubeconfig(server: &ApiServer, name: &str, token: &str) -> PathBuf {
    let authority = server.directory().join("ca.crt").display().to_string();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server.url(), "certificate-authority": authority}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    let path: PathBuf = Path::new(server.directory()).join(format!("{name}-token.kubeconfig"));
    std::fs::write(&path, config.to_string()).unwrap();
    path
}
