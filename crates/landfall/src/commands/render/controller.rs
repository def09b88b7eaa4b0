use std::ffi::OsString;
use std::iter;
use std::time::Duration;

use clap::{Args, ValueEnum};
use landfall_controller::capi;
use landfall_controller::manifests::{self, Platform, Rights, Settings, install};
use landfall_render::{Described, chart, object_name, secure_url, selector};
use serde_json::Value;

use super::{Folder, Format, explain};
use crate::cli::Cli;
use crate::commands::tunnel::duration;
use crate::exit::{Exit, Failure};

/// The controller: its definition, accounts, rights, admission policy and Deployment
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall render controller --image registry.example/landfall:0.1.0 -o controller
  landfall render controller --for openshift --image registry.example/landfall:0.1.0 -o controller
  landfall render controller --image … --approve-certificates --format kustomize -o controller -- --max-unavailable=3
  landfall render controller --for capi --image … --hub https://hub.corp:8700 --hub-secret landfall-hub \\
    --hold-evidence 15m --health-check team-a/edge -o controller")]
pub(super) struct Controller {
    /// The kind of cluster it runs in; `capi` is a management cluster of Cluster API, and says `--work capi`
    #[arg(long = "for", value_enum, value_name = "KIND", default_value_t = Cluster::Kubeadm)]
    cluster: Cluster,

    /// Which work it does [default: `capi` with `--for capi`, else `in-place`]
    #[arg(long, value_enum, value_name = "WORK")]
    work: Option<Work>,

    /// The namespace to install into [default: `landfall-capi` for Cluster API, else `landfall`]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,

    /// The image of the controller and of the pods on nodes
    #[arg(long, value_name = "IMAGE")]
    image: String,

    /// The Secret that those of nodes are made from
    #[arg(long, value_name = "NAME")]
    secret_template: Option<String>,

    /// Manage only nodes with these labels
    #[arg(long, value_name = "LABELS", default_value = "", hide_default_value = true)]
    selector: String,

    /// Approve certificates of nodes: gives the controller the right, and the flag
    #[arg(long)]
    approve_certificates: bool,

    /// Cluster API: hub to read reports from
    #[arg(long, value_name = "URL")]
    hub: Option<String>,

    /// Cluster API: the Secret with `token` and `ca.crt` for the hub
    #[arg(long, value_name = "NAME", requires = "hub")]
    hub_secret: Option<String>,

    /// Cluster API: delay the deletion of failed Machines for their evidence, at most this long
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "hub")]
    hold_evidence: Option<Duration>,

    /// Cluster API: let the node of this Machine write a report of its own; may be repeated
    #[arg(long, value_name = "NAMESPACE/MACHINE", value_parser = placed)]
    write_back: Vec<(String, String)>,

    /// Cluster API: a MachineHealthCheck for this Cluster; may be repeated
    #[arg(long, value_name = "NAMESPACE/CLUSTER", value_parser = placed)]
    health_check: Vec<(String, String)>,

    /// How the files are wrapped
    #[arg(long, value_enum, default_value_t = Format::Yaml)]
    format: Format,

    #[command(flatten)]
    target: Folder,

    /// Further flags of the controller, behind `--`
    #[arg(last = true, value_name = "FLAGS")]
    flags: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Cluster {
    /// OpenShift
    Openshift,
    /// kubeadm, and whatever has no rules of its own
    Kubeadm,
    /// k3s
    K3s,
    /// A management cluster of Cluster API
    Capi,
    /// As it was called when this was the work
    #[value(hide = true)]
    InPlace,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Work {
    /// Leads nodes through in-place bootstraps
    InPlace,
    /// Writes the state of nodes to conditions of Cluster API Machines
    Capi,
}

/// Parses `NAMESPACE/NAME`, both valid names in Kubernetes.
fn placed(text: &str) -> Result<(String, String), String> {
    let is_name = |name: &str, limit: usize, more: &[u8]| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || more.contains(&byte);
        let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = name.as_bytes();
        name.len() <= limit && bytes.iter().copied().all(plain) && ends(bytes.first()) && ends(bytes.last())
    };
    match text.split_once('/') {
        // Names of accounts and roles consist of a prefix and this name.
        Some((namespace, name)) if is_name(namespace, 63, b"-") && is_name(name, 200, b"-.") => {
            Ok((namespace.to_owned(), name.to_owned()))
        }
        _ => Err("it is a namespace and a name, such as `team-a/edge-1`, with at most 63 and 200 letters"
            .to_owned()),
    }
}

