//! The same files in the wrappings people install from.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use landfall_model::Secret;
use serde_json::{Value, json};

use crate::chart::{self, Values};
use crate::download::{Download, PROGRAM};
use crate::{Content, File, Plan, RenderError, Target, names, teardown, yaml};

/// Where cluster-bootstrap looks for what it applies.
const OPENSHIFT_MANIFESTS: &str = "/opt/openshift/manifests";
/// What a bootstrap machine is made of, in the installer's source.
const INSTALLER: &str = "data/data/bootstrap";
/// What fetches the program there.
const INSTALL: &str = "/usr/local/bin/landfall-install.sh";

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
    /// Files by their place in the source of the OpenShift installer
    Installer,
}

pub(crate) struct Package {
    pub(crate) name: &'static str,
    /// One line, for a chart.
    pub(crate) description: &'static str,
    pub(crate) target: Target,
    pub(crate) files: Vec<HostFile>,
    pub(crate) units: Vec<Unit>,
    pub(crate) objects: Vec<(&'static str, Value)>,
    /// What a chart of these objects is told at first.
    pub(crate) values: Values,
    /// The program itself, where the host has to get it.
    pub(crate) download: Option<Download>,
    /// What kubeadm is told on a machine of Cluster API, beside files and commands.
    pub(crate) kubeadm: Value,
    pub(crate) machines: Machines,
}

/// Which object of Cluster API configures the machines.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Machines {
    ControlPlane,
    All,
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

// === impl Format ===

impl Format {
    pub fn name(self) -> &'static str {
        match self {
            Self::Yaml => "yaml",
            Self::Kustomize => "kustomize",
            Self::Ignition => "ignition",
            Self::Helm => "helm",
            Self::Installer => "installer",
        }
    }
}

// === impl HostFile ===

impl HostFile {
    pub(crate) fn open(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), mode: 0o644, content: Content::Open(text.into()) }
    }

    pub(crate) fn program(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { mode: 0o755, ..Self::open(path, text) }
    }

    pub(crate) fn secret(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), mode: 0o600, content: Content::Secret(Secret::new(text.into())) }
    }
}

// === impl Package ===

impl Package {
    pub(crate) fn new(name: &'static str, description: &'static str, target: Target) -> Self {
        Self {
            name,
            description,
            target,
            files: Vec::new(),
            units: Vec::new(),
            objects: Vec::new(),
            values: Values::default(),
            download: None,
            kubeadm: json!({}),
            machines: Machines::All,
        }
    }

    pub(crate) fn plan(mut self, format: Format) -> Result<Plan, RenderError> {
        self.leave_shared_namespaces();
        let manifests = self.manifests()?;
        let mut plan = Plan::default();
        match (format, self.target) {
            (Format::Installer, Target::Openshift) => return Ok(self.installer(manifests)),
            (Format::Installer, _) => {
                return Err(RenderError::Combination { way: self.name, format: format.name() });
            }
            (Format::Ignition, Target::Capi) => return Err(RenderError::IgnitionOfCapi),
            (Format::Ignition, _) => return Ok(self.ignition(manifests)),
            (_, Target::Capi) => self.cluster_api(&mut plan)?,
            _ => {
                for file in self.files {
                    let path = format!("host{}", file.path).into();
                    plan.files.push(File { path, mode: file.mode, content: file.content });
                }
                for unit in self.units {
                    plan.add(format!("host/etc/systemd/system/{}", unit.name), 0o644, unit.text);
                }
                if let Some(download) = self.download {
                    plan.add("install.sh", 0o755, download.script());
                }
            }
        }
        if manifests.is_empty() {
            return Ok(plan);
        }
        if format == Format::Helm {
            for file in chart::files(self.name, self.description, self.objects, self.values)? {
                let path = format!("chart/{}", file.path).into();
                plan.files.push(File { path, mode: file.mode, content: file.content });
            }
            return Ok(plan);
        }
        let names: Vec<String> = manifests.iter().map(|file| file.path.clone()).collect();
        for file in manifests {
            let path = format!("manifests/{}", file.path).into();
            plan.files.push(File { path, mode: file.mode, content: file.content });
        }
        if format == Format::Kustomize {
            let base = json!({
                "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": names,
            });
            plan.add("manifests/kustomization.yaml", 0o644, yaml::documents(&[base])?);
        }
        Ok(plan)
    }

    /// A namespace that others use is there already, and what pods may do in it is not ours to say.
    fn leave_shared_namespaces(&mut self) {
        // A chart has a mark in the place of the name.
        let told = self.values.namespace.clone();
        let shared = |object: &Value| {
            let name = told.as_deref().or(object["metadata"]["name"].as_str());
            object["kind"] == "Namespace" && name.is_some_and(names::is_shared)
        };
        self.objects.retain(|(_, object)| !shared(object));
    }

