//! Messages exchanged with a browser: JSON terminated by NUL, over two pipes.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// Timeout of one command: the machine may run many tests concurrently.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time for a regular exit of the browser.
const GRACE: Duration = Duration::from_secs(10);
/// A screenshot of a long page is the largest message.
const MAX_MESSAGE: u64 = 256 << 20;
/// Limits for messages read ahead and for events stored for later queries.
const MAX_AHEAD: usize = 1000;
const MAX_EVENTS: usize = 10_000;

/// An event sent by the browser.
#[derive(Clone, Debug)]
pub struct BrowserEvent {
    pub method: String,
    pub parameters: Value,
}

#[derive(Debug)]
pub(super) struct Pipe {
    child: Child,
    input: Option<ChildStdin>,
    messages: Receiver<Value>,
    last: u64,
    pub(super) events: Vec<BrowserEvent>,
}

// === impl Pipe ===

impl Pipe {
    /// Starts the browser. A shell moves the pipes to the two descriptors that it expects.
    pub(super) fn start(program: &str, arguments: &[String], log: &Path) -> Result<Self> {
        let log = File::create(log).context("create the browser's log")?;
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "sh", "-c"])
            .args(["exec \"$@\" 3<&0 4>&1 </dev/null >&2", "sh", program])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("start `{program}`"))?;
        let (sender, messages) = sync_channel(MAX_AHEAD);
        let output = child.stdout.take().context("take the browser's output")?;
        std::thread::spawn(move || read(output, &sender));
        let input = child.stdin.take();
        Ok(Self { child, input, messages, last: 0, events: Vec::new() })
    }

    /// Sends a command and waits for its response; events received meanwhile are stored.
    pub(super) fn call(&mut self, session: Option<&str>, method: &str, parameters: &Value) -> Result<Value> {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        let input = self.input.as_mut().context("the browser was told to end")?;
        input.write_all(&bytes).with_context(|| format!("send `{method}` to the browser"))?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut message = match self.messages.recv_timeout(left) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => bail!("the browser did not answer `{method}`"),
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the browser ended before it answered `{method}`")
                }
            };
            if message["id"] == self.last {
                if let Some(error) = message.get("error") {
                    bail!("the browser refused `{method}`: {error}");
                }
                return Ok(message["result"].take());
            }
            self.keep(message);
        }
    }

    /// Stores the events received meanwhile.
    pub(super) fn listen(&mut self) {
        while let Ok(message) = self.messages.try_recv() {
            self.keep(message);
        }
    }

    fn keep(&mut self, mut message: Value) {
        if let Some(method) = message["method"].as_str().map(ToOwned::to_owned)
            && self.events.len() < MAX_EVENTS
        {
            self.events.push(BrowserEvent { method, parameters: message["params"].take() });
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = self.call(None, "Browser.close", &json!({}));
        drop(self.input.take());
        let child = &mut self.child;
        if crate::eventually("the browser to end", GRACE, || child.try_wait().ok().flatten()).is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn read(output: ChildStdout, sender: &SyncSender<Value>) {
    let mut output = BufReader::new(output);
    loop {
        let mut message = Vec::new();
        match output.by_ref().take(MAX_MESSAGE).read_until(0, &mut message) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        message.pop();
        let Ok(message) = serde_json::from_slice(&message) else { return };
        if sender.send(message).is_err() {
            return;
        }
    }
}
