//! Runs the binary in its own directory.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use landfall_model::envelope::Envelope;
use tempfile::TempDir;

/// A directory with files, in which the binary runs.
pub(crate) struct Bench {
    folder: TempDir,
}

/// Result of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

// === impl Bench ===

impl Bench {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Returns the binary, with an environment that no developer's settings affect.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_landfall"));
        command.current_dir(self.path()).args(arguments).env_clear();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        self.command(arguments).output().unwrap().into()
    }

    pub(crate) fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Run {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap().into()
    }
}

// === impl Run ===

impl Run {
    /// Checks that the run printed exactly one error with a hint and no data, and did not panic.
    #[track_caller]
    pub(crate) fn assert_refused(&self, code: i32, error: &str) {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        let lines: Vec<&str> = self.stderr.lines().collect();
        assert!(lines.len() <= 2, "one line of error and one of advice: {self:?}");
        assert!(lines[0].starts_with("error: ") && lines[0].contains(error), "{self:?}");
        assert!(lines.get(1).is_none_or(|line| line.starts_with("hint: ")), "{self:?}");
    }

    /// Checks that the run printed its progress, and then one error with a hint.
    #[track_caller]
    pub(crate) fn assert_refused_after_words(&self, code: i32, error: &str) {
        assert_eq!((self.code, self.stdout.as_str()), (code, ""), "{self:?}");
        let errors: Vec<&str> = self.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert!(errors.len() == 1 && errors[0].contains(error), "{self:?}");
    }

    #[track_caller]
    pub(crate) fn report(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// Returns the report message in an envelope as JSON.
pub(crate) fn message(envelope: impl AsRef<[u8]>) -> Option<serde_json::Value> {
    serde_json::from_slice(&Envelope::parse(envelope.as_ref()).ok()?.payload).ok()
}
