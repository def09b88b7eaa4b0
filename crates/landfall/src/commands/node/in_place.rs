use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::{Args, ValueEnum};
use landfall_cluster::Cluster;
use landfall_durable::{Disk as _, HostDisk};
use landfall_model::step::Outcome;
use landfall_model::{Secret, chain};
use landfall_node::environment::HostEnvironment;
use landfall_node::in_place::credentials::MAX_BYTES;
use landfall_node::in_place::environment::ClusterAccess;
use landfall_node::in_place::flavour::Flavour;
use landfall_node::in_place::gate::Gate;
use landfall_node::in_place::places::RUN;
use landfall_node::in_place::preflight;
use landfall_node::in_place::request::{
    ClusterUse, FREE_BYTES, LABEL, NAMESPACE, Request, SECRET_KEY, SEED_LABEL, secret_names,
};
use landfall_node::in_place::run::{self, Attempt};
use landfall_node::run::{RunError, records};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::Format;
use super::prepare::RebootBy;
use super::status::json;
use super::work::{self, Continuation, failure};
use crate::exit::{Exit, Failure};
use crate::output::{self, say};
use crate::runtime;

/// Poll interval of the gate: a kubelet may well start one second later.
const LOOK: Duration = Duration::from_secs(1);
/// Number of consecutive read errors of a ledger after which the gate fails and stays closed.
const MAX_UNREADABLE: u32 = 60;
/// The installed unit continues an attempt after each boot; it treats exit code 100 as success.
const BY_ITSELF: Continuation = Continuation {
    command: "landfall node in-place",
    after_reboot: "the rest continues by itself",
    after_stop: "the next start continues",
    rebooting: Exit::Reboot,
};

/// Re-bootstrap this machine in place, across reboots and power failures, exactly once
///
/// Reads the node's Secret, checks all preconditions, downloads everything to the machine, removes the label,
/// and only then reboots the machine. The unit that continues after the reboot is installed before it and removes itself.
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall node in-place --root /host --preflight-only --output json
  landfall node in-place --root /host --reboot systemd --stay
  landfall node in-place --secret-file bootstrap.json --no-cluster --node-name worker-1

Exit codes: 0 done · 1 failed · 69 the cluster did not answer · 75 waiting, or failed for now · 77 not asked for · \
100 reboot, then it continues by itself")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own on the command line")]
pub(crate) struct InPlace {
    /// The name of this node
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<String>,

    /// Check all preconditions and change nothing; downloads are kept for the real run
    #[arg(long)]
    preflight_only: bool,

    /// The Secret's content as a file, instead of the cluster's
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,

    /// The namespace of the Secret
    #[arg(long, value_name = "NAME", default_value = NAMESPACE)]
    namespace: String,

    /// Access to the cluster [default: the pod's account, `KUBECONFIG`]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Begin only if the node is labelled for it, although the Secret is given as a file
    #[arg(long, requires = "secret_file", conflicts_with = "no_cluster")]
    if_labelled: bool,

    /// There is no cluster to ask or tell
    #[arg(long, requires = "secret_file", conflicts_with = "kubeconfig")]
    no_cluster: bool,

    /// What kind of machine this is [default: by its release file]
    #[arg(long, value_enum)]
    kind: Option<Kind>,

    /// Room that must be free, in MB
    #[arg(long, value_name = "MB", default_value_t = FREE_BYTES / 1_000_000)]
    free_space: u64,

    /// Start again with a Secret whose attempt has ended
    #[arg(long)]
    again: bool,

    /// How a reboot comes about when one is needed
    #[arg(long, value_enum, default_value_t = RebootBy::Exit)]
    reboot: RebootBy,

    /// Then stay: a DaemonSet's pod must not end
    #[arg(long)]
    stay: bool,

    /// Resume the open attempt on this machine, as the installed unit does after each boot
    #[arg(long, conflicts_with_all = ["preflight_only", "secret_file", "again"])]
    go_on: bool,

    /// Wait until the kubelet may start; what the installed gate does
    #[arg(long, conflicts_with_all = ["preflight_only", "secret_file", "again", "go_on"])]
    gate: bool,

    /// How to print the preflight
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,

    /// The node's root folder
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// Configured by machine-config-daemon
    Rhcos,
    /// Configured by a payload of scripts
    Rhel,
}

// === impl InPlace ===

