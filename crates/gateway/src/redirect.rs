//! Redirects connections of the API port to the gateway while the API is reachable through it.
//!
//! The rule matches only while the port is in a set whose elements expire. If the gateway is killed, the redirect
//! therefore ends without any cleanup.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use hyper::{Request, StatusCode, Uri};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::Gateway;
use crate::body::{Body, BoxError};
use crate::phase::Steady;
use crate::upstream::As;

const TABLE: &str = "landfall_gateway";
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Seconds until the rule expires unless renewed.
const HOLDS: u32 = 15;
const COMMAND_LIMIT: Duration = Duration::from_secs(10);
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// Consecutive observations that change the decision.
const RISE: u32 = 1;
const FALL: u32 = 2;

/// Observation of the two routes to the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ways {
    /// An API server answers directly.
    direct: bool,
    /// An API server answers through the gateway.
    through: bool,
    /// The gateway itself answers.
    own: bool,
}

#[derive(Debug, thiserror::Error)]
enum RedirectError {
    #[error("run `nft`")]
    Run(#[source] io::Error),
    #[error("`nft` took too long")]
    Late,
    #[error("`nft` refuses: {0}")]
    Refused(String),
}

/// Checks whether rules can be changed. This also removes the rule of a killed gateway.
pub(crate) async fn check() -> Result<(), BoxError> {
    Ok(run(&remove()).await?)
}

/// Keeps the redirect rule from port `from` to the gateway's `port` up to date, without end.
pub(crate) async fn keep(gateway: Arc<Gateway>, from: u16, port: u16) {
    let mut wanted = Steady::new(RISE, FALL);
    let mut installed = false;
    loop {
        let before = installed;
        if wanted.observe(Box::pin(look(&gateway, port)).await.do_good()) && !gateway.is_leaving() {
            let script = if installed { renew(from) } else { install(from, port) };
            installed = told(&run(&script).await);
        } else if installed {
            installed = !told(&run(&remove()).await);
        }
        if installed != before {
            tracing::info!(from, to = port, installed, "redirection");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Removes the redirect rule on shutdown.
pub(crate) async fn clear() {
    told(&run(&remove()).await);
}

fn told(done: &Result<(), RedirectError>) -> bool {
    if let Err(error) = done {
        tracing::warn!(error = %landfall_model::chain(error), "the redirection was not changed");
    }
    done.is_ok()
}

async fn look(gateway: &Gateway, port: u16) -> Ways {
    let own = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let situation = gateway.outlook.now();
    let (through, alive) = tokio::join!(answers(gateway, own, "/version"), answers(gateway, own, "/livez"));
    Ways { direct: situation.local, through: situation.has_route() && through, own: alive }
}

/// Returns whether the target answers with a status below 500.
async fn answers(gateway: &Gateway, target: SocketAddr, path: &'static str) -> bool {
    let credentials = gateway.credentials.get();
    let Some(pool) = credentials.pools.own(As::Plain) else { return false };
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = Uri::from_static(path);
    let asking = tokio::time::timeout(ANSWER_LIMIT, pool.send(target, request)).await;
    matches!(asking, Ok(Ok((answer, _))) if answer.status() < StatusCode::INTERNAL_SERVER_ERROR)
}

/// Returns the script that installs a separate table, so that removing it affects no other rules. It redirects only
/// connections to this host, because API servers of other clusters may be reached through it.
fn install(from: u16, port: u16) -> String {
    format!(
        "table inet {TABLE} {{}}\n\
         delete table inet {TABLE}\n\
         table inet {TABLE} {{\n\
           set alive {{ type inet_service; flags timeout; }}\n\
           chain prerouting {{\n\
             type nat hook prerouting priority dstnat; policy accept;\n\
             fib daddr type local tcp dport @alive redirect to :{port} comment \"landfall gateway\"\n\
           }}\n\
         }}\n\
         add element inet {TABLE} alive {{ {from} timeout {HOLDS}s }}\n"
    )
}

/// Returns the script that renews the element. Adding an existing element does not extend its timeout, so the script
/// deletes and adds it in one transaction.
fn renew(from: u16) -> String {
    format!(
        "add element inet {TABLE} alive {{ {from} timeout {HOLDS}s }}\n\
         delete element inet {TABLE} alive {{ {from} }}\n\
         add element inet {TABLE} alive {{ {from} timeout {HOLDS}s }}\n"
    )
}

fn remove() -> String {
    format!("table inet {TABLE} {{}}\ndelete table inet {TABLE}\n")
}

async fn run(script: &str) -> Result<(), RedirectError> {
    let mut command = Command::new("nft");
    command
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let running = async {
        let mut child = command.spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(script.as_bytes()).await?;
        }
        child.wait_with_output().await
    };
    let output = tokio::time::timeout(COMMAND_LIMIT, running).await.map_err(|_| RedirectError::Late)?;
    let output = output.map_err(RedirectError::Run)?;
    if output.status.success() {
        return Ok(());
    }
    Err(RedirectError::Refused(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

// === impl Ways ===

impl Ways {
    /// Returns whether the redirect rule helps: the API is reachable through the gateway, or at least `/bootstrap`
    /// while there is no direct route.
    fn do_good(self) -> bool {
        self.through || !self.direct && self.own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_in_the_way_gets_out_of_it() {
        let ways = |direct, through, own| Ways { direct, through, own };
        assert!(ways(true, true, true).do_good());
        assert!(ways(false, false, true).do_good());
        assert!(!ways(true, false, true).do_good(), "the API server answers, but not through us");
        assert!(!ways(false, false, false).do_good());
        assert!(!ways(true, false, false).do_good());
    }
}