/// Checks that the controller accepts the rendered arguments. Its pod would otherwise fail with the same error after
/// each restart.
fn known(objects: &[(&str, Value)]) -> Result<(), Failure> {
    let deployments = objects.iter().filter(|(_, object)| object["kind"] == "Deployment");
    for (_, object) in deployments {
        let arguments = object["spec"]["template"]["spec"]["containers"][0]["args"].as_array();
        let words = arguments.into_iter().flatten().filter_map(Value::as_str);
        if let Err(error) = Cli::of_arguments(iter::once("landfall").chain(words).map(OsString::from)) {
            let text = error.to_string();
            let why = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            let error = anyhow::anyhow!("the controller would refuse its flags: {why}");
            return Err(Failure::usage(error, "`landfall controller --help` lists those it takes"));
        }
    }
    Ok(())
}

// === impl Controller ===

impl Controller {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        match self.work() {
            Work::InPlace => self.in_place(),
            Work::Capi => self.capi(),
        }
    }

    fn work(&self) -> Work {
        let usual = if self.cluster == Cluster::Capi { Work::Capi } else { Work::InPlace };
        self.work.unwrap_or(usual)
    }

    fn namespace(&self) -> String {
        let usual = match self.work() {
            Work::InPlace => manifests::NAMESPACE,
            Work::Capi => capi::manifests::NAMESPACE,
        };
        self.namespace.clone().unwrap_or_else(|| usual.to_owned())
    }

    fn platform(&self) -> Platform {
        if self.cluster == Cluster::Openshift { Platform::Openshift } else { Platform::Kubernetes }
    }

    /// Returns the values of the objects: those of a chart are placeholders.
    fn namespace_and_image(&self) -> (String, String) {
        match self.format {
            Format::Helm => (chart::NAMESPACE.to_owned(), chart::IMAGE.to_owned()),
            _ => (self.namespace(), self.image.clone()),
        }
    }

    fn capi(self) -> Result<Exit, Failure> {
        if self.secret_template.is_some() || self.approve_certificates || !self.selector.is_empty() {
            let error = anyhow::anyhow!("some of these flags are for in-place bootstraps");
            return Err(Failure::usage(error, "leave them out, or choose `--work in-place`"));
        }
        self.hub.as_deref().map_or(Ok(()), secure_url).map_err(explain)?;
        self.hub_secret.as_deref().map_or(Ok(()), object_name).map_err(explain)?;
        let own_namespace = self.namespace();
        let (namespace, image) = self.namespace_and_image();
        let platform = self.platform();
        let settings = capi::manifests::Settings {
            namespace: own_namespace.clone(),
            image: self.image.clone(),
            hub: self.hub,
            hub_secret: self.hub_secret,
            hold: self.hold_evidence,
            write_back: self.write_back,
            health_checks: self.health_check,
        };
        known(&capi::manifests::install(&settings, platform, &self.flags))?;
        let settings = capi::manifests::Settings { namespace, image, ..settings };
        let role = Described {
            name: "landfall-capi",
            about: "Writes the bootstrap state of nodes to conditions of Cluster API Machines",
            objects: capi::manifests::install(&settings, platform, &self.flags),
            namespace: own_namespace,
            image: self.image,
        };
        self.target.put(&landfall_render::manifests(role, self.format.into()).map_err(explain)?)
    }

    fn in_place(self) -> Result<Exit, Failure> {
        let capi_only = self.hub.is_some() || !self.write_back.is_empty() || !self.health_check.is_empty();
        if capi_only {
            let error = anyhow::anyhow!("some of these flags are for Cluster API");
            return Err(Failure::usage(error, "add `--for capi` or `--work capi`"));
        }
        selector(&self.selector).map_err(explain)?;
        self.secret_template.as_deref().map_or(Ok(()), object_name).map_err(explain)?;
        let own_namespace = self.namespace();
        let (namespace, image) = self.namespace_and_image();
        let platform = self.platform();
        let settings = Settings {
            namespace: own_namespace.clone(),
            selector: self.selector,
            image: self.image.clone(),
            template: self.secret_template,
            runner_arguments: Vec::new(),
        };
        let mut flags = self.flags;
        let rights = if self.approve_certificates {
            flags.insert(0, "--approve-certificates".to_owned());
            Rights::Approving
        } else {
            Rights::Usual
        };
        known(&install(&settings, rights, platform, &flags))?;
        let objects = install(&Settings { namespace, image, ..settings }, rights, platform, &flags);
        let role = Described {
            name: "landfall-controller",
            about: "Leads a fleet through in-place bootstraps",
            namespace: own_namespace,
            image: self.image,
            objects,
        };
        self.target.put(&landfall_render::manifests(role, self.format.into()).map_err(explain)?)
    }
}
