use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use landfall_cluster::Cluster;
use landfall_controller::Listener;
use landfall_controller::capi;
use landfall_controller::manifests::{self, Settings};
use landfall_controller::metrics::{self, Metrics, Numbers};
use landfall_controller::policy::{Approvals, AtOnce, Drain, Policy, Secrets, Unasked};
use landfall_controller::run::{self, Controller as Role};
use landfall_controller::window::Window;
use tokio_util::sync::CancellationToken;

use super::capi::Capi;
use super::tunnel::duration;
use crate::exit::{Exit, Failure};
use crate::runtime::{self, Signals};

/// Length limit of object names in Kubernetes.
const MAX_NAME: usize = 253;
/// The account that requests a node's first certificate on OpenShift.
const OPENSHIFT_BOOTSTRAPPER: &str =
    "system:serviceaccount:openshift-machine-config-operator:node-bootstrapper";

/// Lead a fleet through in-place bootstraps, a few nodes at a time
///
/// Nodes ask with the label `landfall.dev/in-place=requested` or `ibm-cloud.kubernetes.io/ipb-schedule=true`; they are
/// drained, watched and put back. With `--capi` it works on a management cluster of Cluster API instead: it shows on each
/// Machine what its node says of its bootstrap. Of several controllers the one with the Lease leads.
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall render controller --image registry.corp/landfall:1 -o controller && kubectl apply -f controller/manifests
  landfall controller --image registry.corp/landfall:1 --max-unavailable 3 --window 'Mon-Fri 22:00-06:00 +01:00'
  kubectl get nodebootstraps
  landfall controller --capi --hub https://hub.corp:8700 --hub-ca hub-ca.crt --hub-token-file token --hold-evidence 15m
  landfall controller --capi --teardown")]
pub(crate) struct Controller {
    /// The namespace of Secrets, pods and Lease; best one of its own [default: `landfall`, with `--capi` `landfall-capi`]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,

    /// What the pods on nodes run
    #[arg(long, value_name = "IMAGE", default_value = "landfall:latest")]
    image: String,

    /// Manage only nodes with these labels (selector as in `kubectl -l`)
    #[arg(long, value_name = "LABELS", default_value = "", hide_default_value = true)]
    selector: String,

    /// Make the Secrets of nodes from this one, whose texts may hold `{node}`
    #[arg(long, value_name = "NAME")]
    secret_template: Option<String>,

    /// How many nodes may be away at once: a number, or a share such as `10%`
    #[arg(long, value_name = "NUMBER", default_value = "1")]
    max_unavailable: AtOnce,

    /// Begin nodes only in this window, such as `Mon-Fri 22:00-06:00 +01:00` (offset from UTC; without one UTC); may be repeated
    #[arg(long, value_name = "WINDOW")]
    window: Vec<Window>,

    /// Between the end of one node and the beginning of the next
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = duration)]
    pause: Duration,

    /// Maximum number of failed nodes before no other is started
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    max_failed: usize,

    /// How long emptying one node may take
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    drain_timeout: Duration,

    /// How long one pod may take to end, instead of its own grace period
    #[arg(long, value_name = "TIME", value_parser = duration)]
    grace_period: Option<Duration>,

    /// Also evict pods that no controller would make again
    #[arg(long)]
    evict_unmanaged: bool,

    /// Also evict pods with `emptyDir` volumes, whose data goes with them
    #[arg(long)]
    delete_emptydir_data: bool,

    /// Timeout for the first message of the pod on a node
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = duration)]
    claim_timeout: Duration,

    /// How long a node may take to come back
    #[arg(long, value_name = "TIME", default_value = "3h", value_parser = duration)]
    return_timeout: Duration,

    /// Approve certificates of re-bootstrapping nodes if every part of the request matches the node
    #[arg(long)]
    approve_certificates: bool,

    /// User that may request a node's first certificate, besides members of `system:bootstrappers` (repeatable)
    #[arg(long, value_name = "USER", default_value = OPENSHIFT_BOOTSTRAPPER, requires = "approve_certificates")]
    bootstrap_user: Vec<String>,

    /// A further argument of `landfall node in-place` on the nodes; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    runner_argument: Vec<String>,

    /// Access to the cluster [default: the pod's account, `KUBECONFIG`]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Identity of this replica in leader election [default: host name]
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    identity: Option<String>,

    /// Address and port of health and metrics
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9464")]
    listen: SocketAddr,

    #[command(flatten)]
    capi: Capi,
}

// === impl Controller ===

