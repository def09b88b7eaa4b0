use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::{Args, ValueEnum};
use landfall_node::prepare::hook;
use landfall_node::prepare::request;
use landfall_node::prepare::world::HostWorld;

use super::prepare::Flags;
use super::work::runtime;
use crate::exit::{Exit, Failure};

/// Where the hook's own container has its mappings.
const MAPPINGS: &str = "/etc/runtime-mappings.yaml";
/// How often the API server is asked to take the annotation, and how far apart.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_secs(60);

/// Be a reboot operator's hook: lay down what the next boot needs, or see that this boot is right
///
/// Asks only this node and the lists of images. When all is well, the annotation is set to `true`; when not, it stays
/// away, and the operator goes no further.
#[derive(Args)]
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

    /// Then stay, and wake up every so many seconds: a DaemonSet's pod must not end
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    sleep: u64,

    /// The node's root folder
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

/// Until the process is ended from outside.
async fn stay(every: Duration) -> ! {
    loop {
        tokio::time::sleep(every).await;
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum When {
    BeforeReboot,
    AfterReboot,
}

// === impl Hook ===

impl Hook {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let mut request = self.flags.request(&self.root)?;
        if request.mappings_file == Path::new(request::MAPPINGS)
            && self.root.join(MAPPINGS.trim_start_matches('/')).exists()
        {
            request.mappings_file = MAPPINGS.into();
        }
        let world =
            HostWorld::new(&self.root, request.authority.as_deref()).context("prepare to look around")?;
        let runtime = runtime()?;
        let done = runtime.block_on(async {
            match self.when {
                When::BeforeReboot => hook::before_reboot(&world, &request).await,
                When::AfterReboot => hook::after_reboot(&world, &request).await,
            }
        });
        let hint = "the annotation stays away, so that nothing reboots; `landfall node prepare --dry-run` shows the plan";
        done.map_err(|error| Failure::new(error, hint))?;
        if let Some(key) = &self.node_annotation {
            let name = self
                .node_name
                .as_deref()
                .ok_or_else(|| anyhow!("`--node-annotation` needs `--node-name`"))?;
            runtime.block_on(hook::annotate(&world, &request.kubeconfig, name, key, TRIES, PAUSE)).map_err(
                |error| {
                    Failure::new(error, "give this account `get` and `patch` on nodes")
                        .exit(Exit::Unavailable)
                },
            )?;
        }
        tracing::info!("The hook is done.");
        if self.sleep > 0 {
            runtime.block_on(stay(Duration::from_secs(self.sleep)));
        }
        Ok(Exit::Done)
    }
}
