use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::{Args, ValueEnum};
use landfall_node::environment::HostEnvironment;
use landfall_node::prepare::decision::Decision;
use landfall_node::prepare::hook::{self, HookError};
use landfall_node::prepare::operator::Moment;
use landfall_node::prepare::request::{self, Request};
use landfall_node::prepare::status::{self, StatusDocument};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::prepare::{Flags, advice};
use super::work;
use crate::exit::{Exit, Failure};
use crate::runtime;

/// Path of the mappings in the hook's own container.
const MAPPINGS: &str = "/etc/runtime-mappings.yaml";
/// Number of attempts to write the annotation, and their interval.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_secs(60);
/// Interval of polls for a pending update: a machine does not boot sooner by itself.
const LOOK_EVERY: Duration = Duration::from_secs(20);

/// Be a reboot operator's hook: lay down what the next boot needs, or see that this boot is right
///
/// Asks only this node and the lists of images. When all is well, the annotation is set to `true`; when not, it stays
/// away, and the operator goes no further.
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall node hook before-reboot --node-annotation example.com/runtime-ready --node-name n1
  landfall node hook after-reboot --only-when-labelled --node-annotation example.com/runtime-right --node-name n1
  kured --reboot-sentinel-command='landfall node hook reboot-required'

Exit codes: 0 all is well, and for `reboot-required` a reboot may come · 1 not: the annotation stays away · 69 a server did not \
answer · 75 not now: this hook is not requested, no reboot is required, or the node is not ready yet")]
pub(crate) struct Hook {
    /// Which hook
    #[arg(value_enum)]
    when: When,

    #[command(flatten)]
    flags: Flags,

    /// The annotation to set on the node
    #[arg(long, value_name = "KEY")]
    node_annotation: Option<String>,

    /// The name of this node
    #[arg(long, value_name = "NAME", env = "NODE")]
    node_name: Option<String>,

    /// Do nothing unless a label of CLUO or FLUO on the node asks for this hook
    #[arg(long, requires = "node_name")]
    only_when_labelled: bool,

    /// Keep running and repeat after this many seconds, because the pod of a DaemonSet must not exit
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    sleep: u64,

    /// The node's root folder
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

/// Waits until the process is terminated.
async fn stay(every: Duration) -> ! {
    loop {
        tokio::time::sleep(every).await;
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum When {
    /// Lay down what the next boot needs
    BeforeReboot,
    /// See that this boot has what was selected for it
    AfterReboot,
    /// As `before-reboot`, if `/run/reboot-required` is there
    RebootRequired,
    /// Stay, and do as `before-reboot` whenever an update of the operating system is pending
    WatchUpdates,
}

// === impl Hook ===

impl Hook {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        if self.node_annotation.is_some() && self.node_name.is_none() {
            let error = anyhow!("`--node-annotation` needs `--node-name`");
            return Err(Failure::usage(error, "name this node, or set `NODE`"));
        }
        let mut request = self.flags.request(&self.root)?;
        if request.mappings_file == Path::new(request::MAPPINGS)
            && self.root.join(MAPPINGS.trim_start_matches('/')).exists()
        {
            request.mappings_file = MAPPINGS.into();
        }
        let env = HostEnvironment::new(&self.root, request.authority.as_deref())
            .context("prepare to look around")?;
        let runtime = runtime::multi_threaded()?;
        if !self.is_asked_for(&runtime, &env, &request)? {
            tracing::info!("hook not requested");
            return Ok(Exit::TryLater);
        }
        let done = runtime.block_on(async {
            match self.when {
                When::BeforeReboot => hook::before_reboot(&env, &request).await.map(Some),
                When::AfterReboot => hook::after_reboot(&env, &request).await.map(Some),
                When::RebootRequired => hook::reboot_required(&env, &request).await,
                When::WatchUpdates => {
                    watch(&env, &request).await;
                    Ok(None)
                }
            }
        });
        let hint = "the annotation stays away, so that nothing reboots; `landfall node prepare --dry-run` shows the plan";
        let decision = done.map_err(|error| {
            let exit = match error.why() {
                Some(why) => advice(why).1,
                None if matches!(error, HookError::Unready) => Exit::TryLater,
                None => Exit::Failed,
            };
            Failure::new(error, hint).exit(exit)
        })?;
        let Some(decision) = decision else {
            let watched = self.when == When::WatchUpdates;
            return Ok(if watched { Exit::Done } else { Exit::TryLater });
        };
        self.tell_the_cluster(&runtime, &env, &request, decision)?;
        tracing::info!("The hook is done.");
        if self.sleep > 0 {
            runtime.block_on(stay(Duration::from_secs(self.sleep)));
        }
        Ok(Exit::Done)
    }

    /// Returns whether the label is set, if the hook requires it.
    fn is_asked_for(
        &self,
        runtime: &Runtime,
        env: &HostEnvironment,
        request: &Request,
    ) -> Result<bool, Failure> {
        let moment = match self.when {
            When::BeforeReboot => Moment::BeforeReboot,
            When::AfterReboot => Moment::AfterReboot,
            When::RebootRequired | When::WatchUpdates => return Ok(true),
        };
        let Some(name) = self.node_name.as_deref().filter(|_| self.only_when_labelled) else {
            return Ok(true);
        };
        let asked = runtime.block_on(hook::is_asked_for(env, &request.kubeconfig, name, moment));
        asked.map_err(|error| {
            let exit =
                if matches!(error, HookError::NoNode { .. }) { Exit::Failed } else { Exit::Unavailable };
            Failure::new(error, "see the name of the node, and whether this account has `get` on nodes")
                .exit(exit)
        })
    }

    /// Writes the plan for observers of the node, and then the annotation that the operator waits for.
    fn tell_the_cluster(
        &self,
        runtime: &Runtime,
        env: &HostEnvironment,
        request: &Request,
        decision: Decision,
    ) -> Result<(), Failure> {
        let (Some(key), Some(name)) = (&self.node_annotation, self.node_name.as_deref()) else {
            return Ok(());
        };
        let document = StatusDocument::of_decision(decision);
        let published = runtime.block_on(status::publish(env, &request.kubeconfig, name, &document));
        if let Err(error) = published {
            tracing::warn!(error = %landfall_model::chain(&error), "The plan was not written on the node.");
        }
        let told = hook::annotate(env, &request.kubeconfig, name, key, TRIES, PAUSE);
        runtime.block_on(told).map_err(|error| {
            Failure::new(error, "give this account `get` and `patch` on nodes").exit(Exit::Unavailable)
        })
    }
}

/// Runs until a termination signal.
async fn watch(env: &HostEnvironment, request: &Request) {
    let cancel = CancellationToken::new();
    let ended = work::asked_to_end();
    tokio::select! {
        () = hook::keep_staged(env, request, LOOK_EVERY, &cancel) => {}
        () = ended => {}
    }
}
