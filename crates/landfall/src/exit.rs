use std::borrow::Cow;
use std::io::Write as _;
use std::process::ExitCode;

use landfall_model::chain;

use crate::output;

/// Exit codes for scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Done = 0,
    Failed = 1,
    Findings = 2,
    Usage = 64,
    Unavailable = 69,
    TryLater = 75,
    NotPermitted = 77,
    Reboot = 100,
}

/// The reason why a command failed, with a hint for the user.
pub(crate) struct Failure {
    error: anyhow::Error,
    hint: Option<Cow<'static, str>>,
    exit: Exit,
}

/// Prints a message of clap. Help and version go to standard output; usage errors go to standard error.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let text = error.render();
    if error.use_stderr() {
        let colour = output::colour_on_stderr();
        let mut stderr = std::io::stderr().lock();
        // Errors are ignored: standard error may be closed.
        let _ = if colour { write!(stderr, "{}", text.ansi()) } else { write!(stderr, "{text}") };
        return Exit::Usage.into();
    }
    match output::print(&text.to_string()) {
        Ok(()) => Exit::Done.into(),
        Err(error) => Failure::from(error).report(),
    }
}

// === impl Exit ===

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

// === impl Failure ===

impl Failure {
    pub(crate) fn new(error: impl Into<anyhow::Error>, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { error: error.into(), hint: Some(hint.into()), exit: Exit::Failed }
    }

    pub(crate) fn usage(error: impl Into<anyhow::Error>, hint: impl Into<Cow<'static, str>>) -> Self {
        Self::new(error, hint).exit(Exit::Usage)
    }

    /// Sets another exit code.
    #[must_use]
    pub(crate) fn exit(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }

    /// Prints one line with the error, and one with the hint.
    pub(crate) fn report(&self) -> ExitCode {
        output::complain(&chain(self.error.as_ref()).to_string(), self.hint.as_deref());
        self.exit.into()
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self { error, hint: None, exit: Exit::Failed }
    }
}
