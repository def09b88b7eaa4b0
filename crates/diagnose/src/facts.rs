//! Facts observed by a reader: the state of a unit, the end of a process, a file, a probe result, or an API
//! object.
//!
//! Facts are values. They are compared with rules as values and rendered only for display, so that text
//! cannot become a fact.

use jiff::Timestamp;
use landfall_model::report::Trust;
use serde::Deserialize;

use crate::hits::Hit;
use crate::moment::Time;
use crate::origin::{Components, Origin};
use crate::pattern::Captures;

/// A fact and its observation time.
///
/// The fact determines its source, and the time its boot. It belongs to the machine on which the reader runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    pub kind: Fact,
    pub time: Timestamp,
}

/// The kinds of facts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Fact {
    /// A file written during a bootstrap exists.
    File {
        file: String,
    },
    /// A required file is missing.
    Missing {
        missing: String,
    },
    /// The service manager reports a state change of a unit.
    Unit(UnitState),
    /// The kernel reports the end of a process.
    Exit {
        program: String,
        pid: u32,
        code: u32,
    },
    Signal {
        program: String,
        pid: u32,
        signal: u32,
    },
    /// The reader probed an endpoint that the machine needs.
    Probe {
        /// `dns` or `api`.
        probe: String,
        target: String,
        /// The error; empty on success.
        #[serde(default)]
        error: String,
    },
    /// The container runtime reports the end of a container.
    Container {
        container: String,
        /// Namespace of its pod. Only containers in the cluster's own namespaces count.
        namespace: String,
        reason: String,
    },
    /// The cluster has a Node object for this machine.
    Node {
        node: String,
        ready: bool,
    },
}

/// A unit's state in its service manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitState {
    /// Unit name with its suffix: `kubelet.service`.
    pub unit: String,
    pub active: String,
    pub sub: String,
    /// Result of its last run: `success`, `exit-code`, `timeout` and others.
    #[serde(default)]
    pub result: String,
    #[serde(default)]
    pub status: i64,
    #[serde(default)]
    pub restarts: u64,
}

/// The facts that a rule or milestone requires.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FactSpec {
    /// One of these files exists; a trailing `*` matches any suffix.
    #[serde(default)]
    files: Vec<String>,
    /// One of these files is missing.
    #[serde(default)]
    missing: Vec<String>,
    /// One of these units, without `.service`; a trailing `*` matches any suffix. Empty with `states` means
    /// any unit.
    #[serde(default)]
    units: Vec<String>,
    /// In one of these states: `failed`, or with its sub-state `active (running)`.
    #[serde(default)]
    states: Vec<String>,
    /// And with this result and status.
    result: Option<String>,
    status: Option<i64>,
    /// One of these programs ended …
    #[serde(default)]
    programs: Vec<String>,
    /// … in this way.
    end: Option<EndSpec>,
    /// One of these probes failed.
    #[serde(default)]
    failed_probes: Vec<String>,
    /// A container ended for one of these reasons.
    #[serde(default)]
    container_reasons: Vec<String>,
    /// The Node object is ready, or not.
    node_ready: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum EndSpec {
    Failure,
    Signal,
}

// === impl FactSpec ===

impl FactSpec {
    pub(crate) fn matches(&self, fact: &Fact) -> bool {
        match fact {
            Fact::File { file } => is_one_of(&self.files, file),
            Fact::Missing { missing } => is_one_of(&self.missing, missing),
            Fact::Unit(state) => self.matches_unit(state),
            Fact::Exit { program, code, .. } => {
                *code != 0 && self.end == Some(EndSpec::Failure) && is_one_of(&self.programs, program)
            }
            Fact::Signal { program, .. } => {
                self.end == Some(EndSpec::Signal) && is_one_of(&self.programs, program)
            }
            Fact::Probe { probe, error, .. } => !error.is_empty() && is_one_of(&self.failed_probes, probe),
            Fact::Container { reason, .. } => is_one_of(&self.container_reasons, reason),
            Fact::Node { ready, .. } => self.node_ready == Some(*ready),
        }
    }

    fn matches_unit(&self, state: &UnitState) -> bool {
        let Some(name) = state.unit.strip_suffix(".service") else { return false };
        let stated = format!("{} ({})", state.active, state.sub);
        !self.states.is_empty()
            && (self.units.is_empty() || is_one_of(&self.units, name))
            && self.states.iter().any(|wanted| *wanted == state.active || *wanted == stated)
            && self.result.as_ref().is_none_or(|result| *result == state.result)
            && self.status.is_none_or(|status| status == state.status)
    }
}

