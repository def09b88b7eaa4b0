//! Environments for breakages: a cluster with a node, or commands on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use landfall_diagnose::{Engine, RuleSet};
use landfall_evidence::collect::{Host, Plan};
use landfall_evidence::read::{self, Input};
use landfall_model::report::Report;
use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{
    API_NAME, ApiServer, Binary, ControllerManager, HOST_ADDRESS, Invitation, Node, NodeSpec, Process,
    eventually, free_port,
};
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;
use time::{Duration as Span, OffsetDateTime};

use crate::breakage::Breakage;
use crate::trial::Aftermath;

/// Shell functions for the table's commands on the node.
const NODE_COMMANDS: &str = include_str!("../../breakages/node.sh");
const NODE_COMMANDS_PATH: &str = "/usr/local/lib/breakages.sh";
/// Shell functions for the table's commands on this machine.
const CONTROL_PLANE_COMMANDS: &str = include_str!("../../breakages/control-plane.sh");
/// cloud-init's log with the output of commands on the node.
const OUTPUT: &str = "/var/log/cloud-init-output.log";
/// Time from the failure to its log messages. kubelet restarts only every 10 s.
const SHOW_LIMIT: Duration = Duration::from_secs(60);
const READY_LIMIT: Duration = Duration::from_secs(90);
const NODE_NAME: &str = "anvil";

/// A cluster with one node that is repeatedly broken and repaired.
pub(crate) struct Bench {
    engine: Engine,
    node: Node,
    cluster: ApiServer,
    _controllers: ControllerManager,
    invitation: Invitation,
}

/// Components started on this machine with an invalid setup.
pub(crate) struct Commands {
    engine: Engine,
    path: String,
}

// === impl Bench ===

impl Bench {
    pub(crate) fn new() -> Result<Self> {
        let cluster = ApiServer::start_with(&Invitation::api_server())?;
        let controllers = ControllerManager::start(&cluster)?;
        let invitation = Invitation::create(&cluster)?;
        let mut spec = NodeSpec::new(NODE_NAME);
        spec.hosts =
            [API_NAME, "other.landfall.test"].map(|name| (HOST_ADDRESS.into(), name.to_owned())).into();
        spec.files = node_files(&cluster, &invitation)?;
        let mut node = Node::boot(&spec)?;
        node.wait_for_boot()?;
        node.wait_for_cloud_init()?;
        let engine = engine()?;
        Ok(Self { engine, node, cluster, _controllers: controllers, invitation })
    }

    /// Breaks the node, waits until the components log the failure, collects, diagnoses and repairs.
    pub(crate) fn suffer(&mut self, breakage: &Breakage) -> Result<Aftermath> {
        self.on_node("reset")?;
        self.forget_node()?;
        self.on_cluster(&breakage.cluster).context("prepare the cluster")?;
        let ran = self.on_node(&breakage.run);
        let shown = ran.context("break the node").and_then(|()| self.wait_for(&breakage.until));
        let log = self.log();
        let aftermath = shown
            .and_then(|()| self.diagnose())
            .with_context(|| format!("the log:\n{}", crate::fixture::trimmed(&log)))
            .map(|report| Aftermath { report, log });
        let mended = self.on_node(&format!("{}\nreset", breakage.mend));
        self.on_cluster(&breakage.mend_cluster).context("mend the cluster")?;
        mended.context("mend the node")?;
        aftermath
    }

    /// Lets the node join correctly and diagnoses that.
    pub(crate) fn health(&mut self) -> Result<Report> {
        self.forget_node()?;
        self.on_node("reset\njoin")?;
        eventually("the node to be ready", READY_LIMIT, || {
            self.node.is_ready(&self.cluster).ok()?.then_some(())
        })
        .with_context(|| format!("the log:\n{}", self.log()))?;
        let report = self.diagnose()?;
        self.on_node("reset")?;
        Ok(report)
    }

