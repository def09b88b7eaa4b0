use std::path::PathBuf;

use clap::Args;
use landfall_gateway::collector;
use tokio::io::AsyncReadExt as _;

use crate::exit::{Exit, Failure};
use crate::runtime::{self, Signals};

/// Collect this machine's evidence for a gateway that asks on a socket
///
/// The gateway starts one by itself. Run it where the gateway cannot: on the host of its container.
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall collector --socket /run/landfall/collector.sock
  landfall gateway --collector /run/landfall/collector.sock")]
pub(crate) struct Collector {
    /// The Unix socket to listen on; root and this command's user may ask
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,

    /// The machine's root folder: `/`, a mounted disk, a container's `/host`
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,

    /// End when standard input ends
    #[arg(long, hide = true)]
    with_parent: bool,
}

// === impl Collector ===

impl Collector {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let runtime = runtime::multi_threaded()?;
        runtime.block_on(async {
            let stop = stop(self.with_parent)?;
            let served = collector::serve(&self.socket, &self.root, stop).await;
            served.map_err(|error| {
                Failure::new(
                    error,
                    "name a socket in a folder that only root can write to, such as `/run/landfall`",
                )
            })
        })?;
        // A collection in progress is not awaited, because no client is left to read it.
        runtime.shutdown_background();
        Ok(Exit::Done)
    }
}

fn stop(with_parent: bool) -> anyhow::Result<impl Future<Output = ()>> {
    let mut signals = Signals::new()?;
    Ok(async move {
        let parent = async {
            if with_parent {
                // The parent never sends data; only the end of the stream matters.
                let _ = tokio::io::stdin().read(&mut [0]).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = signals.next() => {}
            () = parent => {}
        }
    })
}
