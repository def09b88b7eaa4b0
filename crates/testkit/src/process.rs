use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::wait::eventually;

/// Time for a regular exit before the component is killed.
const GRACE: Duration = Duration::from_secs(5);
/// Bytes of a failed component's log that are printed.
const LOG_TAIL: usize = 16 * 1024;

/// A component's process: logs to a file, ends with the test, and prints its log if the test fails.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

// === impl Process ===

impl Process {
    /// Starts `program` with its output in `directory/name.log`.
    ///
    /// `setpriv` makes the kernel kill it when the thread that started it ends, so that it cannot outlive a
    /// killed test.
    pub fn start(
        name: &str,
        program: &Path,
        directory: &Path,
        configure: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let output = File::create(&log).with_context(|| format!("create the log of `{name}`"))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        configure(&mut command);
        let child = command
            .stdin(Stdio::null())
            .stderr(output.try_clone().context("share a log file")?)
            .stdout(output)
            .spawn()
            .with_context(|| format!("start `{}`", program.display()))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Waits until `ready` returns a value; fails early if the process ends.
    pub fn wait_until<T>(
        &mut self,
        what: &str,
        within: Duration,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let mut ended = None;
        let value = eventually(what, within, || {
            ended = self.child.try_wait().ok().flatten();
            if ended.is_some() { Some(None) } else { ready().map(Some) }
        });
        match (value, ended) {
            (Ok(Some(value)), _) => Ok(value),
            (_, Some(status)) => {
                bail!("`{}` ended with {status} before {what}; its log:\n{}", self.name, self.tail())
            }
            (Err(error), None) => Err(error.context(format!("`{}` log:\n{}", self.name, self.tail()))),
            (Ok(None), None) => bail!("`{}` ended before {what}", self.name),
        }
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        let id = Pid::from_child(&self.child);
        kill_process(id, signal).with_context(|| format!("send a signal to `{}`", self.name))
    }

    /// Waits for the end and returns the exit code; `None` if a signal ended it.
    pub fn wait(&mut self, within: Duration) -> Result<Option<i32>> {
        let what = format!("the end of `{}`", self.name);
        let child = &mut self.child;
        eventually(&what, within, || child.try_wait().ok().flatten()).map(|status| status.code())
    }

    fn tail(&self) -> String {
        let log = self.log();
        let start = log.len().saturating_sub(LOG_TAIL);
        let start = (start..log.len()).find(|at| log.is_char_boundary(*at)).unwrap_or(log.len());
        log[start..].to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.try_wait().ok().flatten().is_none() {
            // Errors here mean that the process has already ended.
            let _ = self.signal(Signal::TERM);
            if self.wait(GRACE).is_err() {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
        if std::thread::panicking() {
            let mut stderr = std::io::stderr().lock();
            let _ = writeln!(stderr, "---- end of the log of `{}` ----\n{}", self.name, self.tail());
        }
    }
}