    /// Removes all traces of the node from the cluster.
    fn forget_node(&self) -> Result<()> {
        self.on_cluster("kubectl delete node $NODE --ignore-not-found").context("forget the node")
    }

    fn on_node(&self, commands: &str) -> Result<()> {
        let script = format!(". {NODE_COMMANDS_PATH}\n{commands}");
        let output = self.node.run(&["sh", "-eu", "-c", &script])?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}", output.status, text.trim());
        Ok(())
    }

    fn on_cluster(&self, commands: &str) -> Result<()> {
        let output = Command::new("sh")
            .args(["-eu", "-c", commands])
            .env("PATH", path_with_components()?)
            .env("KUBECONFIG", self.cluster.admin_kubeconfig())
            .env("KUBECACHEDIR", self.cluster.directory().join("kubectl-cache"))
            .env("NODE", NODE_NAME)
            .env("TOKEN_ID", &self.invitation.token.id)
            .current_dir(self.cluster.directory())
            .output()
            .context("run `sh`")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }

    fn wait_for(&self, text: &str) -> Result<()> {
        eventually(&format!("{text:?} in the logs"), SHOW_LIMIT, || self.log().contains(text).then_some(()))
    }

    fn log(&self) -> String {
        let output = self.node.read(OUTPUT).unwrap_or_default();
        let cloud_init = self.node.read("/var/log/cloud-init.log").unwrap_or_default();
        let cloud_init: Vec<&str> =
            cloud_init.lines().filter(|line| !line.contains("[DEBUG]") && !line.contains("[INFO]")).collect();
        let journal = self.node.journal(&[]).unwrap_or_default();
        format!("{journal}\n{}\n{output}", cloud_init.join("\n"))
    }

    fn diagnose(&self) -> Result<Report> {
        let leader = self.node.leader().context("the node is not running")?;
        let host = Host::at(Path::new(&format!("/proc/{leader}/root"))).context("open the node's root")?;
        let plan = Plan::of(&host).context("read what to collect")?;
        read::diagnose(&self.engine, vec![Input::Machine { host, plan }], &|_| {}).context("diagnose")
    }
}

// === impl Commands ===

impl Commands {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { engine: engine()?, path: path_with_components()? })
    }

    pub(crate) fn suffer(&self, breakage: &Breakage) -> Result<Aftermath> {
        let directory = tempfile::Builder::new().prefix("landfall-breakage-").tempdir()?;
        control_plane_files(&directory)?;
        let ports = [free_port()?, free_port()?, free_port()?, free_port()?];
        let script = directory.path().join("run.sh");
        std::fs::write(
            &script,
            format!("cd {}\n{CONTROL_PLANE_COMMANDS}\n{}", directory.path().display(), breakage.run),
        )?;
        let process = Process::start("component", Path::new("unshare"), directory.path(), |command| {
            // In a separate process namespace, so that all child processes end with the commands.
            command.args(["--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--", "bash", "-u"]);
            command.arg(&script).env("PATH", &self.path);
            for (number, port) in ports.iter().enumerate() {
                command.env(format!("PORT{number}"), port.to_string());
            }
        })?;
        let what = format!("{:?} in the log", breakage.until);
        let shown = eventually(&what, SHOW_LIMIT, || process.log().contains(&breakage.until).then_some(()));
        let log = process.log();
        drop(process);
        shown.with_context(|| format!("the log:\n{}", crate::fixture::trimmed(&log)))?;
        let source = Input::Path(directory.path().join("component.log"));
        let report = read::diagnose(&self.engine, vec![source], &|_| {}).context("diagnose")?;
        Ok(Aftermath { report, log })
    }
}

fn engine() -> Result<Engine> {
    Engine::new(RuleSet::embedded().context("read the rules")?).context("compile the rules")
}

