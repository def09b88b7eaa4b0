//! The same files in the wrappings people install from.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use landfall_model::Secret;
use serde_json::{Value, json};

use crate::chart::{self, Values};
use crate::download::Download;
use crate::installer::MANIFESTS;
use crate::{Content, File, Plan, RenderError, Target, names, teardown, yaml};

/// What a bootstrap machine is made of, in the installer's source.
const INSTALLER: &str = "data/data/bootstrap";
/// What the oldest supported hosts understand.
pub(crate) const IGNITION: &str = "3.2.0";

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
    /// What a machine of Cluster API runs before kubeadm.
    pub(crate) commands: Vec<String>,
    /// What kubeadm is told on a machine of Cluster API, beside files and commands.
    pub(crate) kubeadm: Value,
    pub(crate) machines: Machines,
}

/// Which object of Cluster API configures the machines.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Machines {
    ControlPlane,
    /// The one that runs `kubeadm init`; further ones join what it began.
    FirstControlPlane,
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

/// What fetches the program on a host. Each package has its own: Ignition takes no two files of one name.
pub(crate) fn install_script(package: &str) -> String {
    format!("/usr/local/bin/{package}-install.sh")
}

/// A file as Ignition writes it.
pub(crate) fn ignition_file(file: &HostFile) -> Value {
    let source = format!("data:;base64,{}", STANDARD.encode(file.content.text()));
    json!({"path": file.path, "mode": file.mode, "overwrite": true, "contents": {"source": source}})
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
            commands: Vec::new(),
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
        self.fetch_before_start();
        let mut plan = Plan::default();
        for file in manifests {
            if self.target == Target::Openshift {
                self.files.push(HostFile { path: format!("{MANIFESTS}/{}", file.path), ..file });
            } else {
                let path = format!("manifests/{}", file.path).into();
                plan.files.push(File { path, mode: file.mode, content: file.content });
            }
        }
        if self.files.is_empty() && self.units.is_empty() {
            return plan;
        }
        let files: Vec<Value> = self.files.iter().map(ignition_file).collect();
        let units: Vec<Value> = self
            .units
            .iter()
            .map(|unit| json!({"name": unit.name, "enabled": true, "contents": unit.text}))
            .collect();
        let config = json!({
            "ignition": {"version": IGNITION},
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
        self.fetch_before_start();
        // The teardown is bootkube's by the tunnel's own drop-in.
        let units = self.units_of_program();
        if !units.is_empty() {
            let text = format!("[Unit]\nWants={}\n", units.join(" "));
            self.files.push(drop_in("bootkube.service", &format!("20-{}", self.name), text));
        }
        let mut plan = Plan::default();
        for file in manifests {
            let path = format!("{INSTALLER}/files{MANIFESTS}/{}", file.path).into();
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

    /// Has each unit fetch the program before it starts, and again until it is had. Ignition would fetch it too, but no machine
    /// boots on whose file cannot be had.
    fn fetch_before_start(&mut self) {
        let Some(download) = &self.download else { return };
        let install = install_script(self.name);
        // With all rights: the unit itself may not write there. A download has ten minutes, and a start has 90 s.
        let text = format!(
            "[Unit]\nStartLimitIntervalSec=0\n\n[Service]\nExecStartPre=+{install}\nTimeoutStartSec=11min\n"
        );
        let mut files = vec![HostFile::program(install, download.script())];
        files.extend(self.units_of_program().iter().map(|unit| drop_in(unit, "05-program", text.clone())));
        self.files.extend(files);
    }

    /// All but the teardown, which is a script.
    fn units_of_program(&self) -> Vec<&'static str> {
        self.units.iter().map(|unit| unit.name).filter(|name| *name != teardown::SERVICE).collect()
    }

    /// Files and commands for the objects that configure the machines; secret ones by way of a Secret beside them.
    fn cluster_api(&self, plan: &mut Plan) -> Result<(), RenderError> {
        for (name, text) in self.machine_objects()? {
            plan.add(format!("cluster-api/{name}.yaml"), 0o644, text);
        }
        let secret = |file: &HostFile| match &file.content {
            Content::Open(_) => None,
            Content::Secret(text) => Some((secret_key(file), json!(STANDARD.encode(text.expose())))),
        };
        let secrets: serde_json::Map<String, Value> = self.files.iter().filter_map(secret).collect();
        if !secrets.is_empty() {
            let secret = json!({
                "apiVersion": "v1",
                "kind": "Secret",
                // What is moved with the cluster, and what clusterctl finds.
                "metadata": {"name": self.secret_name(), "labels": {"clusterctl.cluster.x-k8s.io/move": ""}},
                "data": secrets,
            });
            plan.add_secret("cluster-api/secret.yaml", yaml::documents(&[secret])?);
        }
        Ok(())
    }

    /// What the objects that configure the machines are told, each with a word for its file: to be merged into one without
    /// lists of its own, and, where there may be several such objects, as a patch that adds to lists that are there.
    pub(crate) fn machine_objects(&self) -> Result<Vec<(&'static str, String)>, RenderError> {
        let (files, commands) = self.files_and_commands();
        if files.is_empty() && commands.is_empty() {
            return Ok(Vec::new());
        }
        let mut spec = self.kubeadm.clone();
        for (list, entries) in [("files", &files), ("preKubeadmCommands", &commands)] {
            if !entries.is_empty() {
                spec[list] = json!(entries);
            }
        }
        let control_plane = json!({"spec": {"kubeadmConfigSpec": spec}});
        let mut all = vec![("kubeadm-control-plane", yaml::documents(&[control_plane])?)];
        if self.machines != Machines::All {
            return Ok(all);
        }
        let template = json!({"spec": {"template": {"spec": spec}}});
        all.push(("kubeadm-config-template", yaml::documents(&[template])?));
        for (word, place) in [
            ("kubeadm-control-plane.patch", "/spec/kubeadmConfigSpec"),
            ("kubeadm-config-template.patch", "/spec/template/spec"),
        ] {
            let add = |list: &str, entries: &[Value]| -> Vec<Value> {
                let add = |entry| json!({"op": "add", "path": format!("{place}/{list}/-"), "value": entry});
                entries.iter().map(add).collect()
            };
            let patch = [add("files", &files), add("preKubeadmCommands", &commands)].concat();
            all.push((word, yaml::documents(&[json!(patch)])?));
        }
        Ok(all)
    }

    fn files_and_commands(&self) -> (Vec<Value>, Vec<Value>) {
        let mut files: Vec<Value> = Vec::new();
        for file in &self.files {
            let mut entry =
                json!({"path": file.path, "owner": "root:root", "permissions": format!("{:04o}", file.mode)});
            match &file.content {
                Content::Open(text) => entry["content"] = json!(text),
                Content::Secret(_) => {
                    let secret = json!({"name": self.secret_name(), "key": secret_key(file)});
                    entry["contentFrom"] = json!({"secret": secret});
                }
            }
            files.push(entry);
        }
        let mut commands = self.commands.clone();
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
        if self.machines == Machines::FirstControlPlane {
            commands = vec![self.on_first_machine(&commands)];
        }
        (files, commands.into_iter().map(Value::String).collect())
    }

    fn secret_name(&self) -> String {
        format!("{}-files", self.name)
    }

    /// All machines of a control plane get the same files and commands; those that join keep none. Which one it is tells
    /// kubeadm's own file: the first by cloud-init, the second by Ignition.
    fn on_first_machine(&self, commands: &[String]) -> String {
        let paths: Vec<String> = self
            .files
            .iter()
            .map(|file| file.path.clone())
            .chain(self.units.iter().map(|unit| format!("/etc/systemd/system/{}", unit.name)))
            .collect();
        let (first, rest) = (
            "grep -qs '^kind: InitConfiguration' /run/kubeadm/kubeadm.yaml /etc/kubeadm.yml",
            format!("rm -f {}", paths.join(" ")),
        );
        if commands.is_empty() {
            return format!("{first} || {rest}");
        }
        let commands: String = commands.iter().map(|command| format!("  {command}\n")).collect();
        format!("if {first}; then\n{commands}else\n  {rest}\nfi\n")
    }
}

fn drop_in(unit: &str, name: &str, text: String) -> HostFile {
    HostFile::open(format!("/etc/systemd/system/{unit}.d/{name}.conf"), text)
}

/// What a file is called in the Secret it comes from.
fn secret_key(file: &HostFile) -> String {
    file.path.trim_start_matches('/').replace('/', ".")
}
