//! Client for the updater of Container Linux and Flatcar: requests an update and waits for its outcome.
//!
//! ```text
//! idle ─▶ checking ─┬─▶ idle                                     there is none
//!                   ├─▶ available ─▶ downloading ─▶ … ─▶ need reboot   one is waiting to be booted
//!                   └─▶ … ─▶ reporting error ─▶ idle             it failed
//! ```
//!
//! [`Attempt`] evaluates the observations; it has no clock and no bus. [`Engine`] makes the observations.

mod bus;

use std::fmt;
use std::time::Duration;

pub use bus::Engine;

use super::version::OsVersion;

/// systemd restarts update_engine 30 s after its exit; the limit allows more than twice that.
const GONE_LIMIT: Duration = Duration::from_secs(90);
/// Time limit from the request to the first sign that update_engine acts on it.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);
/// Progress is reported at least every 10 s while downloading, but not during the final write to a slow disk.
const SILENCE_LIMIT: Duration = Duration::from_mins(15);
/// Total time limit: enough for a full image over a slow link.
const TOTAL_LIMIT: Duration = Duration::from_mins(50);
/// A restart loses an update in progress; the request is repeated at most this often.
const MAX_RESTARTS: u32 = 3;

/// The current operation of update_engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Idle,
    Checking,
    Available,
    Downloading,
    Verifying,
    Finalizing,
    NeedReboot,
    ReportingError,
    /// An operation that this client does not know.
    Other,
}

/// The status that update_engine reports.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    pub last_checked: i64,
    /// From 0 to 1.
    pub progress: f64,
    pub operation: Operation,
    /// All zeros when update_engine does not know the version, even while an update is pending.
    pub new_version: String,
    pub new_size: i64,
}

/// The pending update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pending {
    Nothing,
    Version(OsVersion),
    /// An update is pending, but update_engine no longer knows its version.
    Unknown,
}

#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    #[error("cannot reach the system bus at `{address}`")]
    Bus { address: String, source: std::io::Error },
    #[error("cannot ask update_engine")]
    Call(#[source] landfall_net::dbus::DbusError),
    #[error("update_engine is not there")]
    Absent,
    #[error("update_engine said something that cannot be understood: {said}")]
    Answer { said: String },
    #[error(
        "the update of the operating system failed: update_engine reported an error while it was {while_doing}"
    )]
    Failed { while_doing: Operation },
    #[error("update_engine did not start the requested update within {} s", BEGIN_LIMIT.as_secs())]
    NotBegun,
    #[error("update_engine has been gone for {} s", GONE_LIMIT.as_secs())]
    Gone,
    #[error("update_engine restarted {MAX_RESTARTS} times during the update")]
    Restarts,
    #[error("update_engine has said nothing for {} s; it was {while_doing}", SILENCE_LIMIT.as_secs())]
    Silent { while_doing: Operation },
    #[error("the update of the operating system took longer than {} s", TOTAL_LIMIT.as_secs())]
    Late,
    #[error("the wait for the update was stopped")]
    Stopped,
}

/// An observation of update_engine.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    Status(Status),
    /// It left the bus.
    Gone,
    /// No change.
    Nothing,
}

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Continue to poll.
    Watch,
    /// Request the update, again if it was requested before.
    Ask,
    /// Return this result.
    End(Pending),
}

/// One wait for an update.
#[derive(Debug)]
pub struct Attempt {
    /// Time of the last check before our request.
    before: Option<i64>,
    asked: Option<Duration>,
    /// Activity was observed since the request.
    begun: bool,
    failed_while: Option<Operation>,
    doing: Operation,
    last: Option<Status>,
    last_change: Duration,
    gone_since: Option<Duration>,
    restarts: u32,
}

// === impl Attempt ===

impl Attempt {
    pub fn new() -> Self {
        Self {
            before: None,
            asked: None,
            begun: false,
            failed_while: None,
            doing: Operation::Idle,
            last: None,
            last_change: Duration::ZERO,
            gone_since: None,
            restarts: 0,
        }
    }

