//! The condition that a Machine shows for a verdict, in landfall's own wording.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use landfall_diagnose::{RuleError, RuleSet};
use landfall_model::Cause;
use landfall_model::report::{State, Trust};
use landfall_redact::{BuildError, Options, Redactor};
use serde_json::{Value, json};

use super::heard::Heard;
use super::machine::Machine;

/// The condition's type. Its own domain prevents collisions. `True` means healthy, as for all conditions in
/// Cluster API.
pub const TYPE: &str = "bootstrap.landfall.dev/Succeeded";
pub const SUCCEEDED: &str = "Succeeded";
pub const DEGRADED: &str = "Degraded";
pub const IN_PROGRESS: &str = "InProgress";
pub const HUNG: &str = "Hung";
pub const SILENT: &str = "Silent";
pub const UNDECIDED: &str = "Undecided";
pub const FAILED: &str = "Failed";
/// The node reports a failure, and the origin of the evidence is not proven.
pub const FAILURE_CLAIMED: &str = "FailureClaimed";
/// The node reports success, and the origin of the evidence is not proven.
pub const SUCCESS_CLAIMED: &str = "SuccessClaimed";
/// The node reports success with a defect. The origin of the evidence is not proven.
pub const DEGRADED_CLAIMED: &str = "DegradedClaimed";
/// The cluster reports the Node as ready, regardless of earlier reports.
pub const NODE_READY: &str = "NodeReady";

/// Time without a report after which a node counts as silent. A bootstrapping node reports at least once a
/// minute. The hub's fleet view shows it as silent after 3 min. A Machine may be replaced for it, so the
/// limit here is 10 min.
const SILENT_AFTER: SignedDuration = SignedDuration::from_mins(10);
/// Title limit: one sentence.
const MAX_TITLE: usize = 200;
const MAX_WORD: usize = 64;
/// Message limit, a tenth of the API server's: every controller reads the message of every Machine.
const MAX_MESSAGE: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    False,
    Unknown,
    True,
}

/// The controller's condition, as observed or desired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub status: Status,
    pub reason: String,
    pub message: String,
    /// Time of the last status change, from which a MachineHealthCheck counts.
    pub since: Timestamp,
}

/// The desired condition of a Machine, without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub status: Status,
    pub reason: String,
    pub message: String,
    /// Whether the node has failed, so that its evidence should be preserved.
    pub trouble: bool,
}

