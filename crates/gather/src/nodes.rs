//! Bundles of other nodes, by SSH through the tunnel. The node needs nothing but a shell: this program goes there on
//! standard input, collects, answers on standard output, and is removed again.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use crate::fetch::{Arrival, SILENCE_LIMIT, silent};
use crate::{Error, Fetched};

/// Of what ssh says on standard error, the last part tells why it failed.
const MAX_SAID: u64 = 16 << 10;

/// `/var/tmp` first: `/tmp` is mounted without the right to run programs on hardened machines more often.
const COLLECT: &str = "set -e; f=$(mktemp /var/tmp/landfall.XXXXXX || mktemp); trap 'rm -f \"$f\"' EXIT; cat >\"$f\"; \
                       chmod 700 \"$f\"; if [ \"$(id -u)\" = 0 ]; then \"$f\" agent --once -o -; \
                       else sudo -n \"$f\" agent --once -o -; fi";

/// How to reach nodes by SSH.
#[derive(Clone, Debug)]
pub struct Ssh {
    /// The user to log in as, `core` on OpenShift.
    pub user: Option<String>,
    pub key: Option<PathBuf>,
    /// Known hosts to check the node's key against; without it ssh's own.
    pub known_hosts: Option<PathBuf>,
    /// The command that opens the tunnel, without the target.
    pub proxy_command: Vec<OsString>,
    /// The program to run there.
    pub program: PathBuf,
}

/// What became of one node.
#[derive(Debug)]
pub enum NodeAnswer {
    Bundle(Box<Fetched>),
    /// Nothing came; this is what ssh or the node said.
    Nothing(String),
}

/// Collects one node's bundle into a file.
pub async fn over_ssh(node: &str, ssh: &Ssh, to: &Path) -> Result<NodeAnswer, Error> {
    let failed = |source| Error::Ssh { node: node.to_owned(), source };
    if node.is_empty()
        || node.starts_with('-')
        || node.contains(|c: char| c.is_whitespace() || c.is_control())
    {
        return Ok(NodeAnswer::Nothing("this is no node's name".to_owned()));
    }
    let program = File::open(&ssh.program).map_err(failed)?;
    let mut child = ssh.command(node).stdin(program).spawn().map_err(failed)?;
    let (Some(mut stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Ok(NodeAnswer::Nothing("ssh has no output".to_owned()));
    };
    let said = tokio::spawn(async move {
        let mut said = Vec::new();
        // What was said before the stream broke is still worth telling.
        let _ = stderr.take(MAX_SAID).read_to_end(&mut said).await;
        String::from_utf8_lossy(&said).into_owned()
    });
    let mut arrival = Arrival::open(to)?;
    let mut buffer = vec![0; 64 << 10];
    let mut any = false;
    let cut = loop {
        match tokio::time::timeout(SILENCE_LIMIT, stdout.read(&mut buffer)).await {
            Err(_) => break Some(silent()),
            Ok(Err(error)) => break Some(error),
            Ok(Ok(0)) => break None,
            Ok(Ok(count)) => {
                any = true;
                if let Some(cut) = arrival.take(&buffer[..count])? {
                    break Some(cut);
                }
            }
        }
    };
    // It has ended, or it is not worth waiting for.
    let _ = child.start_kill();
    let _ = child.wait().await;
    let said = said.await.unwrap_or_default();
    let fetched = arrival.finish(cut)?;
    if any {
        return Ok(NodeAnswer::Bundle(Box::new(fetched)));
    }
    // Nobody wants an empty file.
    let _ = std::fs::remove_file(&fetched.path);
    Ok(NodeAnswer::Nothing(reason(&said).to_owned()))
}

/// The last word of ssh. What our own `connect` adds when ssh has left it is no reason, and no news.
fn reason(said: &str) -> &str {
    let ours = |line: &str| line.starts_with("error: carry bytes") || line.starts_with("hint: ");
    let mut lines = said.lines().rev().map(str::trim);
    lines.find(|line| !line.is_empty() && !ours(line)).unwrap_or("ssh said nothing")
}

// === impl Ssh ===

impl Ssh {
    fn command(&self, node: &str) -> Command {
        let mut command = Command::new("ssh");
        command.args(["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20"]);
        let mut proxy = OsString::from("ProxyCommand=");
        for word in &self.proxy_command {
            proxy.push(quoted(word));
            proxy.push(" ");
        }
        proxy.push("%h:%p");
        command.arg("-o").arg(proxy);
        if let Some(key) = &self.key {
            command.arg("-o").arg("IdentitiesOnly=yes").arg("-i").arg(key);
        }
        if let Some(known) = &self.known_hosts {
            let mut option = OsString::from("UserKnownHostsFile=");
            option.push(known);
            command.arg("-o").arg(option);
        }
        if let Some(user) = &self.user {
            command.arg("-l").arg(user);
        }
        command.arg("--").arg(node).arg(COLLECT);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }
}

/// One word for the shell that ssh runs a ProxyCommand with; `%` is ssh's own.
fn quoted(word: &OsString) -> String {
    let text = word.to_string_lossy().replace('%', "%%").replace('\'', "'\\''");
    format!("'{text}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_what_ssh_said() {
        let verdict = "Host key verification failed.";
        for added in ["", "error: carry bytes between here and n1:22: Broken pipe\nhint: run again\n"] {
            assert_eq!(reason(&format!("@@@\n{verdict}\r\n\n{added}")), verdict);
        }
        assert_eq!(reason("hint: run again\n"), "ssh said nothing");
    }

    #[test]
    fn words_survive_the_shell_and_ssh() {
        assert_eq!(quoted(&"plain".into()), "'plain'");
        assert_eq!(quoted(&"it's 100%".into()), "'it'\\''s 100%%'");
    }
}
