//! A management cluster with the controller installed.
//!
//! The test acts as Cluster API, the nodes and the hub.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use landfall_cluster::Cluster;
use landfall_controller::capi::condition::{TYPE, Words};
use landfall_controller::capi::heard::{Answer, Hub};
pub(crate) use landfall_controller::capi::manifests::NAMESPACE;
use landfall_controller::capi::manifests::{self, MANAGER, Settings};
use landfall_controller::capi::metrics::Metrics;
use landfall_controller::capi::plan::Policy;
use landfall_controller::capi::run::{Controller, run};
use landfall_controller::manifests::Platform;
use landfall_controller::metrics::Numbers as _;
use landfall_testkit::{ApiServer, ClusterApi, eventually};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Generous, because the test host is loaded.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

pub(crate) struct Stage {
    pub(crate) server: ApiServer,
    cluster_api: ClusterApi,
}

/// A hub with responses set by the test.
#[derive(Debug, Default)]
pub(crate) struct FakeHub {
    /// Lines of the fleet by name, each with the time of its bundle.
    nodes: Mutex<std::collections::BTreeMap<String, (Value, Option<String>)>>,
}

/// A running controller.
pub(crate) struct Led {
    pub(crate) metrics: Arc<Metrics>,
    cancel: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

pub(crate) fn settings() -> Settings {
    Settings {
        namespace: NAMESPACE.to_owned(),
        image: "registry.example/landfall:1".to_owned(),
        hub: Some("https://hub.corp:8700".to_owned()),
        hub_secret: Some("landfall-hub".to_owned()),
        hold: Some(Duration::from_mins(10)),
        write_back: vec![("default".to_owned(), "m3".to_owned()), ("default".to_owned(), "m4".to_owned())],
        health_checks: Vec::new(),
    }
}

// === impl Stage ===

impl Stage {
    pub(crate) fn set(cluster_api: ClusterApi) -> Self {
        let server = ApiServer::start().unwrap();
        cluster_api.install(&server).unwrap();
        let objects: Vec<Value> = manifests::install(&settings(), Platform::Kubernetes, &[])
            .into_iter()
            .map(|(_, object)| object)
            .collect();
        let stage = Self { server, cluster_api };
        for object in &objects {
            // No kubelet would run it.
            if object["kind"] == "Deployment" {
                continue;
            }
            stage.wait("what it is installed from to be taken", || stage.server.apply(object).ok().map(drop));
        }
        let wanted = "crd/bootstrapreports.landfall.dev";
        stage.kubectl(&["wait", "--for=condition=Established", wanted, "--timeout=25s"]);
        stage
    }

    #[track_caller]
    pub(crate) fn wait(&self, what: &str, probe: impl FnMut() -> Option<()>) {
        if let Err(error) = eventually(what, PATIENCE, probe) {
            let shown = self.server.kubectl(&["get", "machines,bootstrapreports,events", "-A", "-o", "yaml"]);
            panic!("{error}\n{}", shown.unwrap_or_default());
        }
    }

    #[track_caller]
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        self.server.kubectl(arguments).unwrap()
    }

    /// Creates a Machine as Cluster API would, with conditions of its own.
    pub(crate) fn machine(&self, name: &str) {
        let mut infrastructure = json!({"kind": "TestMachine", "name": name});
        match self.cluster_api {
            ClusterApi::V1beta1 => {
                infrastructure["apiVersion"] = json!("infrastructure.cluster.x-k8s.io/v1beta1");
            }
            ClusterApi::V1beta2 => infrastructure["apiGroup"] = json!("infrastructure.cluster.x-k8s.io"),
        }
        let machine = json!({
            "apiVersion": format!("cluster.x-k8s.io/{}", self.cluster_api.version()), "kind": "Machine",
            "metadata": {"name": name, "namespace": "default", "annotations": {"theirs": "1"},
                "labels": {"cluster.x-k8s.io/cluster-name": "c"}, "finalizers": ["machine.cluster.x-k8s.io"]},
            "spec": {"clusterName": "c", "providerID": format!("test:///{name}"),
                "bootstrap": {"dataSecretName": name}, "infrastructureRef": infrastructure},
        });
        self.server.apply(&machine).unwrap();
        let of = |kind: &str| {
            json!({"type": kind, "status": "True", "reason": "Fine", "message": "as it was",
                "lastTransitionTime": "2026-01-02T03:04:05Z"})
        };
        let status = json!({"status": {"phase": "Running",
            "conditions": [of("InfrastructureReady"), of("BootstrapConfigReady")]}});
        let patch = status.to_string();
        self.kubectl(&["patch", "machine", name, "--subresource=status", "--type=merge", "-p", &patch]);
    }

