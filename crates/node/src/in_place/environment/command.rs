//! Runs a program of the node. Its output is redacted before it is written to the disk.

use std::collections::VecDeque;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Stdio;

use landfall_redact::{Options, Redactor};
use tokio::io::AsyncReadExt as _;

use super::{Command, CommandResult};

/// Size limit of a log: a runaway playbook must not fill the disk.
const MAX_LOG: usize = 64 * 1024 * 1024;
/// Number of lines shown after a failure.
const TAIL_LINES: usize = 12;
const TAIL_LINE: usize = 240;

pub(super) async fn run(command: &Command, log: &Path, redactor: &Redactor) -> Result<CommandResult, String> {
    let failed = |what: &str, error: std::io::Error| format!("cannot {what}: {error}");
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(log)
        .map_err(|error| failed(&format!("open `{}`", log.display()), error))?;
    // One pipe for both streams keeps the lines in order.
    let mut child = tokio::process::Command::new("/bin/sh")
        .args(["-c", "exec \"$@\" 2>&1", "sh"])
        .arg(&command.program)
        .args(&command.arguments)
        .current_dir(&command.folder)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/root")
        .env("LANG", "C.UTF-8")
        .envs(command.environment.iter().map(|(name, value)| (*name, value.as_str())))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(&format!("run `{}`", command.program.display()), error))?;
    let mut output = child.stdout.take().ok_or("a program without an output")?;
    let mut stream = redactor.stream(Options::default());
    let (mut clean, mut written, mut tail) = (Vec::new(), 0, Tail::default());
    let work = async {
        let mut block = vec![0; 16 * 1024];
        loop {
            let count = output.read(&mut block).await.map_err(|error| failed("read what it says", error))?;
            if count == 0 {
                break;
            }
            stream.push(&block[..count], &mut clean);
            written += keep(&mut file, &clean, written);
            tail.take(&clean);
            clean.clear();
        }
        let status = child.wait().await.map_err(|error| failed("wait for its end", error))?;
        Ok(status.code())
    };
    let limit = command.limit;
    let ended = tokio::time::timeout(limit, work).await;
    stream.finish(&mut clean);
    keep(&mut file, &clean, written);
    tail.take(&clean);
    // An incomplete log does not make the program fail.
    let _ = file.sync_all();
    let tail = tail.text();
    match ended {
        Ok(code) => code.map(|code| CommandResult { code, tail }),
        // The last output contains the reason: machine-config-daemon logs it at each retry and never exits.
        Err(_) => Err(format!(
            "`{}` did not complete within {limit:?}; see `{}`: {tail}",
            command.program.display(),
            command.log.display()
        )),
    }
}

fn keep(file: &mut std::fs::File, bytes: &[u8], written: usize) -> usize {
    let room = MAX_LOG.saturating_sub(written).min(bytes.len());
    // A full disk must not stop the work; the tail still contains the last lines.
    let _ = file.write_all(&bytes[..room]);
    room
}

#[derive(Default)]
struct Tail {
    lines: VecDeque<String>,
    open: Vec<u8>,
}

// === impl Tail ===

impl Tail {
    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte == b'\n' {
                self.close();
            } else if self.open.len() < TAIL_LINE {
                self.open.push(*byte);
            }
        }
    }

    fn close(&mut self) {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.open)).trim_end().to_owned();
        if !line.is_empty() {
            self.lines.push_back(line);
        }
        if self.lines.len() > TAIL_LINES {
            self.lines.pop_front();
        }
    }

    fn text(mut self) -> String {
        self.close();
        Vec::from(self.lines).join("\n")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// machine-config-daemon retries without limit, so its output is the reason rather than the timeout.
    #[tokio::test]
    async fn a_program_that_never_ends_is_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let script = "echo 'no space left on /var'; echo 'Sleeping 1 minute for retry'; exec sleep infinity";
        let command = Command {
            program: "/bin/sh".into(),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            folder: "/".into(),
            environment: Vec::new(),
            log: log.clone(),
            limit: Duration::from_secs(10),
        };
        let redactor = Redactor::builder().build().unwrap();
        let error = run(&command, &log, &redactor).await.unwrap_err();
        assert!(error.contains("did not complete within 10s"), "{error}");
        assert!(error.contains("no space left on /var\nSleeping 1 minute for retry"), "{error}");
    }
}
