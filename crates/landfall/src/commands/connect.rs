use std::time::Duration;

use clap::Args;
use landfall_gather::{Patience, connect, find};

use super::reach::{self, Reach};
use crate::exit::{Exit, Failure};
use crate::runtime;

/// Carry standard input and output to a node's port through the API endpoint
///
/// Made for ssh: the key stays here, and the node's host key is checked here.
#[derive(Args)]
#[command(after_help = "\
Examples:
  ssh -o ProxyCommand='landfall connect https://api.example.com:6443 %h:%p' core@10.0.0.5

Exit codes: 0 the tunnel ended · 1 failed · 69 the bootstrap machine was not found · 77 not permitted")]
pub(crate) struct Connect {
    /// The API endpoint
    #[arg(value_name = "URL")]
    url: String,

    /// The node's address and port
    #[arg(value_name = "HOST:PORT")]
    target: String,

    /// How long to look for the bootstrap machine, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    wait: u64,

    #[command(flatten)]
    reach: Reach,
}

// === impl Connect ===

impl Connect {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let (host, port) = self.target.rsplit_once(':').unwrap_or_default();
        if host.is_empty() || port.parse::<u16>().is_err() {
            let error = anyhow::anyhow!("invalid target `{}`: must be HOST:PORT", self.target);
            return Err(
                Failure::new(error, "an IPv6 address needs brackets: `[fd00::5]:22`").exit(Exit::Usage)
            );
        }
        let (endpoint, access) = self.reach.resolve(Some(&self.url))?;
        let runtime = runtime::single_threaded()?;
        let patience = Patience { within: Duration::from_secs(self.wait), tell: reach::tell_no_answer };
        let target = bracketed(host, port);
        let result = runtime.block_on(async {
            let found = find(&endpoint, &access, patience).await?;
            connect(found, &endpoint, &target, tokio::io::stdin(), tokio::io::stdout()).await
        });
        // Reading a terminal cannot be canceled; the process exits anyway.
        runtime.shutdown_background();
        result.map_err(reach::explain)?;
        Ok(Exit::Done)
    }
}

/// ssh passes `%h` without brackets.
fn bracketed(host: &str, port: &str) -> String {
    let host = host.trim_matches(['[', ']']);
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
