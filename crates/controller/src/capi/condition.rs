//! The condition: what of a verdict a Machine shows, in words of our own.

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

/// With a domain of its own it cannot meet anybody else's. `True` is good, as everywhere in Cluster API.
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
/// The same for success.
pub const SUCCESS_CLAIMED: &str = "SuccessClaimed";
/// The same for success with something broken that does not stop it.
pub const DEGRADED_CLAIMED: &str = "DegradedClaimed";
/// The Node is ready, whatever was reported before.
pub const NODE_READY: &str = "NodeReady";

/// A node under way says something at least once a minute. The hub's board calls it silent after three; a Machine may be
/// replaced for it, so here ten must be missing.
const SILENT_AFTER: SignedDuration = SignedDuration::from_mins(10);
/// A title is a sentence.
const MAX_TITLE: usize = 200;
const MAX_WORD: usize = 64;
/// A tenth of what the API server takes: every Machine's is read by every controller.
const MAX_MESSAGE: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    False,
    Unknown,
    True,
}

/// Our condition, as it is or should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub status: Status,
    pub reason: String,
    pub message: String,
    /// When the status last changed; a MachineHealthCheck counts from here.
    pub since: Timestamp,
}

/// What a Machine should show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub status: Status,
    pub reason: String,
    pub message: String,
    /// The node is in trouble: what is on it should not be lost.
    pub trouble: bool,
}

/// What messages are made of.
#[expect(missing_debug_implementations, reason = "a redactor has a key")]
pub struct Words {
    titles: BTreeMap<Cause, String>,
    redactor: Redactor,
    /// The hub's pages, where people are pointed to.
    pages: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum WordsError {
    #[error("read the catalogue of causes")]
    Rules(#[source] RuleError),
    #[error("make a redactor")]
    Redactor(#[source] BuildError),
}

/// What a Machine should show of what its node said.
pub fn shown(machine: &Machine, heard: &Heard, now: Timestamp, words: &Words) -> Shown {
    let quiet = |status, reason: &str, message: String| Shown {
        status,
        reason: reason.to_owned(),
        message,
        trouble: false,
    };
    // The cluster's own observation of the Node is stronger than any claim.
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
            let message = format!("Nothing was heard for {} minutes, since {phase}", SILENT_AFTER.as_mins());
            quiet(Status::Unknown, SILENT, words.page(&message, heard))
        }
        (State::Running, _) => {
            let phase = heard.phase.map_or_else(String::new, |phase| format!(", in {}", phase.name()));
            quiet(Status::Unknown, IN_PROGRESS, words.page(&format!("Bootstrap is under way{phase}"), heard))
        }
        // Not ended is not failed: it may still come, and a MachineHealthCheck may give it longer.
        (State::Hung, _) => trouble(Status::Unknown, HUNG.to_owned()),
        (State::Failed, Trust::Proven) => trouble(Status::False, failure(heard)),
        (State::Failed, Trust::Claimed) => trouble(Status::Unknown, FAILURE_CLAIMED.to_owned()),
    }
}

/// The condition of a Machine whose Node the cluster reports as ready, whatever the report says.
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

/// The end of every message about a report. The fleet view parses it.
pub(super) fn basis(trust: Trust) -> &'static str {
    match trust {
        Trust::Claimed => "based on claimed evidence",
        Trust::Proven => "based on proven evidence",
    }
}

/// Whether the cluster reports the Node as ready although the report says otherwise. The cluster takes precedence: a log must not end a
/// healthy Machine.
pub(super) fn is_outlived(machine: &Machine, heard: &Heard) -> bool {
    machine.ready_since.is_some() && !matches!(heard.state, State::Succeeded | State::Degraded)
}

/// The reason of a failure.
fn failure(heard: &Heard) -> String {
    heard.cause.as_ref().map_or_else(|| FAILED.to_owned(), reason)
}

/// `dns-resolution-failure` as conditions spell it: `DnsResolutionFailure`.
pub fn reason(cause: &Cause) -> String {
    let mut reason = String::new();
    for word in cause.as_str().split('-') {
        let mut letters = word.chars();
        reason.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        reason.extend(letters);
    }
    // Reasons begin with a letter.
    if reason.starts_with(|c: char| c.is_ascii_digit()) { format!("Cause{reason}") } else { reason }
}

/// How long a time is left, or none.
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
    /// Ours among the conditions of a Machine.
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

    /// As v1beta2 has it.
    pub fn entry(&self) -> Value {
        json!({
            "type": TYPE,
            "status": self.status.name(),
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": seconds(self.since),
        })
    }

    /// As v1beta1 has it, where what is `False` has a severity.
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

/// Times in objects have no fractions.
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

    /// The verdict in a sentence. A cause of the catalogue has the catalogue's title; only what we do not know is told in
    /// the node's own words, without control characters and secrets.
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

    /// The text, the evidence it is based on, and the address of the node's page.
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
        // More than is shown, so that a secret at the end is recognised as a whole.
        let line: String =
            text.chars().take(limit * 4).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let (clean, _) = self.redactor.redact(line.trim().as_bytes(), Options::default());
        cut(untagged(&String::from_utf8_lossy(&clean)).trim(), limit)
    }
}

/// Tags of secrets are new with every redactor; the words of a condition must be the same whoever writes them.
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
