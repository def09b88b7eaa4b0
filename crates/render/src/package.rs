//! The same files in the wrappings people install from.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use landfall_model::Secret;
use serde_json::{Value, json};

use crate::tunnel::Target;
use crate::{Content, File, Plan, RenderError, yaml};

/// Where cluster-bootstrap looks for what it applies.
const OPENSHIFT_MANIFESTS: &str = "/opt/openshift/manifests";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Files by their place on the host, and manifests
    Yaml,
    /// The same, with a kustomize base
    Kustomize,
    /// One Ignition configuration for the host
    Ignition,
    /// Files by their place on the host, and a Helm chart
    Helm,
}

pub(crate) struct Package {
    pub(crate) name: &'static str,
    pub(crate) target: Target,
    pub(crate) files: Vec<HostFile>,
    pub(crate) units: Vec<Unit>,
    pub(crate) objects: Vec<(&'static str, Value)>,
}

pub(crate) struct HostFile {
    /// On the host.
    pub(crate) path: String,
    pub(crate) mode: u32,
    pub(crate) content: Content,
}

pub(crate) struct Unit {
    pub(crate) name: &'static str,
    pub(crate) text: String,
}

// === impl Package ===

impl Package {
    pub(crate) fn plan(self, format: Format) -> Result<Plan, RenderError> {
        let manifests = self.manifests()?;
        let mut plan = Plan::default();
        if format == Format::Ignition {
            return Ok(self.ignition(manifests));
        }
        for file in self.files {
            let path = format!("host{}", file.path).into();
            plan.files.push(File { path, mode: file.mode, content: file.content });
        }
        for unit in self.units {
            plan.add(format!("host/etc/systemd/system/{}", unit.name), 0o644, unit.text);
        }
        let folder = if format == Format::Helm { "chart/templates" } else { "manifests" };
        let names: Vec<String> = manifests.iter().map(|file| file.path.clone()).collect();
        for file in manifests {
            let path = format!("{folder}/{}", file.path).into();
            plan.files.push(File { path, mode: file.mode, content: file.content });
        }
        match format {
            Format::Kustomize => {
                let base = json!({
                    "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": names,
                });
                plan.add("manifests/kustomization.yaml", 0o644, yaml::documents(&[base])?);
            }
            Format::Helm => {
                let version = env!("CARGO_PKG_VERSION");
                let chart = json!({
                    "apiVersion": "v2", "name": self.name, "version": version, "appVersion": version,
                    "description": "Agents of the tunnel into a cluster that is being born", "type": "application",
                });
                plan.add("chart/Chart.yaml", 0o644, yaml::documents(&[chart])?);
            }
            Format::Yaml | Format::Ignition => {}
        }
        Ok(plan)
    }

    /// Numbered, because they are applied in this order.
    fn manifests(&self) -> Result<Vec<HostFile>, RenderError> {
        let file = |(number, (name, object)): (usize, &(&str, Value))| {
            let text = yaml::documents(std::slice::from_ref(object))?;
            let secret = object["kind"] == "Secret";
            Ok(HostFile {
                path: format!("{:02}-{}-{name}.yaml", number + 1, self.name),
                mode: if secret { 0o600 } else { 0o644 },
                content: if secret { Content::Secret(Secret::new(text)) } else { Content::Open(text) },
            })
        };
        self.objects.iter().enumerate().map(file).collect()
    }

    /// On an OpenShift bootstrap host the manifests are files of the host; elsewhere there is nobody to apply them.
    fn ignition(mut self, manifests: Vec<HostFile>) -> Plan {
        let mut plan = Plan::default();
        for file in manifests {
            if self.target == Target::Openshift {
                self.files.push(HostFile { path: format!("{OPENSHIFT_MANIFESTS}/{}", file.path), ..file });
            } else {
                let path = format!("manifests/{}", file.path).into();
                plan.files.push(File { path, mode: file.mode, content: file.content });
            }
        }
        let files: Vec<Value> = self
            .files
            .iter()
            .map(|file| {
                let source = format!("data:;base64,{}", STANDARD.encode(file.content.text()));
                json!({"path": file.path, "mode": file.mode, "overwrite": true, "contents": {"source": source}})
            })
            .collect();
        let units: Vec<Value> = self
            .units
            .iter()
            .map(|unit| json!({"name": unit.name, "enabled": true, "contents": unit.text}))
            .collect();
        let config = json!({
            // What the oldest supported hosts understand.
            "ignition": {"version": "3.2.0"},
            "storage": {"files": files},
            "systemd": {"units": units},
        });
        plan.add_secret(format!("{}.ign", self.name), format!("{config:#}\n"));
        plan
    }
}
