//! The tunnel into a bootstrapping cluster: the files on the bootstrap host, and the objects in the cluster.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use landfall_cluster::manifest;
use serde_json::{Value, json};

use crate::authority::check_days;
use crate::installer::{self, OVERRIDE};
use crate::package::{HostFile, Machines, Package, Unit, filled};
use crate::{
    Completion, Credentials, Download, Format, Plan, RenderError, Target, chart, names, objects, own_address,
    teardown, yaml,
};

/// Directory of the server's certificates on the bootstrap host.
pub(crate) const HOST_FOLDER: &str = "/etc/landfall/tunnel";
/// A separate directory: kube-apiserver mounts it and must not see the server's key.
pub(crate) const EGRESS_FOLDER: &str = "/etc/landfall/egress";
/// kubeadm's patches of the API server's pod on this machine only. The shared settings of all control planes
/// stay unchanged.
const PATCHES: &str = "/etc/landfall/tunnel/patches";
pub(crate) const EGRESS_FLAG: &str = "--egress-selector-config-file=";
/// Names of the volumes in that pod.
pub(crate) const VOLUMES: [&str; 2] = ["landfall-egress", "landfall-tunnel"];
pub(crate) const UNIT: &str = "landfall-tunnel-server.service";
pub(crate) const K3S_DROP_IN: &str = "/etc/rancher/k3s/config.yaml.d/90-landfall-tunnel.yaml";
pub(crate) const PACKAGE: &str = "landfall-tunnel";
const NAME: &str = "landfall-tunnel-agent";
/// Ports that other components may use on a bootstrap host. 6443 is the API server's; 6444 is that of the
/// gateway or of the k3s load balancer. The others are the health and admin ports of a tunnel agent, if the
/// host is also a node.
const TAKEN_PORTS: [u16; 4] = [6443, 6444, AGENT_HEALTH_PORT, 8094];
/// Port of the gateway on k3s.
const K3S_GATEWAY_PORT: u16 = 6445;
const AGENT_HEALTH_PORT: u16 = 8093;
/// Lower ports need a capability that the server does not have.
const LOWEST_PORT: u16 = 1024;
const SOCKET: &str = "server.sock";
const EGRESS_FILE: &str = "egress-selector.yaml";
const AGENT_FOLDER: &str = "/etc/landfall/tunnel";

/// How the server is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunAs {
    Pod,
    Unit,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub target: Target,
    pub run_as: RunAs,
    /// Address of the server for agents; `None` if the host determines it.
    pub server: Option<String>,
    pub agent_port: u16,
    pub health_port: u16,
    pub admin_port: u16,
    pub namespace: String,
    pub image: String,
    /// The signal that the tunnel may be removed; OpenShift's bootstrap always has one.
    pub completion: Option<Completion>,
    /// Required for a unit.
    pub download: Option<Download>,
}

/// Returns all files of a tunnel with this server.
pub fn plan(settings: &Settings, credentials: &Credentials, format: Format) -> Result<Plan, RenderError> {
    settings.check()?;
    if format == Format::Installer && settings.target == Target::Openshift {
        return Err(RenderError::KeysInSource);
    }
    let server =
        settings.server.as_deref().ok_or(RenderError::Missing { what: "the address of the server" })?;
    let mut package = package(settings, server, credentials)?;
    if format == Format::Helm {
        let marked =
            Settings { namespace: chart::NAMESPACE.into(), image: chart::IMAGE.into(), ..settings.clone() };
        package.objects = objects(&marked, server, credentials);
        let (namespace, image) = (Some(settings.namespace.clone()), Some(settings.image.clone()));
        package.values = chart::Values { namespace, image, ..chart::Values::default() };
    }
    package.plan(format)
}

/// Returns the files of a host that determines its own address. They contain no key.
pub fn plan_of_own_address(settings: &Settings, days: u32, format: Format) -> Result<Plan, RenderError> {
    settings.check()?;
    if settings.target != Target::Openshift {
        return Err(RenderError::OwnAddress);
    }
    if matches!(format, Format::Kustomize | Format::Helm) {
        return Err(RenderError::Combination {
            way: "a server that finds its own address",
            format: format.name(),
        });
    }
    check_days(days)?;
    let mut package = new_package(settings);
    package.files = own_address::files(settings, days);
    add_teardown(&mut package, settings);
    package.plan(format)
}

