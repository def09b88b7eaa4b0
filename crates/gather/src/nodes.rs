//! Bundles of other nodes, by SSH through the tunnel. The node needs only a shell: the binary is sent on standard
//! input, collects, writes the bundle to standard output, and is removed.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use crate::fetch::{Arrival, SILENCE_LIMIT, silent};
use crate::{Error, Fetched};

/// Maximum length of ssh's standard error; the last part contains the reason of a failure.
const MAX_SAID: u64 = 16 << 10;

/// `/var/tmp` first: hardened hosts more often mount `/tmp` as noexec.
const COLLECT: &str = "set -e; f=$(mktemp /var/tmp/landfall.XXXXXX || mktemp); trap 'rm -f \"$f\"' EXIT; cat >\"$f\"; \
                       chmod 700 \"$f\"; if [ \"$(id -u)\" = 0 ]; then \"$f\" agent --once -o -; \
                       else sudo -n \"$f\" agent --once -o -; fi";

/// SSH access to nodes.
#[derive(Clone, Debug)]
pub struct Ssh {
    /// The login user, `core` on OpenShift.
    pub user: Option<String>,
    pub key: Option<PathBuf>,
    /// Known hosts to verify the node's key. Default: those of ssh.
    pub known_hosts: Option<PathBuf>,
    /// The command that opens the tunnel, without the target.
    pub proxy_command: Vec<OsString>,
    /// The binary to run on the node.
    pub program: PathBuf,
}

/// Result of one node.
#[derive(Debug)]
pub enum NodeAnswer {
    Bundle(Box<Fetched>),
    /// No data was received; this is the error of ssh or the node.
    Nothing(String),
}

/// Downloads one node's bundle to a file.
pub async fn over_ssh(node: &str, ssh: &Ssh, to: &Path) -> Result<NodeAnswer, Error> {
    let failed = |source| Error::Ssh { node: node.to_owned(), source };
    if node.is_empty()
        || node.starts_with('-')
        || node.contains(|c: char| c.is_whitespace() || c.is_control())
    {
        return Ok(NodeAnswer::Nothing("invalid node name".to_owned()));
    }
    let program = File::open(&ssh.program).map_err(failed)?;
    let mut child = ssh.command(node).stdin(program).spawn().map_err(failed)?;
    let (Some(mut stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Ok(NodeAnswer::Nothing("ssh has no output".to_owned()));
    };
    let said = tokio::spawn(async move {
        let mut said = Vec::new();
        // The error output before a broken stream is still useful.
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
    // The process has ended, or there is no reason to wait for it.
    let _ = child.start_kill();
    let _ = child.wait().await;
    let said = said.await.unwrap_or_default();
    let fetched = arrival.finish(cut)?;
    if any {
        return Ok(NodeAnswer::Bundle(Box::new(fetched)));
    }
    // Do not leave an empty file.
    let _ = std::fs::remove_file(&fetched.path);
    Ok(NodeAnswer::Nothing(reason(&said).to_owned()))
}

/// Returns the last error of ssh, without the lines that `landfall connect` adds when ssh closes the stream.
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

/// Quotes a word for the shell that ssh runs a ProxyCommand with; `%` is special to ssh.
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