fn is_one_of(names: &[String], name: &str) -> bool {
    names.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    })
}

// === impl Fact ===

impl Fact {
    /// Returns the source that evidence names, and the stream within it.
    pub(crate) fn place(&self) -> (&'static str, &str) {
        match self {
            Self::File { file } => ("file", file),
            Self::Missing { missing } => ("file", missing),
            Self::Unit(state) => ("systemd", &state.unit),
            Self::Exit { program, .. } | Self::Signal { program, .. } => ("process", program),
            Self::Probe { probe, .. } => ("probe", probe),
            Self::Container { container, .. } => ("container", container),
            Self::Node { node, .. } => ("cluster", node),
        }
    }

    /// Renders the fact for display only; it is never parsed.
    fn text(&self) -> String {
        match self {
            Self::File { file } => format!("{file} exists"),
            Self::Missing { missing } => format!("{missing} is missing"),
            Self::Unit(state) => state.text(),
            Self::Exit { program, pid, code } => format!("{program}[{pid}] ended with exit code {code}"),
            Self::Signal { program, pid, signal } => format!("{program}[{pid}] was ended by signal {signal}"),
            Self::Probe { probe, target, error } if error.is_empty() => format!("{probe} {target}: reached"),
            Self::Probe { probe, target, error } => format!("{probe} {target}: {error}"),
            Self::Container { container, namespace, reason } => {
                format!("container {container} in namespace {namespace} ended: {reason}")
            }
            Self::Node { node, ready: true } => format!("Node {node} is ready"),
            Self::Node { node, ready: false } => format!("Node {node} is not ready"),
        }
    }

    /// Returns the names for titles and stages.
    fn captures(&self) -> Captures {
        let pairs = match self {
            Self::File { file } | Self::Missing { missing: file } => {
                let name = file.rsplit('/').next().unwrap_or(file);
                vec![("stage", name.strip_suffix(".done").unwrap_or(name).to_owned())]
            }
            Self::Unit(state) => {
                let name = state.unit.strip_suffix(".service").unwrap_or(&state.unit);
                vec![("unit", state.unit.clone()), ("name", name.to_owned())]
            }
            Self::Exit { program, code, .. } => {
                vec![("program", program.clone()), ("code", code.to_string())]
            }
            Self::Signal { program, signal, .. } => {
                vec![("program", program.clone()), ("signal", signal.to_string())]
            }
            Self::Probe { target, .. } => vec![("target", target.clone())],
            Self::Container { container, .. } => vec![("name", container.clone())],
            Self::Node { node, .. } => vec![("node", node.clone())],
        };
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    pub(crate) fn hit(&self, line: u64, time: Timestamp) -> Hit {
        Hit {
            line,
            time: Some(Time::Full(time.as_microsecond())),
            process: Some(self.place().1.to_owned()),
            stream: Some(self.place().1.to_owned()),
            origin: Origin { components: Components::ALL, trust: Trust::Proven },
            informational: false,
            itemised: false,
            text: self.text(),
            focus: String::new(),
            before: Vec::new(),
            after: Vec::new(),
            captures: self.captures(),
        }
    }
}

// === impl UnitState ===

impl UnitState {
    fn text(&self) -> String {
        let Self { unit, active, sub, result, status, restarts } = self;
        let sub = if sub.is_empty() {
            String::new()
        } else {
            format!(" ({sub}), result {result}, status {status}")
        };
        let restarts = if *restarts > 0 { format!(", restarts {restarts}") } else { String::new() };
        format!("{unit} is {active}{sub}{restarts}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_facts_match_by_name_state_and_status() {
        let spec: FactSpec =
            toml::from_str("units = ['node-image-*']\nstates = ['failed']\nstatus = 203").unwrap();
        let state = |unit: &str, active: &str, status| {
            Fact::Unit(UnitState {
                unit: unit.to_owned(),
                active: active.to_owned(),
                sub: active.to_owned(),
                status,
                ..UnitState::default()
            })
        };
        assert!(spec.matches(&state("node-image-pull.service", "failed", 203)));
        assert!(!spec.matches(&state("node-image-pull.service", "failed", 1)));
        assert!(!spec.matches(&state("node-image-pull.service", "active", 203)));
        assert!(!spec.matches(&state("kubelet.service", "failed", 203)));
        assert!(!spec.matches(&state("node-image-pull.timer", "failed", 203)));
    }
}