    /// Processes an observation made at this time since the start, and returns the next action.
    pub fn see(&mut self, seen: &Seen, at: Duration) -> Result<Next, UpdateError> {
        if at > TOTAL_LIMIT {
            return Err(UpdateError::Late);
        }
        match seen {
            Seen::Gone => {
                if self.gone_since.is_none() {
                    self.gone_since = Some(at);
                    self.restarts += u32::from(self.asked.is_some());
                    if self.restarts > MAX_RESTARTS {
                        return Err(UpdateError::Restarts);
                    }
                }
                self.still_gone(at)
            }
            Seen::Nothing if self.gone_since.is_some() => self.still_gone(at),
            Seen::Nothing => {
                if at.saturating_sub(self.last_change) > SILENCE_LIMIT {
                    return Err(UpdateError::Silent { while_doing: self.doing });
                }
                let waited = self.asked.map(|asked| at.saturating_sub(asked));
                if !self.begun && waited.is_some_and(|waited| waited > BEGIN_LIMIT) {
                    return Err(UpdateError::NotBegun);
                }
                Ok(Next::Watch)
            }
            Seen::Status(status) => self.see_status(status, at),
        }
    }

    fn still_gone(&self, at: Duration) -> Result<Next, UpdateError> {
        let since = self.gone_since.unwrap_or(at);
        if at.saturating_sub(since) > GONE_LIMIT { Err(UpdateError::Gone) } else { Ok(Next::Watch) }
    }

    fn see_status(&mut self, status: &Status, at: Duration) -> Result<Next, UpdateError> {
        let came_back = self.gone_since.take().is_some();
        if self.last.as_ref() != Some(status) {
            self.last_change = at;
            self.last = Some(status.clone());
        }
        let before = *self.before.get_or_insert(status.last_checked);
        match status.operation {
            Operation::NeedReboot => return Ok(Next::End(status.pending())),
            Operation::ReportingError => {
                self.begun = true;
                self.failed_while.get_or_insert(self.doing);
            }
            Operation::Idle if self.asked.is_none() || came_back => {
                self.asked = Some(at);
                (self.begun, self.failed_while) = (false, None);
                self.before = Some(status.last_checked);
                self.doing = Operation::Idle;
                return Ok(Next::Ask);
            }
            Operation::Idle => {
                if let Some(while_doing) = self.failed_while {
                    return Err(UpdateError::Failed { while_doing });
                }
                // An idle state after more than a check means that the update failed.
                if !matches!(self.doing, Operation::Idle | Operation::Checking) {
                    return Err(UpdateError::Failed { while_doing: self.doing });
                }
                if self.begun || status.last_checked > before {
                    return Ok(Next::End(Pending::Nothing));
                }
                return self.see(&Seen::Nothing, at);
            }
            Operation::Other => {}
            busy => {
                self.begun = true;
                self.doing = busy;
                // An update that was already running before our request counts as ours.
                self.asked.get_or_insert(at);
            }
        }
        Ok(Next::Watch)
    }
}

impl Default for Attempt {
    fn default() -> Self {
        Self::new()
    }
}

// === impl Status ===

impl Status {
    pub fn pending(&self) -> Pending {
        if self.operation != Operation::NeedReboot {
            return Pending::Nothing;
        }
        match self.new_version.parse::<OsVersion>() {
            Ok(version) if !version.is_unknown() => Pending::Version(version),
            _ => Pending::Unknown,
        }
    }
}

// === impl Operation ===

impl Operation {
    pub fn parse(name: &str) -> Self {
        match name {
            "UPDATE_STATUS_IDLE" => Self::Idle,
            "UPDATE_STATUS_CHECKING_FOR_UPDATE" => Self::Checking,
            "UPDATE_STATUS_UPDATE_AVAILABLE" => Self::Available,
            "UPDATE_STATUS_DOWNLOADING" => Self::Downloading,
            "UPDATE_STATUS_VERIFYING" => Self::Verifying,
            "UPDATE_STATUS_FINALIZING" => Self::Finalizing,
            "UPDATE_STATUS_UPDATED_NEED_REBOOT" => Self::NeedReboot,
            "UPDATE_STATUS_REPORTING_ERROR_EVENT" => Self::ReportingError,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Checking => "looking for an update",
            Self::Available => "about to download",
            Self::Downloading => "downloading",
            Self::Verifying => "verifying",
            Self::Finalizing => "finishing",
            Self::NeedReboot => "waiting for a reboot",
            Self::ReportingError => "reporting an error",
            Self::Other => "in a state we do not know",
        })
    }
}

#[cfg(test)]
mod tests;