impl Controller {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        self.check()?;
        let identity = match &self.identity {
            Some(identity) => identity.clone(),
            None => identity()?,
        };
        let (settings, policy) = (self.settings(), self.policy());
        let runtime = runtime::multi_threaded()?;
        runtime.block_on(async {
            let cluster = Cluster::connect(self.kubeconfig.as_deref()).await.map_err(|error| {
                Failure::new(error, "give `--kubeconfig`, or run it in a pod").exit(Exit::Unavailable)
            })?;
            if self.capi.wants_teardown() {
                return Capi::tear_down(&cluster).await;
            }
            let port = Listener::bind(self.listen).with_context(|| format!("listen on {}", self.listen));
            let port = port.map_err(|error| Failure::new(error, "choose another address with `--listen`"))?;
            let address = port.address();
            // Errors are ignored: standard error may be closed.
            let _ = writeln!(io::stderr(), "The controller `{identity}` answers on {address}");
            let mut signals = Signals::new()?;
            let cancel = CancellationToken::new();
            let ended = cancel.clone();
            let signals = async move {
                signals.next().await;
                ended.cancel();
                std::future::pending::<()>().await;
            };
            if self.capi.is_wanted() {
                let metrics = Arc::new(capi::metrics::Metrics::default());
                let role = self.capi.controller(cluster, self.namespace(), identity, Arc::clone(&metrics))?;
                let work = Box::pin(capi::run::run(&role, &cancel));
                return until_the_end(work, signals, port, metrics).await;
            }
            let metrics = Arc::new(Metrics::default());
            let role = Role { cluster, settings, policy, identity, metrics: Arc::clone(&metrics) };
            until_the_end(Box::pin(run::run(&role, &cancel)), signals, port, metrics).await
        })
    }

    fn namespace(&self) -> &str {
        let usual = if self.capi.is_wanted() { capi::manifests::NAMESPACE } else { manifests::NAMESPACE };
        self.namespace.as_deref().unwrap_or(usual)
    }

    /// Validates combinations of flags.
    fn check(&self) -> Result<(), Failure> {
        let wrong = |error: String, hint: &'static str| Err(Failure::usage(anyhow!(error), hint));
        for (flag, time) in [
            ("--drain-timeout", self.drain_timeout),
            ("--claim-timeout", self.claim_timeout),
            ("--return-timeout", self.return_timeout),
        ] {
            if time.is_zero() {
                return wrong(format!("`{flag}` must be longer than nothing"), "such as `30m` or `3h`");
            }
        }
        let is_name = |name: &str| {
            let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
            !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(good)
        };
        if !is_name(self.namespace()) {
            return wrong(
                format!("invalid namespace `{}`: must be a DNS-1123 label", self.namespace()),
                "lower-case letters, digits and `-`",
            );
        }
        if let Some(name) = self.secret_template.as_ref().filter(|name| !is_name(name)) {
            return wrong(
                format!("invalid Secret name `{name}`: must be a DNS-1123 subdomain"),
                "lower-case letters, digits, `-` and `.`",
            );
        }
        if self.image.trim().is_empty() {
            return wrong("`--image` is empty".to_owned(), "the image that the pods on nodes run");
        }
        Ok(())
    }

    fn settings(&self) -> Settings {
        Settings {
            namespace: self.namespace().to_owned(),
            selector: self.selector.clone(),
            image: self.image.clone(),
            template: self.secret_template.clone(),
            runner_arguments: self.runner_argument.clone(),
        }
    }

    fn policy(&self) -> Policy {
        let unasked = |evict| if evict { Unasked::Evict } else { Unasked::Leave };
        Policy {
            max_unavailable: self.max_unavailable,
            pause: self.pause,
            windows: self.window.clone(),
            max_failed: self.max_failed,
            drain: Drain {
                within: self.drain_timeout,
                grace: self.grace_period,
                unmanaged: unasked(self.evict_unmanaged),
                local_data: unasked(self.delete_emptydir_data),
            },
            claim_within: self.claim_timeout,
            return_within: self.return_timeout,
            secrets: if self.secret_template.is_some() { Secrets::Template } else { Secrets::Given },
            approvals: if self.approve_certificates {
                Approvals::Proven { bootstrap_users: self.bootstrap_user.clone() }
            } else {
                Approvals::Never
            },
        }
    }
}

/// Runs the controller and its HTTP server until a termination signal.
async fn until_the_end(
    work: impl Future<Output = ()>,
    signals: impl Future<Output = ()>,
    port: Listener,
    numbers: Arc<dyn Numbers>,
) -> Result<Exit, Failure> {
    tokio::select! {
        () = work => Ok(Exit::Done),
        () = signals => Ok(Exit::Done),
        () = metrics::serve(port, numbers) => Ok(Exit::Failed),
    }
}

/// Returns the host name with a unique suffix, so that two replicas on one machine differ.
fn identity() -> Result<String, Failure> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).context("draw an identity")?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").context("read the host's name")?;
    Ok(format!("{}-{}", host.trim(), hex::encode(bytes)))
}