/// Returns the command-line arguments of the server on the bootstrap host.
pub fn server_arguments(settings: &Settings) -> Vec<String> {
    [
        "tunnel".to_owned(),
        "server".to_owned(),
        "--mode=http-connect".to_owned(),
        format!("--uds-name={}/{SOCKET}", settings.target.socket_folder()),
        "--server-port=0".to_owned(),
        format!("--agent-port={}", settings.agent_port),
        format!("--cluster-cert={HOST_FOLDER}/server.crt"),
        format!("--cluster-key={HOST_FOLDER}/server.key"),
        format!("--cluster-ca-cert={HOST_FOLDER}/ca.crt"),
        "--health-bind-address=127.0.0.1".to_owned(),
        format!("--health-port={}", settings.health_port),
        format!("--admin-port={}", settings.admin_port),
    ]
    .into()
}

/// Returns the command-line arguments in the agents' pods.
pub fn agent_arguments(settings: &Settings, server: &str) -> Vec<String> {
    [
        "tunnel".to_owned(),
        "agent".to_owned(),
        format!("--proxy-server-host={server}"),
        format!("--proxy-server-port={}", settings.agent_port),
        format!("--ca-cert={AGENT_FOLDER}/ca.crt"),
        format!("--agent-cert={AGENT_FOLDER}/tls.crt"),
        format!("--agent-key={AGENT_FOLDER}/tls.key"),
        "--agent-identifiers=default-route=true".to_owned(),
        "--health-server-host=127.0.0.1".to_owned(),
    ]
    .into()
}

/// Returns the file for kube-apiserver's `--egress-selector-config-file`. Only traffic into the cluster uses
/// the tunnel: connections to etcd and the control plane stay direct.
pub fn egress(target: Target) -> Value {
    json!({
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "# egressSelections": "Other destinations (etcd, controlplane) are dialed directly, as before.",
        "egressSelections": [{
            "name": "cluster",
            "connection": {
                "proxyProtocol": "HTTPConnect",
                "transport": {"uds": {"udsName": format!("{}/{SOCKET}", target.socket_folder_of_api_server())}},
            },
        }],
    })
}

fn new_package(settings: &Settings) -> Package {
    let about = "Agents of the tunnel into a bootstrapping cluster";
    let mut package = Package::new(PACKAGE, about, settings.target);
    package.machines = Machines::FirstControlPlane;
    package.download.clone_from(&settings.download);
    package
}

fn package(settings: &Settings, server: &str, credentials: &Credentials) -> Result<Package, RenderError> {
    let target = settings.target;
    let mut package = new_package(settings);
    package.objects = objects(settings, server, credentials);
    package.files = vec![
        HostFile::open(format!("{HOST_FOLDER}/ca.crt"), credentials.authority.clone()),
        HostFile::open(format!("{HOST_FOLDER}/server.crt"), credentials.server.certificate.clone()),
        HostFile::secret(format!("{HOST_FOLDER}/server.key"), credentials.server.key.expose().clone()),
        HostFile::open(egress_file(target), yaml::documents(&[egress(target)])?),
    ];
    for (path, value) in api_server_settings(target) {
        package.files.push(HostFile::open(path, yaml::documents(&[value])?));
    }
    if target == Target::Capi {
        package.kubeadm = json!({"initConfiguration": kubeadm_patches()});
    }
    match settings.run_as {
        RunAs::Pod => {
            package
                .files
                .push(HostFile::open(static_pod_file(target), yaml::documents(&[static_pod(settings)])?));
        }
        RunAs::Unit => package.units.push(Unit { name: UNIT, text: unit(settings) }),
    }
    if target == Target::Openshift {
        package.files.extend(installer::files());
    }
    add_teardown(&mut package, settings);
    Ok(package)
}

fn add_teardown(package: &mut Package, settings: &Settings) {
    if let Some((program, unit)) = teardown::service(settings) {
        package.files.push(program);
        package.units.push(unit);
    }
}

