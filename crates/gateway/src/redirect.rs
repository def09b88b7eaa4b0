//! Brings connections to the API port here, for as long as that does good.
//!
//! The rule matches only while the port stands in a set whose elements expire: a gateway that is killed falls out of the
//! path by itself, without anybody cleaning up.

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
/// How long the rule holds without being renewed.
const HOLDS: u32 = 15;
const COMMAND_LIMIT: Duration = Duration::from_secs(10);
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// Answers in a row that change our mind.
const RISE: u32 = 1;
const FALL: u32 = 2;

/// What is seen of the two ways to the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ways {
    /// An API server answers without us.
    direct: bool,
    /// It answers through us.
    through: bool,
    /// We answer for ourselves.
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

/// Whether rules can be changed at all. What somebody who was killed has left behind goes by this.
pub(crate) async fn check() -> Result<(), BoxError> {
    Ok(run(&remove()).await?)
}

/// Keeps the redirection of `from` to our own `port` right, for ever.
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

/// Takes the redirection away at the end.
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

/// Whether somebody answers with more than "not available".
async fn answers(gateway: &Gateway, target: SocketAddr, path: &'static str) -> bool {
    let credentials = gateway.credentials.get();
    let Some(pool) = credentials.pools.own(As::Plain) else { return false };
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = Uri::from_static(path);
    let asking = tokio::time::timeout(ANSWER_LIMIT, pool.send(target, request)).await;
    matches!(asking, Ok(Ok((answer, _))) if answer.status() < StatusCode::INTERNAL_SERVER_ERROR)
}

/// A table of our own, so that taking it away takes nobody else's rules. Only what is for this machine is redirected:
/// others' API servers may be reached through it.
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

/// Adding what is there does nothing, so it is taken away and added anew, in one transaction.
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
    /// Nobody is served worse through us; and where nothing else answers, at least `/bootstrap` does.
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
