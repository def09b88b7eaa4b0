//! The processes of the demo and their directory.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use tempfile::TempDir;

use crate::output::complain;

/// Timeout for one event: a role to listen, a report to arrive. Loaded machines are slow.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Poll interval.
pub(super) const LOOK: Duration = Duration::from_millis(40);
/// Timeout for all roles to exit after a termination signal.
const FAREWELL: Duration = Duration::from_secs(5);
/// The path of a socket is limited to 108 bytes; names in the directory are shorter than the rest.
const LONGEST_FOLDER: usize = 80;
/// Number of log lines that are quoted when a role fails.
const QUOTED: usize = 12;
/// Environment variables that roles inherit: proxies and kubeconfigs of the user must not affect the demo.
const ENVIRONMENT: [&str; 4] = ["PATH", "TMPDIR", "LANDFALL_LOG", "NO_COLOR"];

/// All processes of the demo. Dropping it ends them and removes the directory.
pub(super) struct Cast {
    program: PathBuf,
    players: Vec<Player>,
    folder: TempDir,
}

struct Player {
    name: String,
    child: Child,
}

/// A finished command.
pub(super) struct Performed {
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
}

// === impl Cast ===

impl Cast {
    pub(super) fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("landfall-demo-").tempdir().context("make a sandbox")?;
        if folder.path().as_os_str().len() > LONGEST_FOLDER {
            bail!("sockets cannot lie in `{}`: the path is too long", folder.path().display());
        }
        let program = std::env::current_exe().context("find this program")?;
        Ok(Self { program, players: Vec::new(), folder })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn write(&self, name: &str, content: &str) -> Result<()> {
        let path = self.path(name);
        let parent = path.parent().unwrap_or(self.folder.path());
        let written = fs::create_dir_all(parent).and_then(|()| fs::write(&path, content));
        written.with_context(|| format!("write `{}`", path.display()))
    }

    /// Starts a role in the sandbox, with no other arguments.
    pub(super) fn start(&mut self, name: &str, arguments: &[String]) -> Result<()> {
        let file = |end: &str| File::create(self.path(&format!("{name}.{end}")));
        let mut command = Command::new(&self.program);
        command.args(["demo", "--parent", &std::process::id().to_string(), "--"]).args(arguments);
        command.current_dir(self.folder.path()).env_clear();
        for variable in ENVIRONMENT {
            if let Some(value) = std::env::var_os(variable) {
                command.env(variable, value);
            }
        }
        command.stdin(Stdio::null());
        command.stdout(file("out").context("make a log")?).stderr(file("log").context("make a log")?);
        // Ctrl-C goes to the demo only, which ends its roles in order.
        command.process_group(0);
        let child = command.spawn().with_context(|| format!("start `{name}`"))?;
        self.players.push(Player { name: name.to_owned(), child });
        Ok(())
    }

    /// Waits for a line of the role's log that contains these words, and returns the rest of the line.
    pub(super) async fn says(&mut self, name: &str, words: &str) -> Result<String> {
        let limit = Instant::now() + PATIENCE;
        loop {
            let log = self.log(name);
            let found = log.lines().find_map(|line| Some(line.split_once(words)?.1.trim().to_owned()));
            // A line without a newline may be incomplete.
            if let Some(rest) = found.filter(|_| log.ends_with('\n')) {
                return Ok(rest);
            }
            self.check(name)?;
            if Instant::now() > limit {
                self.quote(name);
                bail!("`{name}` did not say `{words}` in time");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Fails if a role has exited, because waiting for it would be useless.
    pub(super) fn check(&mut self, name: &str) -> Result<()> {
        if self.has_ended(name) {
            self.quote(name);
            bail!("`{name}` ended before its time");
        }
        Ok(())
    }

    pub(super) fn has_ended(&mut self, name: &str) -> bool {
        let player = self.players.iter_mut().find(|player| player.name == name);
        player.is_none_or(|player| !matches!(player.child.try_wait(), Ok(None)))
    }

    /// Ends roles; returns whether one of them had already exited.
    pub(super) fn dismiss(&mut self, names: &[&str]) -> bool {
        let ended = names.iter().any(|name| self.has_ended(name));
        for mut player in self.players.extract_if(.., |player| names.contains(&player.name.as_str())) {
            player.end();
        }
        ended
    }

    /// Runs a command until it exits.
    pub(super) async fn perform(&mut self, name: &str, arguments: &[String]) -> Result<Performed> {
        self.start(name, arguments)?;
        let limit = Instant::now() + PATIENCE;
        loop {
            let Some(player) = self.players.last_mut() else { bail!("`{name}` is gone") };
            if let Some(status) = player.child.try_wait().with_context(|| format!("wait for `{name}`"))? {
                self.players.pop();
                let stdout = fs::read_to_string(self.path(&format!("{name}.out"))).unwrap_or_default();
                return Ok(Performed { code: status.code(), stdout });
            }
            if Instant::now() > limit {
                self.quote(name);
                bail!("`{name}` did not end in time");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends all processes, waits for them, and removes the directory.
    pub(super) async fn leave(mut self) -> Result<()> {
        let groups: Vec<Pid> = self.players.iter().map(|player| Pid::from_child(&player.child)).collect();
        for role in &groups {
            // Processes that have exited need no signal.
            let _ = kill_process(*role, Signal::TERM);
        }
        let limit = Instant::now() + FAREWELL;
        let here = |players: &mut Vec<Player>| {
            players.retain_mut(|player| matches!(player.child.try_wait(), Ok(None)));
            !players.is_empty()
        };
        while here(&mut self.players) && Instant::now() < limit {
            tokio::time::sleep(LOOK).await;
        }
        self.end();
        // Commands that a role had started may outlive it.
        for group in &groups {
            let _ = kill_process_group(*group, Signal::KILL);
        }
        let limit = Instant::now() + FAREWELL;
        while groups.iter().any(|group| test_kill_process_group(*group).is_ok()) && Instant::now() < limit {
            tokio::time::sleep(LOOK).await;
        }
        let path = self.folder.path();
        fs::remove_dir_all(path).with_context(|| format!("remove `{}`", path.display()))
    }

    pub(super) fn quote(&self, name: &str) {
        let log = self.log(name);
        let lines: Vec<&str> = log.lines().collect();
        let mut text = format!("last log lines of `{name}`:");
        for line in &lines[lines.len().saturating_sub(QUOTED)..] {
            // Writing to a string cannot fail.
            let _ = write!(text, " {line}");
        }
        complain(&text, None);
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default()
    }

    fn end(&mut self) {
        for mut player in self.players.drain(..) {
            player.end();
        }
    }
}

impl Drop for Cast {
    fn drop(&mut self) {
        self.end();
    }
}

// === impl Player ===

impl Player {
    fn end(&mut self) {
        // Errors mean that the process has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