/// Returns the settings that make this kind of API server read the egress configuration. Each is a path on
/// the host with its content.
fn api_server_settings(target: Target) -> Vec<(String, Value)> {
    let patch = || (format!("{PATCHES}/kube-apiserver+json.yaml"), api_server_patch(target));
    match target {
        Target::Openshift => vec![(
            OVERRIDE.to_owned(),
            json!({
                "apiVersion": "kubecontrolplane.config.openshift.io/v1",
                "kind": "KubeAPIServerConfig",
                "# apiServerArguments": "The flag: the configuration itself has no field here, and would be dropped in silence.",
                "apiServerArguments": {
                    "egress-selector-config-file":
                        [format!("{}/{EGRESS_FILE}", target.socket_folder_of_api_server())],
                },
            }),
        )],
        Target::Kubeadm => {
            let mut configuration = kubeadm_patches();
            configuration["apiVersion"] = json!("kubeadm.k8s.io/v1beta4");
            configuration["kind"] = json!("InitConfiguration");
            vec![patch(), (format!("{HOST_FOLDER}/kubeadm-init-configuration.yaml"), configuration)]
        }
        Target::Capi => vec![patch()],
        Target::K3s => {
            let argument = format!("egress-selector-config-file={}", egress_file(target));
            vec![(K3S_DROP_IN.to_owned(), json!({"kube-apiserver-arg+": [argument]}))]
        }
    }
}

/// Returns the setting of `kubeadm init` for the directory of patches.
fn kubeadm_patches() -> Value {
    json!({
        "# patches": "Not in the ClusterConfiguration: that would give the flag to control planes that join.",
        "patches": {"directory": PATCHES},
    })
}

/// Returns the patch of the API server's static pod.
fn api_server_patch(target: Target) -> Value {
    let folders = [EGRESS_FOLDER, target.socket_folder()];
    let mut patch = vec![json!({
        "op": "add", "path": "/spec/containers/0/command/-",
        "value": format!("{}{}", EGRESS_FLAG, egress_file(target)),
    })];
    for (name, folder) in VOLUMES.into_iter().zip(folders) {
        let mount = json!({"name": name, "mountPath": folder, "readOnly": true});
        let volume = json!({"name": name, "hostPath": {"path": folder, "type": "DirectoryOrCreate"}});
        patch.push(json!({"op": "add", "path": "/spec/containers/0/volumeMounts/-", "value": mount}));
        patch.push(json!({"op": "add", "path": "/spec/volumes/-", "value": volume}));
    }
    json!(patch)
}

/// Returns the path of the egress configuration on the host.
pub(crate) fn egress_file(target: Target) -> String {
    format!("{}/{EGRESS_FILE}", target.egress_folder())
}

/// Returns the path of the server's static pod.
pub(crate) fn static_pod_file(target: Target) -> String {
    format!("{}/landfall-tunnel-server.yaml", target.static_pods())
}

fn static_pod(settings: &Settings) -> Value {
    let security = match settings.target {
        Target::Openshift => json!({
            "# privileged": "SELinux lets no other container make a socket below /etc/kubernetes.",
            "privileged": true,
            "readOnlyRootFilesystem": true,
        }),
        _ => json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        }),
    };
    let values = [
        ("IMAGE", json!(settings.image)),
        ("ARGUMENTS", json!(server_arguments(settings))),
        ("HEALTH_PORT", json!(settings.health_port)),
        ("SECURITY", security),
        ("HOST_FOLDER", json!(HOST_FOLDER)),
        ("SOCKET_FOLDER", json!(settings.target.socket_folder())),
    ];
    manifest::object(include_str!("../files/tunnel-server.yaml"), &values)
}

fn unit(settings: &Settings) -> String {
    let folder = settings.target.socket_folder();
    let arguments = server_arguments(settings).join(" \\\n  ").replacen(" \\\n  ", " ", 1);
    let writable = match settings.target {
        Target::Openshift => format!(
            "# The directory of the socket is below /etc, created with the egress configuration.\nReadWritePaths={folder}\n"
        ),
        _ => String::new(),
    };
    let values = [("@FOLDER@", folder), ("@WRITABLE@", &writable), ("@ARGUMENTS@", &arguments)];
    filled(include_str!("../files/tunnel-server.service"), &values)
}