    /// Numbered, because they are applied in this order.
    fn manifests(&self) -> Result<Vec<HostFile>, RenderError> {
        let file = |(number, (name, object)): (usize, &(&str, Value))| {
            let text = yaml::documents(std::slice::from_ref(object))?;
            let path = format!("{:02}-{}-{name}.yaml", number + 1, self.name);
            Ok(if object["kind"] == "Secret" {
                HostFile::secret(path, text)
            } else {
                HostFile::open(path, text)
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
        if self.files.is_empty() && self.units.is_empty() {
            return plan;
        }
        let mut files: Vec<Value> = self
            .files
            .iter()
            .map(|file| {
                let source = format!("data:;base64,{}", STANDARD.encode(file.content.text()));
                json!({"path": file.path, "mode": file.mode, "overwrite": true, "contents": {"source": source}})
            })
            .collect();
        if let Some(Download { url, sha256 }) = &self.download {
            files.push(json!({
                "path": PROGRAM, "mode": 0o755, "overwrite": true,
                "contents": {"source": url, "verification": {"hash": format!("sha256-{sha256}")}},
            }));
        }
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

    /// Where `openshift-install` takes what a bootstrap machine gets. Drop-ins are plain files there: beside a unit's own
    /// file the installer would make a second unit of the same name of them, which Ignition refuses. Units are switched
    /// on by bootkube, because the installer knows its own by a list.
    fn installer(mut self, manifests: Vec<HostFile>) -> Plan {
        let drop_in = |unit: &str, name: &str, text: String| {
            HostFile::open(format!("/etc/systemd/system/{unit}.d/{name}.conf"), text)
        };
        // The teardown is bootkube's by the tunnel's own drop-in, and needs no program.
        let units: Vec<&str> =
            self.units.iter().map(|unit| unit.name).filter(|name| *name != teardown::SERVICE).collect();
        if let Some(download) = &self.download {
            self.files.push(HostFile::program(INSTALL, download.script()));
            for unit in &units {
                // With all rights: the unit itself may not write there.
                let text = format!("[Service]\nExecStartPre=+{INSTALL}\n");
                self.files.push(drop_in(unit, "05-program", text));
            }
        }
        if !units.is_empty() {
            let text = format!("[Unit]\nWants={}\n", units.join(" "));
            self.files.push(drop_in("bootkube.service", &format!("20-{}", self.name), text));
        }
        let mut plan = Plan::default();
        for file in manifests {
            let path = format!("{INSTALLER}/files{OPENSHIFT_MANIFESTS}/{}", file.path).into();
            plan.files.push(File { path, mode: file.mode, content: file.content });
        }
        for file in self.files {
            let path = format!("{INSTALLER}/files{}", file.path).into();
            plan.files.push(File { path, mode: file.mode, content: file.content });
        }
        for unit in self.units {
            plan.add(format!("{INSTALLER}/systemd/common/units/{}", unit.name), 0o644, unit.text);
        }
        plan
    }

    /// Files and commands for the object that configures the machines; secret ones by way of a Secret beside it.
    fn cluster_api(&self, plan: &mut Plan) -> Result<(), RenderError> {
        if self.files.is_empty() && self.units.is_empty() {
            return Ok(());
        }
        let secret_name = format!("{}-files", self.name);
        let mut secrets = serde_json::Map::new();
        let mut files: Vec<Value> = Vec::new();
        for file in &self.files {
            let mut entry =
                json!({"path": file.path, "owner": "root:root", "permissions": format!("{:04o}", file.mode)});
            match &file.content {
                Content::Open(text) => entry["content"] = json!(text),
                Content::Secret(text) => {
                    let key = file.path.trim_start_matches('/').replace('/', ".");
                    entry["contentFrom"] = json!({"secret": {"name": secret_name, "key": key}});
                    secrets.insert(key, json!(STANDARD.encode(text.expose())));
                }
            }
            files.push(entry);
        }
        let mut commands: Vec<String> = Vec::new();
        // What cannot be had is no reason for a machine not to join.
        commands.extend(self.download.iter().map(|download| format!("({}) || true", download.command())));
        if !self.units.is_empty() {
            commands.push("systemctl daemon-reload".to_owned());
        }
        for unit in &self.units {
            let path = format!("/etc/systemd/system/{}", unit.name);
            files.push(
                json!({"path": path, "owner": "root:root", "permissions": "0644", "content": unit.text}),
            );
            commands.push(format!("systemctl enable --now --no-block {}", unit.name));
        }
        let mut spec = self.kubeadm.clone();
        spec["files"] = json!(files);
        if !commands.is_empty() {
            spec["preKubeadmCommands"] = json!(commands);
        }
        let (name, object) = match self.machines {
            Machines::ControlPlane => ("kubeadm-control-plane", json!({"spec": {"kubeadmConfigSpec": spec}})),
            Machines::All => ("kubeadm-config-template", json!({"spec": {"template": {"spec": spec}}})),
        };
        plan.add(format!("cluster-api/{name}.yaml"), 0o644, yaml::documents(&[object])?);
        if !secrets.is_empty() {
            let secret = json!({
                "apiVersion": "v1",
                "kind": "Secret",
                // What is moved with the cluster, and what clusterctl finds.
                "metadata": {"name": secret_name, "labels": {"clusterctl.cluster.x-k8s.io/move": ""}},
                "data": secrets,
            });
            plan.add_secret("cluster-api/secret.yaml", yaml::documents(&[secret])?);
        }
        Ok(())
    }
}
