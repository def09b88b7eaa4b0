//! Installation of the node agent by each of its four methods.

use landfall_cluster::manifest;
use serde_json::{Map, Value, json};

use crate::carriers::{Carriers, FOLDER, Sight};
use crate::package::{HostFile, Package};
use crate::{Download, Format, Plan, RenderError, Target, chart, names, objects, package, yaml};

/// Size limit of the snippet. User data is small (16 KB on some clouds) and must leave space for other
/// content.
pub const MAX_SNIPPET: usize = 1024;
const NAME: &str = "landfall-agent";
const ABOUT: &str = "Follows the bootstrap of every node";
const UNIT: &str = "landfall-agent.service";
const SHIPPED: &str = include_str!("../../../dist/landfall-agent.service");
const ENVIRONMENT: &str = "/etc/landfall/agent.env";
/// Mount paths of the host in pods, and of the CA files in a DaemonSet's pods.
const HOST: &str = "/host";
const POD_AUTHORITIES: &str = "/etc/landfall/authorities";

/// Installation method of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In the image, enabled by a preset.
    Image,
    /// Downloaded and verified during the first boot.
    FirstBoot,
    /// A static pod.
    Pod,
    DaemonSet,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub target: Target,
    pub way: Way,
    pub carriers: Carriers,
    /// Required for pods.
    pub image: Option<String>,
    pub namespace: String,
    /// Required for the first boot.
    pub download: Option<Download>,
}

pub fn plan(settings: &Settings, format: Format) -> Result<Plan, RenderError> {
    settings.check(format)?;
    let mut package = Package::new(NAME, ABOUT, settings.target);
    match settings.way {
        Way::Image => {
            package.files = vec![
                HostFile::open(format!("/usr/lib/systemd/system/{UNIT}"), SHIPPED),
                HostFile::open(
                    "/usr/lib/systemd/system-preset/80-landfall.preset",
                    format!("enable {UNIT}\n"),
                ),
            ];
            package.files.extend(settings.host_files());
            // The build of the image needs the install script.
            package.download.clone_from(&settings.download);
        }
        Way::FirstBoot => return first_boot(settings, format),
        Way::Pod => {
            package.files = settings.authorities();
            let pod = json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": objects::metadata(NAME, "kube-system"),
                "spec": pod(settings),
            });
            let folder = settings.target.static_pods();
            package.files.push(HostFile::open(format!("{folder}/{NAME}.yaml"), yaml::documents(&[pod])?));
        }
        Way::DaemonSet if format == Format::Helm => {
            let (namespace, image) = (chart::NAMESPACE.into(), Some(chart::IMAGE.into()));
            package.objects = daemon_set(&Settings { image, namespace, ..settings.clone() });
            let (namespace, image) = (Some(settings.namespace.clone()), settings.image.clone());
            package.values = chart::Values { namespace, image, ..chart::Values::default() };
        }
        Way::DaemonSet => package.objects = daemon_set(settings),
    }
    package.plan(format)
}

/// Returns the shortest configuration that downloads, verifies and runs the agent.
///
/// It is for cloud-init, Cluster API or Ignition. The agent and the boot do not wait for each other. If the
/// download or its verification fails, the agent's unit retries while the machine boots. Ignition could
/// download the binary itself, but then a failed download would stop the boot.
fn first_boot(settings: &Settings, format: Format) -> Result<Plan, RenderError> {
    let Some(download) = &settings.download else { return Err(missing_download()) };
    let options: String =
        settings.words().iter().map(|word| format!(" {}", names::shell_word(word))).collect();
    // Runs only a binary with the expected digest; an older one at this path does not have it.
    let script = format!("{}&&exec $p agent{options}", download.command());
    match (settings.target, format) {
        (Target::Capi, Format::Ignition) => Err(RenderError::IgnitionOfCapi),
        // OpenShift machines read Ignition only.
        (Target::Openshift, _) | (_, Format::Ignition) => Ok(ignition(settings, &script)),
        (Target::Capi, _) => {
            let mut package = Package::new(NAME, ABOUT, settings.target);
            package.commands.push(transient(&script));
            let bare = package.machine_objects()?;
            bare.iter().try_for_each(|(_, fragment)| short(fragment))?;
            package.files = settings.authorities();
            package.plan(format)
        }
        _ => {
            let mut config = json!({"bootcmd": [transient(&script)]});
            short(&cloud_config(&config)?)?;
            let file = |file: HostFile| json!({"path": file.path, "content": file.content.text()});
            let files: Vec<Value> = settings.authorities().into_iter().map(file).collect();
            if !files.is_empty() {
                config["write_files"] = json!(files);
            }
            let mut plan = Plan::default();
            plan.add("cloud-init.yaml", 0o644, cloud_config(&config)?);
            Ok(plan)
        }
    }
}