/// Returns the objects in the order of their application.
fn objects(settings: &Settings, server: &str, credentials: &Credentials) -> Vec<(&'static str, Value)> {
    let namespace = &settings.namespace;
    let values = [
        ("NAME", json!(NAME)),
        ("METADATA", objects::metadata(NAME, namespace)),
        ("LABELS", objects::labels(NAME)),
        ("AUTHORITY", json!(STANDARD.encode(&credentials.authority))),
        ("CERTIFICATE", json!(STANDARD.encode(&credentials.agent.certificate))),
        ("KEY", json!(STANDARD.encode(credentials.agent.key.expose()))),
        ("USER", objects::unprivileged(settings.target)),
        ("IMAGE", json!(settings.image)),
        ("ARGUMENTS", json!(agent_arguments(settings, server))),
        ("HEALTH_PORT", json!(AGENT_HEALTH_PORT)),
        ("FOLDER", json!(AGENT_FOLDER)),
    ];
    let mut objects = vec![
        // The agents use the host network.
        ("namespace", objects::privileged_namespace(namespace)),
        // The agents do not use the API: their certificate is their only credential.
        ("service-account", objects::service_account(NAME, namespace)),
    ];
    if settings.target == Target::Openshift {
        let binding = objects::security_context_binding(NAME, namespace, "hostnetwork-v2");
        objects.push(("role-binding", binding));
    }
    let agent = manifest::objects(include_str!("../files/tunnel-agent.yaml"), &values);
    objects.extend(["secret", "daemon-set"].into_iter().zip(agent));
    objects
}

// === impl Settings ===

impl Settings {
    /// Returns the default settings of the target.
    pub fn new(target: Target, server: impl Into<String>, image: impl Into<String>) -> Self {
        Self {
            target,
            run_as: if target == Target::K3s { RunAs::Unit } else { RunAs::Pod },
            server: Some(server.into()),
            agent_port: 8091,
            health_port: 8092,
            admin_port: 8095,
            namespace: "landfall-bootstrap".to_owned(),
            image: image.into(),
            completion: None,
            download: None,
        }
    }

    pub fn check(&self) -> Result<(), RenderError> {
        names::own_namespace(&self.namespace)?;
        names::image(&self.image)?;
        self.server.as_deref().map_or(Ok(()), names::host)?;
        self.download.as_ref().map_or(Ok(()), Download::check)?;
        if self.download.is_some() && self.run_as == RunAs::Pod {
            return Err(RenderError::DownloadOfPod);
        }
        let own = [self.agent_port, self.health_port, self.admin_port];
        if let Some(port) = own.into_iter().find(|port| *port < LOWEST_PORT) {
            return Err(RenderError::LowPort { port });
        }
        let mut ports = [&own[..], &TAKEN_PORTS].concat();
        ports.extend((self.target == Target::K3s).then_some(K3S_GATEWAY_PORT));
        ports.sort_unstable();
        if ports.windows(2).any(|pair| pair[0] == pair[1]) {
            let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
            return Err(RenderError::Ports { ports: ports.join(", ") });
        }
        Ok(())
    }
}

// === impl Target ===

impl Target {
    /// Returns the directory of the server's socket on the host.
    pub(crate) fn socket_folder(self) -> &'static str {
        match self {
            // The bootstrap API server's pod is rendered by its operator, which mounts only this directory.
            Self::Openshift => "/etc/kubernetes/bootstrap-configs/landfall-tunnel",
            Self::Kubeadm | Self::K3s | Self::Capi => "/run/landfall/tunnel",
        }
    }

    /// Returns the directory of the egress configuration on the host.
    fn egress_folder(self) -> &'static str {
        match self {
            Self::Openshift => self.socket_folder(),
            Self::Kubeadm | Self::K3s | Self::Capi => EGRESS_FOLDER,
        }
    }

    /// Returns the socket's directory inside the API server's pod.
    fn socket_folder_of_api_server(self) -> &'static str {
        match self {
            Self::Openshift => "/etc/kubernetes/config/landfall-tunnel",
            Self::Kubeadm | Self::K3s | Self::Capi => self.socket_folder(),
        }
    }
}

// === impl RunAs ===

impl RunAs {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Unit => "unit",
        }
    }
}