/// The inputs of condition messages.
#[expect(missing_debug_implementations, reason = "a redactor has a key")]
pub struct Words {
    titles: BTreeMap<Cause, String>,
    redactor: Redactor,
    /// The base URL of the hub's pages, to which messages link.
    pages: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum WordsError {
    #[error("read the catalogue of causes")]
    Rules(#[source] RuleError),
    #[error("make a redactor")]
    Redactor(#[source] BuildError),
}

/// Returns the desired condition of a Machine for its node's report.
pub fn shown(machine: &Machine, heard: &Heard, now: Timestamp, words: &Words) -> Shown {
    let quiet = |status, reason: &str, message: String| Shown {
        status,
        reason: reason.to_owned(),
        message,
        trouble: false,
    };
    // The cluster's own observation of the Node takes precedence over any claim.
    if is_outlived(machine, heard) || (machine.ready_since.is_some() && heard.trust == Trust::Claimed) {
        return node_ready(Some(heard));
    }
    let told = words.told(heard);
    let trouble = |status, reason: String| Shown { status, reason, message: told.clone(), trouble: true };
    // Other controllers act on `True` and `False`: a claim sets neither.
    match (heard.state, heard.trust) {
        (State::Succeeded, Trust::Proven) => {
            quiet(Status::True, SUCCEEDED, words.page("Bootstrap succeeded", heard))
        }
        (State::Succeeded, Trust::Claimed) => quiet(
            Status::Unknown,
            SUCCESS_CLAIMED,
            words.page("The node reports that bootstrap succeeded", heard),
        ),
        (State::Degraded, Trust::Proven) => quiet(Status::True, DEGRADED, told),
        (State::Degraded, Trust::Claimed) => quiet(Status::Unknown, DEGRADED_CLAIMED, told),
        (State::Unknown, _) => quiet(Status::Unknown, UNDECIDED, told),
        (State::Running, _) if now.duration_since(heard.last_seen) > SILENT_AFTER => {
            let phase = heard.phase.map_or("an unknown phase", |phase| phase.name());
            let message = format!("No report for {} minutes, since {phase}", SILENT_AFTER.as_mins());
            quiet(Status::Unknown, SILENT, words.page(&message, heard))
        }
        (State::Running, _) => {
            let phase = heard.phase.map_or_else(String::new, |phase| format!(", in {}", phase.name()));
            quiet(Status::Unknown, IN_PROGRESS, words.page(&format!("Bootstrap is under way{phase}"), heard))
        }
        // A hung bootstrap may still succeed, and a MachineHealthCheck may allow more time.
        (State::Hung, _) => trouble(Status::Unknown, HUNG.to_owned()),
        (State::Failed, Trust::Proven) => trouble(Status::False, failure(heard)),
        (State::Failed, Trust::Claimed) => trouble(Status::Unknown, FAILURE_CLAIMED.to_owned()),
    }
}

/// Returns the condition of a Machine whose Node the cluster reports as ready, regardless of the report.
pub(super) fn node_ready(heard: Option<&Heard>) -> Shown {
    let said = heard.map_or_else(String::new, |heard| {
        let joint = match heard.state {
            State::Succeeded => "and",
            _ => "though",
        };
        let cause = heard.cause.as_ref().map_or_else(String::new, |cause| format!(": {cause}"));
        format!(", {joint} its last report says {}{cause} ({})", heard.state.name(), basis(heard.trust))
    });
    let message = format!("The Node is ready{said}");
    Shown { status: Status::True, reason: NODE_READY.to_owned(), message, trouble: false }
}

/// Returns the end of every message about a report. The fleet view parses it.
pub(super) fn basis(trust: Trust) -> &'static str {
    match trust {
        Trust::Claimed => "based on claimed evidence",
        Trust::Proven => "based on proven evidence",
    }
}

/// Whether the cluster reports the Node as ready although the report shows otherwise. The cluster takes
/// precedence: a log must not cause the deletion of a healthy Machine.
pub(super) fn is_outlived(machine: &Machine, heard: &Heard) -> bool {
    machine.ready_since.is_some() && !matches!(heard.state, State::Succeeded | State::Degraded)
}

/// Returns the condition's reason for a failure.
fn failure(heard: &Heard) -> String {
    heard.cause.as_ref().map_or_else(|| FAILED.to_owned(), reason)
}

/// Converts a cause such as `dns-resolution-failure` to a condition's reason, `DnsResolutionFailure`.
pub fn reason(cause: &Cause) -> String {
    let mut reason = String::new();
    for word in cause.as_str().split('-') {
        let mut letters = word.chars();
        reason.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        reason.extend(letters);
    }
    // A condition's reason must begin with a letter.
    if reason.starts_with(|c: char| c.is_ascii_digit()) { format!("Cause{reason}") } else { reason }
}

/// Whether a duration since a time has passed.
pub(super) fn is_over(from: Timestamp, within: Duration, now: Timestamp) -> bool {
    let within = SignedDuration::try_from(within).unwrap_or(SignedDuration::MAX);
    from.checked_add(within).is_ok_and(|end| now >= end)
}

// === impl Status ===

impl Status {
    pub const ALL: [Self; 3] = [Self::False, Self::Unknown, Self::True];

    pub fn name(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

// === impl Condition ===

impl Condition {
    /// Returns the controller's condition among those of a Machine.
    pub fn read(conditions: &Value) -> Option<Self> {
        let ours = conditions.as_array()?.iter().find(|condition| condition["type"] == TYPE)?;
        let text = |name: &str| ours[name].as_str().unwrap_or_default().to_owned();
        Some(Self {
            status: Status::ALL.into_iter().find(|status| ours["status"] == status.name())?,
            reason: text("reason"),
            message: text("message"),
            since: ours["lastTransitionTime"].as_str()?.parse().ok()?,
        })
    }

    /// Returns the condition in the format of v1beta2.
    pub fn entry(&self) -> Value {
        json!({
            "type": TYPE,
            "status": self.status.name(),
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": seconds(self.since),
        })
    }

    /// Returns the condition in the format of v1beta1, where a `False` condition has a severity.
    pub fn old_entry(&self) -> Value {
        let mut entry = self.entry();
        if self.status == Status::False {
            entry["severity"] = json!("Error");
        }
        entry
    }

    pub fn says(&self, shown: &Shown) -> bool {
        self.status == shown.status && self.reason == shown.reason && self.message == shown.message
    }
}

/// Formats a time without fractional seconds, as required in objects.
fn seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

// === impl Words ===

impl Words {
    pub fn new(pages: Option<String>) -> Result<Self, WordsError> {
        let rules = RuleSet::embedded().map_err(WordsError::Rules)?;
        let titles =
            rules.catalogue().iter().map(|entry| (entry.name.clone(), entry.title.clone())).collect();
        let redactor = Redactor::builder().build().map_err(WordsError::Redactor)?;
        let pages = pages.map(|pages| pages.trim_end_matches('/').to_owned());
        Ok(Self { titles, redactor, pages })
    }

    /// Returns the verdict as a sentence. A cause of the catalog has the catalog's title. Only for an unknown
    /// cause, the node's own title is used, without control characters and secrets.
    fn told(&self, heard: &Heard) -> String {
        let known = heard.cause.as_ref().and_then(|cause| self.titles.get(cause));
        let title = known.cloned().unwrap_or_else(|| self.clean(&heard.title, MAX_TITLE));
        let mut more = Vec::new();
        more.extend(heard.cause.as_ref().map(|cause| format!("cause {cause}")));
        more.extend(heard.phase.map(|phase| format!("phase {}", phase.name())));
        let component = heard.component.as_deref().map(|component| self.clean(component, MAX_WORD));
        more.extend(component.filter(|component| !component.is_empty()));
        let more = if more.is_empty() { String::new() } else { format!("{}; ", more.join(", ")) };
        let title = if title.is_empty() { "The node said nothing more".to_owned() } else { title };
        self.link(&format!("{title} ({more}{})", basis(heard.trust)), heard)
    }

    /// Returns the text with the trust of its evidence and the URL of the node's page.
    fn page(&self, text: &str, heard: &Heard) -> String {
        self.link(&format!("{text} ({})", basis(heard.trust)), heard)
    }

    fn link(&self, text: &str, heard: &Heard) -> String {
        let text = match &self.pages {
            Some(pages) if heard.is_in_hub => format!("{text}. See {pages}/nodes/{}", heard.name),
            _ => text.to_owned(),
        };
        cut(&text, MAX_MESSAGE)
    }

    fn clean(&self, text: &str, limit: usize) -> String {
        // Redaction gets more text than is shown, so that a secret at the end is recognized completely.
        let line: String =
            text.chars().take(limit * 4).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let (clean, _) = self.redactor.redact(line.trim().as_bytes(), Options::default());
        cut(untagged(&String::from_utf8_lossy(&clean)).trim(), limit)
    }
}

/// Removes the tags of redacted secrets. They differ per redactor, but a message must be the same from every
/// replica.
fn untagged(text: &str) -> String {
    let mut parts = text.split("***<");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str("***");
        out.push_str(part.split_once(">***").map_or(part, |(_, rest)| rest));
    }
    out
}

fn cut(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    text.chars().take(limit.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests;