    /// Sets the condition by which Cluster API reports that the Node of the Machine is ready.
    pub(crate) fn node_is_ready(&self, name: &str) {
        let kind = match self.cluster_api {
            ClusterApi::V1beta1 => "NodeHealthy",
            ClusterApi::V1beta2 => "NodeReady",
        };
        let condition = json!({"type": kind, "status": "True", "reason": "NodeReady", "message": "The Node is ready",
            "lastTransitionTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()});
        let patch = json!([{"op": "add", "path": "/status/conditions/-", "value": condition}]).to_string();
        self.kubectl(&["patch", "machine", name, "--subresource=status", "--type=json", "-p", &patch]);
    }

    /// Returns the conditions of the Machine that count as unhealthy for the rendered MachineHealthCheck.
    /// They are compared as in Cluster API, after every timeout has passed.
    pub(crate) fn unhealthy_conditions(&self, name: &str) -> Vec<Value> {
        let kind = "machinehealthchecks.v1beta2.cluster.x-k8s.io";
        let check: Value =
            serde_json::from_str(&self.kubectl(&["get", kind, "c-bootstrap", "-o", "json"])).unwrap();
        let machine = self.get(name);
        let wanted = check["spec"]["selector"]["matchLabels"].as_object().unwrap();
        assert!(wanted.iter().all(|(key, value)| machine["metadata"]["labels"][key] == *value), "{check:#}");
        let checks = &check["spec"]["checks"];
        assert!(checks["nodeStartupTimeoutSeconds"].as_u64().is_some_and(|seconds| seconds > 0), "{check:#}");
        let unhealthy = checks["unhealthyMachineConditions"].as_array().unwrap();
        assert!(!unhealthy.is_empty(), "{check:#}");
        let conditions = machine["status"]["conditions"].as_array().unwrap().iter();
        let is_unhealthy = |condition: &&Value| {
            unhealthy
                .iter()
                .any(|bad| (&bad["type"], &bad["status"]) == (&condition["type"], &condition["status"]))
        };
        conditions.filter(is_unhealthy).cloned().collect()
    }

    /// Returns the reasons of the Events about a Machine, sorted. Each change of a condition's status has
    /// one.
    pub(crate) fn events(&self, name: &str) -> Vec<String> {
        let about = format!("involvedObject.kind=Machine,involvedObject.name={name}");
        let path = "jsonpath={.items[*].reason}";
        let found = self.kubectl(&["get", "events", "--field-selector", &about, "-o", path]);
        let mut reasons: Vec<String> = found.split_whitespace().map(str::to_owned).collect();
        reasons.sort_unstable();
        reasons
    }

    pub(crate) fn get(&self, name: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["get", "machine", name, "-o", "json", "--show-managed-fields"]))
            .unwrap()
    }

    /// Returns one field of the controller's condition.
    pub(crate) fn shown(&self, name: &str, field: &str) -> Option<String> {
        let path = format!("jsonpath={{.status.conditions[?(@.type==\"{TYPE}\")].{field}}}");
        let found = self.server.kubectl(&["get", "machine", name, "-o", &path]).ok()?;
        (!found.is_empty()).then_some(found)
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, name: &str, status: &str, reason: &str) {
        self.wait(&format!("{name} to show {status}, {reason}"), || {
            let is_so = self.shown(name, "status").as_deref() == Some(status)
                && self.shown(name, "reason").as_deref() == Some(reason);
            is_so.then_some(())
        });
    }

    pub(crate) fn has_hook(&self, name: &str) -> bool {
        let notes = &self.get(name)["metadata"]["annotations"];
        notes.get(landfall_controller::capi::machine::HOOK).is_some()
    }

    /// Asserts that conditions of other controllers are as Cluster API wrote them.
    #[track_caller]
    pub(crate) fn others_are_untouched(&self, name: &str) {
        let machine = self.get(name);
        let conditions = machine["status"]["conditions"].as_array().unwrap();
        let others: Vec<&Value> = conditions.iter().filter(|condition| condition["type"] != TYPE).collect();
        assert_eq!(others.len(), 2, "{machine:#}");
        assert!(others.iter().all(|condition| condition["message"] == "as it was"), "{machine:#}");
        assert_eq!(machine["status"]["phase"], "Running");
        assert_eq!(machine["metadata"]["annotations"]["theirs"], "1");
    }