/// Returns a command that creates a unit for this boot and always succeeds.
fn transient(script: &str) -> String {
    format!(
        "systemd-run --no-block -u {NAME} -p DefaultDependencies=no -p Restart=always -p RestartSec=5 -p Nice=10 \
         -p StateDirectory=landfall sh -ec '{script}'||:"
    )
}

fn cloud_config(config: &Value) -> Result<String, RenderError> {
    Ok(format!("#cloud-config\n{}", yaml::documents(std::slice::from_ref(config))?))
}

/// Checks the size limit. CA files are not counted.
fn short(snippet: &str) -> Result<(), RenderError> {
    if snippet.len() > MAX_SNIPPET { Err(RenderError::Snippet { bytes: snippet.len() }) } else { Ok(()) }
}

/// Returns an Ignition configuration with one unit. It has no size limit, because a smaller configuration
/// often fetches it; the unit itself is as short as the other snippets.
fn ignition(settings: &Settings, script: &str) -> Plan {
    let unit = format!(
        "[Unit]\nDefaultDependencies=no\nAfter=local-fs.target\n[Service]\nExecStart=/bin/sh -ec '{}'\n\
         Restart=always\nRestartSec=5\nNice=10\nStateDirectory=landfall\n[Install]\nWantedBy=sysinit.target\n",
        script.replace('%', "%%")
    );
    let mut config = json!({
        "ignition": {"version": package::IGNITION},
        "systemd": {"units": [{"name": UNIT, "enabled": true, "contents": unit}]},
    });
    let files: Vec<Value> = settings.authorities().iter().map(package::ignition_file).collect();
    if !files.is_empty() {
        config["storage"] = json!({"files": files});
    }
    let mut plan = Plan::default();
    plan.add(format!("{NAME}.ign"), 0o644, format!("{config}\n"));
    plan
}

fn daemon_set(settings: &Settings) -> Vec<(&'static str, Value)> {
    let namespace = settings.namespace.as_str();
    let mut objects = vec![
        ("namespace", objects::privileged_namespace(namespace)),
        // The agents do not use the API.
        ("service-account", objects::service_account(NAME, namespace)),
    ];
    if settings.target == Target::Openshift {
        objects.push(("role-binding", objects::security_context_binding(NAME, namespace, "privileged")));
    }
    let authorities = settings.carriers.authorities();
    if !authorities.is_empty() {
        let data: Map<String, Value> =
            authorities.into_iter().map(|(name, text)| (name.to_owned(), json!(text))).collect();
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": objects::metadata(NAME, namespace),
            "data": data,
        });
        objects.push(("config-map", map));
    }
    objects.push((
        "daemon-set",
        json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": objects::metadata(NAME, namespace),
            "spec": {
                "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
                "template": {"metadata": {"labels": objects::labels(NAME)}, "spec": pod(settings)},
            },
        }),
    ));
    objects
}

