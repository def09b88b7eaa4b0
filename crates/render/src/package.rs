//! The packaging formats for the same files.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use landfall_model::Secret;
use serde_json::{Value, json};

use crate::chart::{self, Values};
use crate::download::Download;
use crate::installer::MANIFESTS;
use crate::{Content, Plan, RenderError, Target, names, teardown, yaml};

/// Directory of the bootstrap machine's files in the installer's source.
const INSTALLER: &str = "data/data/bootstrap";
/// The Ignition version of the oldest supported hosts.
pub(crate) const IGNITION: &str = "3.2.0";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Files by their path on the host, and manifests.
    Yaml,
    /// The same files, with a kustomize base.
    Kustomize,
    /// One Ignition configuration for the host.
    Ignition,
    /// Files by their path on the host, and a Helm chart.
    Helm,
    /// Files by their path in the source of the OpenShift installer.
    Installer,
}

pub(crate) struct Package {
    pub(crate) name: &'static str,
    /// One line for a chart.
    pub(crate) description: &'static str,
    pub(crate) target: Target,
    pub(crate) files: Vec<HostFile>,
    pub(crate) units: Vec<Unit>,
    pub(crate) objects: Vec<(&'static str, Value)>,
    /// Defaults of a chart's values.
    pub(crate) values: Values,
    /// The download of the binary, if the host needs it.
    pub(crate) download: Option<Download>,
    /// Commands that a Cluster API machine runs before kubeadm.
    pub(crate) commands: Vec<String>,
    /// kubeadm settings of a Cluster API machine, beside files and commands.
    pub(crate) kubeadm: Value,
    pub(crate) machines: Machines,
}

/// The Cluster API object that configures the machines.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Machines {
    ControlPlane,
    /// The machine that runs `kubeadm init`; the others join its cluster.
    FirstControlPlane,
    All,
}

pub(crate) struct HostFile {
    /// Path on the host.
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

/// Replaces the marks in an embedded file. The values are checked: none has a special meaning to units and shells.
pub(crate) fn filled(text: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(text.to_owned(), |text, (mark, value)| text.replace(mark, value))
}

/// Returns the path of the script that downloads the binary on a host. It differs per package, because
/// Ignition rejects two files of one path.
pub(crate) fn install_script(package: &str) -> String {
    format!("/usr/local/bin/{package}-install.sh")
}

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
                    plan.put("host", file);
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
                plan.put("chart/", file);
            }
            return Ok(plan);
        }
        let names: Vec<String> = manifests.iter().map(|file| file.path.clone()).collect();
        for file in manifests {
            plan.put("manifests/", file);
        }
        if format == Format::Kustomize {
            let base = json!({
                "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": names,
            });
            plan.add("manifests/kustomization.yaml", 0o644, yaml::documents(&[base])?);
        }
        Ok(plan)
    }

    /// Removes shared namespaces: they exist already, and landfall must not change their Pod Security level.
    fn leave_shared_namespaces(&mut self) {
        // A chart has a placeholder instead of the name.
        let told = self.values.namespace.clone();
        let shared = |object: &Value| {
            let name = told.as_deref().or(object["metadata"]["name"].as_str());
            object["kind"] == "Namespace" && name.is_some_and(names::is_shared)
        };
        self.objects.retain(|(_, object)| !shared(object));
    }

    /// Returns the manifests, numbered in the order of their application.
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

    /// Returns an Ignition configuration. On an OpenShift bootstrap host, the manifests are files of the
    /// host. On other hosts no component would apply them, so they are separate files.
    fn ignition(mut self, manifests: Vec<HostFile>) -> Plan {
        self.fetch_before_start();
        let mut plan = Plan::default();
        for file in manifests {
            if self.target == Target::Openshift {
                self.files.push(HostFile { path: format!("{MANIFESTS}/{}", file.path), ..file });
            } else {
                plan.put("manifests/", file);
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

    /// Returns files for the source of `openshift-install`. Drop-ins are plain files there. Beside the file
    /// of a unit, the installer would create a second unit of the same name from them, which Ignition
    /// rejects. bootkube starts the units, because the installer enables only the units in its own list.
    fn installer(mut self, manifests: Vec<HostFile>) -> Plan {
        self.fetch_before_start();
        // The tunnel's own drop-in starts the teardown.
        let units = self.units_of_program();
        if !units.is_empty() {
            let text = format!("[Unit]\nWants={}\n", units.join(" "));
            self.files.push(drop_in("bootkube.service", &format!("20-{}", self.name), text));
        }
        let mut plan = Plan::default();
        for file in manifests {
            plan.put(&format!("{INSTALLER}/files{MANIFESTS}/"), file);
        }
        for file in self.files {
            plan.put(&format!("{INSTALLER}/files"), file);
        }
        for unit in self.units {
            plan.add(format!("{INSTALLER}/systemd/common/units/{}", unit.name), 0o644, unit.text);
        }
        plan
    }

    /// Makes each unit download the binary before it starts, with retries. Ignition could download it as
    /// well, but then a failed download would stop the boot.
    fn fetch_before_start(&mut self) {
        let Some(download) = &self.download else { return };
        let install = install_script(self.name);
        // Runs with full permissions, because the unit itself may not write there. A download may take 10
        // min, while the default start timeout is 90 s.
        let text = format!(
            "[Unit]\nStartLimitIntervalSec=0\n\n[Service]\nExecStartPre=+{install}\nTimeoutStartSec=11min\n"
        );
        let mut files = vec![HostFile::program(install, download.script())];
        files.extend(self.units_of_program().iter().map(|unit| drop_in(unit, "05-program", text.clone())));
        self.files.extend(files);
    }

    /// Returns all units except the teardown, which is a script.
    fn units_of_program(&self) -> Vec<&'static str> {
        self.units.iter().map(|unit| unit.name).filter(|name| *name != teardown::SERVICE).collect()
    }

    /// Adds files and commands to the objects that configure the machines. Secret files are in a separate
    /// Secret.
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
                // `clusterctl move` moves objects with this label together with the cluster.
                "metadata": {"name": self.secret_name(), "labels": {"clusterctl.cluster.x-k8s.io/move": ""}},
                "data": secrets,
            });
            plan.add_secret("cluster-api/secret.yaml", yaml::documents(&[secret])?);
        }
        Ok(())
    }

    /// Returns fragments of the objects that configure the machines, each with the stem of its file name.
    /// They can be merged into an object without lists of its own. If several kinds of objects are possible,
    /// there is also a patch that appends to existing lists.
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
        // A failed download must not prevent the machine from joining.
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

    /// Limits the commands to the first machine. All machines of a control plane get the same files and
    /// commands; those that join remove them. kubeadm's configuration identifies the first machine: one path
    /// is of cloud-init, the other of Ignition.
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

fn secret_key(file: &HostFile) -> String {
    file.path.trim_start_matches('/').replace('/', ".")
}
