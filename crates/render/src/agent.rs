//! The node agent, by each of the four ways it comes to a machine.

use serde_json::{Map, Value, json};

use crate::carriers::{Carriers, FOLDER, Sight};
use crate::package::{HostFile, Package, Unit};
use crate::{Content, Download, Format, Plan, RenderError, Target, chart, names, objects, yaml};

/// User data is small (16 KB on some clouds) and others want room in it too.
pub const MAX_SNIPPET: usize = 1024;
const NAME: &str = "landfall-agent";
const UNIT: &str = "landfall-agent.service";
const SHIPPED: &str = include_str!("../../../dist/landfall-agent.service");
const ENVIRONMENT: &str = "/etc/landfall/agent.env";
/// Where pods see the host, and a DaemonSet's the authorities.
const HOST: &str = "/host";
const POD_AUTHORITIES: &str = "/etc/landfall/authorities";

/// How the agent comes to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In the image, switched on by a preset.
    Image,
    /// Fetched and verified by the first boot.
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
    /// For pods.
    pub image: Option<String>,
    pub namespace: String,
    /// For the first boot.
    pub download: Option<Download>,
}

pub fn plan(settings: &Settings, format: Format) -> Result<Plan, RenderError> {
    settings.check(format)?;
    let mut package = Package::new(NAME, "Follows the bootstrap of every node", settings.target);
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
            // For whoever builds the image.
            package.download.clone_from(&settings.download);
        }
        Way::FirstBoot => {
            if format == Format::Yaml && settings.target != Target::Capi {
                return first_boot(settings);
            }
            package.units.push(Unit { name: UNIT, text: SHIPPED.to_owned() });
            package.files = settings.host_files();
            package.download.clone_from(&settings.download);
        }
        Way::Pod => {
            package.files = settings.host_files();
            package.files.retain(|file| file.path != ENVIRONMENT);
            let pod = json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": objects::metadata(NAME, "kube-system"),
                "spec": pod(settings),
            });
            let folder = settings.target.static_pods();
            package.files.push(HostFile::open(format!("{folder}/{NAME}.yaml"), yaml::documents(&[pod])?));
            settings.quiet_preflight(&mut package)?;
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

/// A few lines of cloud-init that wait for nobody and that nobody waits for: the download happens in the unit.
fn first_boot(settings: &Settings) -> Result<Plan, RenderError> {
    let Some(download) = &settings.download else { return Err(missing_download()) };
    let options: String =
        settings.words().iter().map(|word| format!(" {}", names::shell_word(word))).collect();
    let command = format!(
        "systemd-run --no-block -u {NAME} -p DefaultDependencies=no -p Restart=always -p RestartSec=5 -p Nice=10 \
         -p StateDirectory=landfall sh -ec '{};exec $p agent{options}'||:",
        download.command()
    );
    let mut config = json!({"bootcmd": [command]});
    let authorities = settings.carriers.authorities();
    if !authorities.is_empty() {
        let file = |(name, text): &(&str, &str)| json!({"path": format!("{FOLDER}/{name}"), "content": text});
        config["write_files"] = authorities.iter().map(file).collect();
    }
    let text = format!("#cloud-config\n{}", yaml::documents(&[config])?);
    if text.len() > MAX_SNIPPET {
        return Err(RenderError::Snippet { bytes: text.len() });
    }
    let mut plan = Plan::default();
    plan.add("cloud-init.yaml", 0o644, text);
    Ok(plan)
}

fn daemon_set(settings: &Settings) -> Vec<(&'static str, Value)> {
    let namespace = settings.namespace.as_str();
    let mut objects = vec![
        ("namespace", objects::privileged_namespace(namespace)),
        // The agents ask the API nothing.
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
    let mut arguments =
        vec!["agent".to_owned(), format!("--root={HOST}"), "--state=/var/lib/landfall/agent".to_owned()];
    let mut mounts = vec![
        json!({"name": "host", "mountPath": HOST, "readOnly": true, "mountPropagation": "HostToContainer"}),
        json!({"name": "state", "mountPath": "/var/lib/landfall"}),
    ];
    let mut volumes = vec![
        json!({
            "name": "host",
            "# hostPath": "Logs, settings and processes are all over the machine. It writes none of them.",
            "hostPath": {"path": "/", "type": "Directory"},
        }),
        json!({"name": "state", "hostPath": {"path": "/var/lib/landfall", "type": "DirectoryOrCreate"}}),
    ];
    let carriers = &settings.carriers;
    arguments.extend(
        carriers.arguments(settings.sight()).into_iter().map(|(name, value)| format!("{name}={value}")),
    );
    if settings.way == Way::DaemonSet && !carriers.authorities().is_empty() {
        mounts.push(json!({"name": "authorities", "mountPath": POD_AUTHORITIES, "readOnly": true}));
        volumes.push(json!({"name": "authorities", "configMap": {"name": NAME}}));
    }
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
    let mut spec = json!({
        "# hostNetwork": "A node whose network does not come up is what it is for.",
        "hostNetwork": true,
        "dnsPolicy": "Default",
        "priorityClassName": "system-node-critical",
        "# tolerations": "Nodes that are not ready are those it is for.",
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 5,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{
            "name": "agent",
            "image": settings.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["/landfall"],
            "args": arguments,
            "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
            "securityContext": security,
            "volumeMounts": mounts,
        }],
        "volumes": volumes,
    });
    if let Some(port) = carriers.port() {
        spec["containers"][0]["# ports"] = json!("Told so that no two pods of a node want the same.");
        spec["containers"][0]["ports"] = json!([{"name": "serve", "containerPort": port, "hostPort": port}]);
    }
    if settings.way == Way::DaemonSet {
        spec["serviceAccountName"] = json!(NAME);
        spec["# automountServiceAccountToken"] = json!("It asks the API nothing.");
        spec["automountServiceAccountToken"] = json!(false);
    }
    spec
}

fn missing_download() -> RenderError {
    RenderError::Missing { what: "where the program is to be had, and its hash," }
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

    /// The agent's words for where reports go.
    fn words(&self) -> Vec<String> {
        let arguments = self.carriers.arguments(self.sight());
        arguments.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }

    /// What the unit reads.
    fn host_files(&self) -> Vec<HostFile> {
        let words = self.words();
        if words.is_empty() {
            return Vec::new();
        }
        let options = format!("LANDFALL_AGENT_OPTIONS={}\n", words.join(" "));
        let mut files = vec![HostFile::open(ENVIRONMENT, options)];
        let authorities = self.carriers.authorities().into_iter();
        files.extend(authorities.map(|(name, text)| HostFile::open(format!("{FOLDER}/{name}"), text)));
        files
    }

    /// kubeadm refuses to join where a static pod is waiting already, unless it is told that this is meant.
    fn quiet_preflight(&self, package: &mut Package) -> Result<(), RenderError> {
        let ignored = json!({
            "# ignorePreflightErrors": "The agent's static pod lies there already.",
            "ignorePreflightErrors": ["DirAvailable--etc-kubernetes-manifests"],
        });
        match self.target {
            Target::Capi => package.kubeadm = json!({"joinConfiguration": {"nodeRegistration": ignored}}),
            Target::Kubeadm => {
                let configuration = json!({
                    "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "JoinConfiguration", "nodeRegistration": ignored,
                });
                let text = yaml::documents(&[configuration])?;
                package.files.push(HostFile {
                    path: "/etc/landfall/kubeadm-join-configuration.yaml".to_owned(),
                    mode: 0o644,
                    content: Content::Open(text),
                });
            }
            Target::Openshift | Target::K3s => {}
        }
        Ok(())
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