fn pod(settings: &Settings) -> Value {
    let carriers = &settings.carriers;
    let arguments = carriers.arguments(settings.sight()).into_iter();
    let security = match settings.target {
        Target::Openshift => json!({
            "# privileged": "SELinux lets no other container read the host.",
            "privileged": true,
            "readOnlyRootFilesystem": true,
        }),
        _ => json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsUser": 0,
            "# capabilities": "It reads what only root may read, and writes its own folder.",
            "capabilities": {"drop": ["ALL"], "add": ["DAC_READ_SEARCH", "DAC_OVERRIDE"]},
        }),
    };
    let in_set = settings.way == Way::DaemonSet;
    let mounted = in_set && !carriers.authorities().is_empty();
    let mount = json!({"name": "authorities", "mountPath": POD_AUTHORITIES, "readOnly": true});
    let volume = json!({"name": "authorities", "configMap": {"name": NAME}});
    let ports =
        carriers.port().map(|port| json!([{"name": "serve", "containerPort": port, "hostPort": port}]));
    let values = [
        ("ACCOUNT", json!(in_set.then_some(NAME))),
        ("TOKEN", json!(in_set.then_some(false))),
        ("IMAGE", json!(settings.image)),
        ("ARGUMENTS", arguments.map(|(name, value)| format!("{name}={value}")).collect()),
        ("PORTS", json!(ports)),
        ("SECURITY", security),
        ("AUTHORITIES_MOUNT", json!(mounted.then_some(mount))),
        ("AUTHORITIES_VOLUME", json!(mounted.then_some(volume))),
    ];
    manifest::object(include_str!("../files/agent-pod.yaml"), &values)
}

fn missing_download() -> RenderError {
    RenderError::Missing { what: "the URL of the binary and its hash" }
}

// === impl Settings ===

impl Settings {
    fn check(&self, format: Format) -> Result<(), RenderError> {
        names::namespace(&self.namespace)?;
        self.carriers.check()?;
        self.download.as_ref().map_or(Ok(()), Download::check)?;
        let pods = matches!(self.way, Way::Pod | Way::DaemonSet);
        match &self.image {
            Some(image) => names::image(image)?,
            None if pods => return Err(RenderError::Missing { what: "the image" }),
            None => {}
        }
        if pods && self.carriers.console.is_some() && self.target != Target::Openshift {
            return Err(RenderError::ConsoleOfPod);
        }
        if pods && self.download.is_some() {
            return Err(RenderError::DownloadOfPod);
        }
        if self.way == Way::FirstBoot && self.download.is_none() {
            return Err(missing_download());
        }
        if self.way == Way::Image && self.target == Target::Capi {
            return Err(RenderError::ImageOfCapi);
        }
        let fits = match self.way {
            Way::Image => format == Format::Yaml,
            Way::FirstBoot | Way::Pod => matches!(format, Format::Yaml | Format::Ignition),
            Way::DaemonSet => !matches!(format, Format::Ignition | Format::Installer),
        };
        if fits {
            Ok(())
        } else {
            Err(RenderError::Combination { way: self.way.name(), format: format.name() })
        }
    }

    fn sight(&self) -> Sight {
        match self.way {
            Way::Image | Way::FirstBoot => Sight { machine: "", authorities: FOLDER },
            Way::Pod => Sight { machine: HOST, authorities: "/host/etc/landfall" },
            Way::DaemonSet => Sight { machine: HOST, authorities: POD_AUTHORITIES },
        }
    }

    /// Returns the agent's command-line arguments for its carriers.
    fn words(&self) -> Vec<String> {
        let arguments = self.carriers.arguments(self.sight());
        arguments.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }

    /// Returns the files that the unit reads.
    fn host_files(&self) -> Vec<HostFile> {
        let words = self.words();
        if words.is_empty() {
            return Vec::new();
        }
        let options = format!("LANDFALL_AGENT_OPTIONS={}\n", words.join(" "));
        let mut files = vec![HostFile::open(ENVIRONMENT, options)];
        files.extend(self.authorities());
        files
    }

    fn authorities(&self) -> Vec<HostFile> {
        let authorities = self.carriers.authorities().into_iter();
        authorities.map(|(name, text)| HostFile::open(format!("{FOLDER}/{name}"), text)).collect()
    }
}

// === impl Way ===

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::FirstBoot => "first-boot",
            Self::Pod => "pod",
            Self::DaemonSet => "daemon-set",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::download::PROGRAM;

    #[test]
    fn the_shipped_unit_starts_the_program_where_it_is_put() {
        assert!(SHIPPED.contains(&format!("\nExecStart={PROGRAM} agent ")));
        assert!(SHIPPED.contains(&format!("\nEnvironmentFile=-{ENVIRONMENT}\n")));
    }
}