impl InPlace {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let runtime = runtime::multi_threaded()?;
        if self.gate {
            return self.wait_at_gate(&runtime);
        }
        let done = if self.go_on { self.go_on(&runtime) } else { self.begin(&runtime) };
        if self.stay {
            match &done {
                Ok(_) => say("Nothing more is to be done here; staying until this process is ended."),
                Err(failure) => drop(failure.report()),
            }
            runtime.block_on(async { work::asked_to_end().await });
        }
        done
    }

    fn wait_at_gate(&self, runtime: &Runtime) -> Result<Exit, Failure> {
        let env = self.environment(ClusterAccess::Kubelet, &[])?;
        let (mut told, mut unreadable) = (String::new(), 0);
        loop {
            match run::look_at_gate(&env) {
                Ok(Gate::Open { why }) => {
                    say(&format!("The kubelet may start: {why}."));
                    return Ok(Exit::Done);
                }
                Ok(Gate::Closed { why }) => {
                    unreadable = 0;
                    if told != why {
                        say(&format!("The kubelet must wait: {why}."));
                        told = why;
                    }
                }
                Err(error) if unreadable >= MAX_UNREADABLE => return Err(failure(error)),
                Err(error) => {
                    unreadable += 1;
                    let why = chain(&error).to_string();
                    if told != why {
                        say(&format!("The kubelet must wait: {why}."));
                        told = why;
                    }
                }
            }
            runtime.block_on(async { tokio::time::sleep(LOOK).await });
        }
    }

    fn go_on(&self, runtime: &Runtime) -> Result<Exit, Failure> {
        let access = match &self.kubeconfig {
            Some(path) => ClusterAccess::Kubeconfig(path.clone()),
            None => ClusterAccess::Kubelet,
        };
        let looking = self.environment(access.clone(), &[])?;
        let attempt = match Attempt::open(&looking) {
            Err(RunError::NothingOpen) => {
                runtime.block_on(run::tidy_up(&looking)).map_err(failure)?;
                return Ok(Exit::Done);
            }
            attempt => attempt.map_err(failure)?,
        };
        let env = Arc::new(self.environment(access, &attempt.secrets())?);
        self.carry_out(runtime, &env, &attempt)
    }

    fn begin(&self, runtime: &Runtime) -> Result<Exit, Failure> {
        let node = self.node_name.clone().ok_or_else(|| {
            Failure::usage(
                anyhow!("the name of this node is not known"),
                "give `--node-name`, or set `NODE_NAME`",
            )
        })?;
        let access = match &self.kubeconfig {
            Some(path) => ClusterAccess::Kubeconfig(path.clone()),
            None => ClusterAccess::Pod,
        };
        let looking = Arc::new(self.environment(access.clone(), &[])?);
        let raw = match &self.secret_file {
            Some(path) => {
                if self.if_labelled {
                    runtime.block_on(self.check_still_asked_for(&looking, &node))?;
                }
                let bytes =
                    HostDisk.read(path, MAX_BYTES).with_context(|| format!("read `{}`", path.display()));
                let hint = "name a file with what the Secret holds under `bootstrap`, a JSON object";
                Secret::new(bytes.map_err(|error| Failure::new(error, hint))?)
            }
            None => runtime.block_on(self.secret_of_cluster(&node))?,
        };
        let flavour = match self.kind {
            Some(Kind::Rhcos) => Flavour::Rhcos,
            Some(Kind::Rhel) => Flavour::Rhel,
            None => run::flavour(&*looking).map_err(failure)?,
        };
        let mut request = Request {
            node,
            flavour,
            cluster: if self.no_cluster { ClusterUse::None } else { ClusterUse::Needed },
            free_bytes: self.free_space.saturating_mul(1_000_000),
            number: 0,
        };
        if self.again {
            request.number = run::next_number(&looking, &request, &raw).map_err(failure)?;
        }
        let attempt = Attempt::new(request, raw);
        let env = Arc::new(self.environment(access, &attempt.secrets())?);
        if self.preflight_only {
            return self.preflight(runtime, &env, &attempt);
        }
        self.carry_out(runtime, &env, &attempt)
    }

    fn preflight(
        &self,
        runtime: &Runtime,
        env: &Arc<HostEnvironment>,
        attempt: &Attempt,
    ) -> Result<Exit, Failure> {
        let report = runtime.block_on(run::preflight(env, attempt)).map_err(failure)?;
        let text = match self.output {
            Format::Text => preflight::text(&report),
            Format::Json => json(&report)?,
        };
        output::print(&text)?;
        Ok(if report.ready { Exit::Done } else { Exit::Failed })
    }

    /// Checks that the label still exists, because this pod may have started after its removal.
    ///
    /// An open attempt has removed the label itself.
    async fn check_still_asked_for(&self, env: &HostEnvironment, node: &str) -> Result<(), Failure> {
        let records = records(env, RUN).map_err(failure)?;
        if records.iter().any(|record| record.ended().is_none()) {
            return Ok(());
        }
        self.check_label(&self.cluster().await?, node).await
    }

    async fn cluster(&self) -> Result<Cluster, Failure> {
        Cluster::connect(self.kubeconfig.as_deref()).await.map_err(unavailable)
    }

    async fn check_label(&self, cluster: &Cluster, node: &str) -> Result<(), Failure> {
        let facts = cluster.node_facts(node).await.map_err(unavailable)?;
        let Some(facts) = facts else {
            let error = anyhow!("the cluster has no node `{node}`");
            return Err(Failure::new(error, "give its name in the cluster, as `kubectl get nodes` shows it"));
        };
        let is = |label: &str, value: &str| facts.labels.get(label).is_some_and(|found| found == value);
        // A preflight needs no label: administrators run it before they set one.
        if !self.preflight_only && !is(SEED_LABEL, "true") && !is(LABEL, "requested") {
            let error = anyhow!("node `{node}` is not labelled for an in-place bootstrap");
            let hint = format!("label it: `kubectl label node {node} {LABEL}=requested`");
            return Err(Failure::new(error, hint).exit(Exit::NotPermitted));
        }
        Ok(())
    }

    /// Returns the Secret of the node, if the node has the label.
    async fn secret_of_cluster(&self, node: &str) -> Result<Secret<Vec<u8>>, Failure> {
        let cluster = self.cluster().await?;
        self.check_label(&cluster, node).await?;
        for name in secret_names(node) {
            let found = match cluster.secret(&self.namespace, &name).await {
                // A pod with access to only one of the two names is denied the other.
                Err(error) if error.is_denied() => None,
                found => found.map_err(unavailable)?,
            };
            if let Some(secret) = found.and_then(|mut data| data.remove(SECRET_KEY)) {
                return Ok(secret);
            }
        }
        let names = secret_names(node).join("` or `");
        let error = anyhow!("there is no Secret `{names}` with key `{SECRET_KEY}` in `{}`", self.namespace);
        Err(Failure::new(error, "see docs/guides/in-place.md for what it holds"))
    }

    fn carry_out(
        &self,
        runtime: &Runtime,
        env: &Arc<HostEnvironment>,
        attempt: &Attempt,
    ) -> Result<Exit, Failure> {
        let cancel = CancellationToken::new();
        let outcome = work::execute(runtime, &cancel, run::run(env, attempt, work::sinks(), &cancel))
            .map_err(failure)?;
        if let Some(exit) = work::pause(runtime, env, &outcome, self.reboot, &BY_ITSELF)? {
            return Ok(exit);
        }
        match outcome {
            Outcome::Done => {
                say("In-place bootstrap complete.");
                Ok(Exit::Done)
            }
            Outcome::Failed { step, reason, retry } if retry != landfall_model::step::Retry::Never => {
                let error = anyhow!("{reason}").context(format!("step `{step}` failed for now"));
                let hint = "fix the problem; the next start retries";
                Err(Failure::new(error, hint).exit(Exit::TryLater))
            }
            Outcome::Failed { step, reason, .. } | Outcome::RolledBack { step, reason } => {
                let error = anyhow!("{reason}").context(format!("step `{step}` failed"));
                let hint = "read `landfall node status`; fix the problem, then provide a new Secret, or start again with \
                            this one by `--again`";
                Err(Failure::new(error, hint))
            }
            Outcome::RollbackFailed { step, reason, stuck } => {
                let stuck = stuck.join("`, `");
                let error = anyhow!("{reason}").context(format!("step `{step}` failed, and `{stuck}` stays"));
                Err(Failure::new(error, "read `landfall node status`"))
            }
            Outcome::Abandoned { reason } => Err(anyhow!("the attempt was abandoned: {reason}").into()),
            other => Err(anyhow!("unexpected end of the attempt: {other:?}").into()),
        }
    }

    fn environment(
        &self,
        access: ClusterAccess,
        secrets: &[Secret<String>],
    ) -> Result<HostEnvironment, Failure> {
        let root: &Path = &self.root;
        work::root_is_there(root)?;
        Ok(HostEnvironment::new(root, None)
            .and_then(|env| env.cluster_access(access).redact(secrets))
            .context("prepare to look around")?)
    }
}

fn unavailable(error: landfall_cluster::Error) -> Failure {
    let hint = "give `--kubeconfig`, or the Secret itself with `--secret-file`";
    Failure::new(error, hint).exit(Exit::Unavailable)
}
