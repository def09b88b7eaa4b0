use std::borrow::Cow;
use std::io::Write as _;
use std::process::ExitCode;

use landfall_model::chain;

use crate::output;

/// The exit codes users script against.
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

/// Why a command could not do its work, and what the user can do about it.
pub(crate) struct Failure {
    error: anyhow::Error,
    hint: Option<Cow<'static, str>>,
    exit: Exit,
}

/// Shows what clap has to say. Help and version are answers and go to standard output; a mistake goes to standard error.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let text = error.render();
    if error.use_stderr() {
        let colour = output::colour_on_stderr();
        let mut stderr = std::io::stderr().lock();
        // Nobody is left to be told when standard error is closed.
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

    /// What was asked for cannot be meant.
    pub(crate) fn usage(error: impl Into<anyhow::Error>, hint: impl Into<Cow<'static, str>>) -> Self {
        Self::new(error, hint).exit(Exit::Usage)
    }

    /// The same failure, told to scripts by another exit code.
    #[must_use]
    pub(crate) fn exit(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }

    /// One line that says what went wrong, and one that says what to do.
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