fn path_with_components() -> Result<String> {
    let mut folders = Vec::new();
    for binary in [Binary::Kubectl, Binary::KubeApiserver] {
        folders.push(binary.path()?.parent().context("a program has a folder")?.display().to_string());
    }
    folders.push(std::env::var("PATH").unwrap_or_default());
    folders.push("/usr/sbin:/sbin".to_owned());
    Ok(folders.join(":"))
}

/// Returns files for the table's commands, placed in `/run/breakages` once the node runs.
fn node_files(cluster: &ApiServer, invitation: &Invitation) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let stranger = Authority::new("stranger", 30)?;
    let user = format!("system:node:{NODE_NAME}");
    let client = |authority: &Authority, name: &str, days: u32| -> Result<Vec<u8>> {
        let leaf = Leaf::new(name, Purpose::Call).organization("system:nodes").days(days);
        let pair = authority.issue(&leaf)?;
        Ok(format!("{}{}", pair.certificate, pair.key.expose()).into_bytes())
    };
    let (future, future_key) = certificate_of_the_future()?;
    let environment = format!(
        "ENDPOINT={}\nPORT={}\nTOKEN={}\nNODE={NODE_NAME}\nHOST={HOST_ADDRESS}\n",
        invitation.endpoint,
        cluster.port(),
        invitation.token.text()
    );
    let folder = Path::new("/usr/local/lib/breakages");
    Ok(vec![
        (NODE_COMMANDS_PATH.into(), NODE_COMMANDS.as_bytes().to_vec()),
        (folder.join("environment"), environment.into_bytes()),
        (folder.join("ca.crt"), cluster.authority().certificate().as_bytes().to_vec()),
        (folder.join("stranger-ca.crt"), stranger.certificate().as_bytes().to_vec()),
        (folder.join("node.pem"), client(cluster.authority(), &user, 1)?),
        // Expires in the moment of its creation.
        (folder.join("expired.pem"), client(cluster.authority(), &user, 0)?),
        (folder.join("other-node.pem"), client(cluster.authority(), "system:node:other", 1)?),
        (folder.join("stranger.pem"), client(&stranger, &user, 1)?),
        (folder.join("future.pem"), format!("{future}{future_key}").into_bytes()),
    ])
}

/// Writes certificates for etcd and kube-apiserver to the directory in which their commands run.
fn control_plane_files(directory: &TempDir) -> Result<()> {
    let write = |name: &str, content: &str| {
        std::fs::write(directory.path().join(name), content).with_context(|| format!("write `{name}`"))
    };
    let authority = Authority::new("etcd", 30)?;
    let stranger = Authority::new("stranger", 30)?;
    let serving = Leaf::new("etcd", Purpose::Peer).names(["127.0.0.1", "localhost"]);
    let elsewhere = Leaf::new("etcd", Purpose::Peer).names(["192.0.2.1"]);
    write("ca.crt", authority.certificate())?;
    write("stranger-ca.crt", stranger.certificate())?;
    for (name, pair) in [
        ("server", authority.issue(&serving)?),
        ("stranger", stranger.issue(&serving)?),
        ("elsewhere", authority.issue(&elsewhere)?),
        ("expired", authority.issue(&serving.clone().days(0))?),
    ] {
        write(&format!("{name}.crt"), &pair.certificate)?;
        write(&format!("{name}.key"), pair.key.expose())?;
    }
    let (key, public) = landfall_pki::signing_key()?;
    write("sa.key", key.expose())?;
    write("sa.pub", &public)
}

/// Creates a certificate that becomes valid next month, as seen by a machine whose clock is behind.
fn certificate_of_the_future() -> Result<(String, String)> {
    let key = KeyPair::generate().context("make a key")?;
    let mut params = CertificateParams::new(vec![API_NAME.to_owned()]).context("name the certificate")?;
    let now = OffsetDateTime::now_utc();
    params.not_before = now + Span::days(30);
    params.not_after = now + Span::days(60);
    let certificate = params.self_signed(&key).context("sign the certificate")?;
    Ok((certificate.pem(), key.serialize_pem()))
}