    /// Creates a kubeconfig of an account, with the same access as its pod.
    pub(crate) fn access(&self, namespace: &str, account: &str) -> PathBuf {
        let token = self.kubectl(&["create", "token", "-n", namespace, account]);
        let authority = self.server.directory().join("ca.crt").display().to_string();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.server.url(), "certificate-authority": authority}}],
            "users": [{"name": "u", "user": {"token": token.trim()}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        let path = Path::new(self.server.directory()).join(format!("{account}.kubeconfig"));
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// Returns the API server's response to a command of an account.
    pub(crate) fn attempt(&self, access: &Path, arguments: &[&str]) -> Result<String, String> {
        let access = format!("--kubeconfig={}", access.display());
        // Of two equal flags, the last one counts.
        let arguments: Vec<&str> = [access.as_str()].into_iter().chain(arguments.iter().copied()).collect();
        self.server.kubectl(&arguments).map_err(|error| format!("{error:#}"))
    }
}

// === impl FakeHub ===

impl FakeHub {
    pub(crate) fn says(&self, name: &str, state: &str, cause: Option<&str>) {
        self.reports(name, state, cause, Some("proven"));
    }

    /// Sets a node's report. Without `trust`, it is one of an older hub.
    pub(crate) fn reports(&self, name: &str, state: &str, cause: Option<&str>, trust: Option<&str>) {
        let now = jiff::Timestamp::now().to_string();
        let mut line = json!({"name": name, "state": state, "cause": cause, "title": "password=hunter2", "component": null,
            "phase": "join", "confidence": 0.9, "since": now, "lastSeen": now});
        if let Some(trust) = trust {
            line["trust"] = json!(trust);
        }
        let mut nodes = self.nodes.lock().unwrap();
        let bundle = nodes.remove(name).and_then(|(_, bundle)| bundle);
        nodes.insert(name.to_owned(), (line, bundle));
    }

    pub(crate) fn stores_bundle(&self, name: &str) {
        if let Some((_, bundle)) = self.nodes.lock().unwrap().get_mut(name) {
            *bundle = Some(jiff::Timestamp::now().to_string());
        }
    }

    pub(crate) fn forgets(&self, name: &str) {
        self.nodes.lock().unwrap().remove(name);
    }

    fn answer(&self, path: &str) -> Option<Value> {
        let nodes = self.nodes.lock().unwrap();
        if path.starts_with("/api/v1/nodes?") {
            let lines: Vec<&Value> = nodes.values().map(|(line, _)| line).collect();
            return Some(json!({"nodes": lines, "next": null}));
        }
        let (line, bundle) = nodes.get(path.strip_prefix("/api/v1/nodes/")?)?;
        let bundles: Vec<Value> = bundle.iter().map(|received| json!({"received": received})).collect();
        Some(json!({"identity": {"hostname": line["name"]}, "bundles": bundles}))
    }
}

impl Hub for FakeHub {
    fn get(&self, path: String) -> Answer<'_> {
        Box::pin(async move { Ok(self.answer(&path).ok_or("404")?.to_string().into_bytes()) })
    }
}

// === impl Led ===

impl Led {
    pub(crate) async fn start(stage: &Stage, hub: &Arc<FakeHub>, hold: Duration) -> Self {
        let metrics = Arc::new(Metrics::default());
        let controller = Controller {
            cluster: Cluster::from_kubeconfig(&stage.access(NAMESPACE, MANAGER)).await.unwrap(),
            hub: Some(Arc::clone(hub) as Arc<dyn Hub>),
            namespace: NAMESPACE.to_owned(),
            policy: Policy { hold: Some(hold) },
            words: Words::new(Some("https://hub.corp".to_owned())).unwrap(),
            identity: "one".to_owned(),
            every: Duration::from_secs(1),
            metrics: Arc::clone(&metrics),
        };
        let cancel = CancellationToken::new();
        let ended = cancel.clone();
        let task = tokio::spawn(async move { run(&controller, &ended).await });
        Self { metrics, cancel, task }
    }

    pub(crate) fn counts(&self, line: &str) -> bool {
        self.metrics.text().lines().any(|found| found == line)
    }

    pub(crate) async fn end(self) {
        self.cancel.cancel();
        self.task.await.unwrap();
    }
}
