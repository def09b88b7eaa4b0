//! systemd units and their state, queried from systemd.

use std::fmt::Write as _;

use jiff::Timestamp;
use landfall_diagnose::{Fact, Observation, UnitState};
use landfall_model::chain;
use landfall_net::dbus::{Connection, DbusError, Value};

use super::Source;
use super::journal;
use crate::collect::host::Host;
use crate::collect::piece::{Piece, Trouble};
use crate::collect::sink::Sink;
use crate::collect::systemd::{self, MANAGER, PATH, SYSTEMD, Unit};

/// Maximum number of units reported in full. A machine has a handful of failed units; hundreds have another
/// common cause.
const MAX_TOLD: usize = 64;

/// Reported unit properties, in this order. The environment may contain anything and is omitted.
const PROPERTIES: [&str; 32] = [
    "Result",
    "NRestarts",
    "ExecMainCode",
    "ExecMainStatus",
    "ExecMainPID",
    "MainPID",
    "StatusText",
    "StatusErrno",
    "Type",
    "Restart",
    "LoadState",
    "LoadError",
    "UnitFileState",
    "FragmentPath",
    "DropInPaths",
    "ConditionResult",
    "AssertResult",
    "Conditions",
    "InvocationID",
    "Job",
    "Requires",
    "Wants",
    "After",
    "TriggeredBy",
    "MemoryCurrent",
    "MemoryPeak",
    "TasksCurrent",
    "OOMPolicy",
    "ControlGroup",
    "NeedDaemonReload",
    "ExecStart",
    "TimeoutStartUSec",
];

/// Timestamps of a unit's state changes.
const MOMENTS: [&str; 6] = [
    "StateChangeTimestamp",
    "ActiveEnterTimestamp",
    "ActiveExitTimestamp",
    "InactiveEnterTimestamp",
    "ExecMainStartTimestamp",
    "ExecMainExitTimestamp",
];

pub(super) struct Units {
    pub(super) to: String,
    /// Units that are always reported; a trailing `*` matches any suffix.
    pub(super) names: Vec<String>,
}

// === impl Units ===

impl Source for Units {
    fn collect(&self, host: &Host, sink: &mut Sink) -> Result<(), Trouble> {
        let mut connection = systemd::connect(host, sink.time_left()?)?.ok_or(Trouble::Absent)?;
        let units = systemd::units(&mut connection)?;
        sink.text(&format!("{}failed-units.txt", self.to), "systemd", &failed_list(&units));
        let told = units.iter().filter(|unit| unit.is_failing() || self.wants(&unit.name));
        for unit in told.take(MAX_TOLD) {
            let base = format!("{}unit-status/{}", self.to, unit.name);
            match properties(&mut connection, unit) {
                Ok(properties) => {
                    sink.text(&format!("{base}.txt"), &unit.name, &status(unit, &properties));
                    if let Some(observation) =
                        observation(unit, &properties).filter(|_| self.wants(&unit.name))
                    {
                        sink.pass(Piece::Observed(observation));
                    }
                }
                Err(error) => sink.note(&format!("{base}.txt"), &unit.name, &error.into()),
            }
            // A diagnosis already reads the journal of all units.
            if unit.is_failing()
                && !sink.is_for_diagnosis()
                && let Err(trouble) = journal::of_unit(host, &unit.name, &format!("{base}.log"), sink)
            {
                sink.note(&format!("{base}.log"), &unit.name, &trouble);
            }
        }
        match jobs(&mut connection) {
            Ok(text) => sink.text(&format!("{}jobs.txt", self.to), "systemd", &text),
            Err(error) => sink.note(&format!("{}jobs.txt", self.to), "systemd", &error.into()),
        }
        Ok(())
    }
}

impl Units {
    fn wants(&self, unit: &str) -> bool {
        self.names.iter().any(|name| match name.strip_suffix('*') {
            Some(start) => unit.starts_with(start),
            None => unit == name,
        })
    }
}

/// Returns the jobs that boot is waiting for.
fn jobs(connection: &mut Connection) -> Result<String, DbusError> {
    let listed = connection.call(SYSTEMD, PATH, MANAGER, "ListJobs", &[])?;
    let Some(Value::Array(jobs)) = listed.first() else {
        return Err(DbusError::Malformed { what: "no list of jobs" });
    };
    let mut text = String::from("JOB UNIT TYPE STATE\n");
    for job in jobs {
        let Value::Struct(fields) = job else { continue };
        let words: Vec<String> = fields.iter().take(4).map(ToString::to_string).collect();
        text += &format!("{}\n", words.join(" "));
    }
    text += &format!("\n{} jobs listed.\n", jobs.len());
    Ok(text)
}

fn properties(connection: &mut Connection, unit: &Unit) -> Result<Vec<(String, Value)>, DbusError> {
    let mut all = Vec::new();
    let kind = unit.name.rsplit('.').next().unwrap_or_default();
    let mut interface = kind[..kind.len().min(1)].to_uppercase();
    interface.push_str(kind.get(1..).unwrap_or_default());
    for interface in ["Unit".to_owned(), interface] {
        let interface = format!("{SYSTEMD}.{interface}");
        let got = connection.call(SYSTEMD, &unit.path, systemd::PROPERTIES, "GetAll", &[&interface]);
        let values = match got {
            Ok(values) => values,
            // Not every unit type has its own interface.
            Err(DbusError::Failed { .. }) if !all.is_empty() => break,
            Err(error) => return Err(error),
        };
        let Some(Value::Array(entries)) = values.into_iter().next() else { continue };
        for entry in entries {
            if let Value::Entry(entry) = entry
                && let (Value::Text(name), value) = *entry
            {
                all.push((name, value));
            }
        }
    }
    Ok(all)
}

/// Formats the list like `systemctl list-units --state=failed`.
fn failed_list(units: &[Unit]) -> String {
    let failed: Vec<&Unit> = units.iter().filter(|unit| unit.active == "failed").collect();
    let width = failed.iter().map(|unit| unit.name.len()).max().unwrap_or(4).max(4);
    let mut text = String::new();
    if !failed.is_empty() {
        text += &format!("  {:<width$} {:<6} {:<6} {:<6} DESCRIPTION\n", "UNIT", "LOAD", "ACTIVE", "SUB");
    }
    for Unit { name, load, active, sub, description, .. } in &failed {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "● {name:<width$} {load:<6} {active:<6} {sub:<6} {description}");
    }
    text += &format!("\n{} loaded units listed.\n", failed.len());
    text
}

/// Formats the unit like `systemctl status`, followed by its properties.
fn status(unit: &Unit, properties: &[(String, Value)]) -> String {
    let get = |name: &str| properties.iter().find(|(property, _)| property == name).map(|(_, value)| value);
    let shown = |name: &str| get(name).map(ToString::to_string).unwrap_or_default();
    let mut text = format!("● {} - {}\n", unit.name, unit.description);
    text += &format!("     Loaded: {} ({}; {})\n", unit.load, shown("FragmentPath"), shown("UnitFileState"));
    text += &format!("     Active: {} ({})", unit.active, unit.sub);
    let result = shown("Result");
    if !result.is_empty() && result != "success" {
        text += &format!(" (Result: {result})");
    }
    if let Some(since) = get("StateChangeTimestamp").and_then(moment) {
        text += &format!(" since {since}");
    }
    text.push('\n');
    if get("ExecMainPID").is_some_and(|pid| *pid != Value::Unsigned(0)) {
        let code = match get("ExecMainCode") {
            Some(Value::Signed(1)) => "exited",
            Some(Value::Signed(2)) => "killed",
            Some(Value::Signed(3)) => "dumped",
            _ => "running",
        };
        let (pid, status) = (shown("ExecMainPID"), shown("ExecMainStatus"));
        text += &format!("   Main PID: {pid} (code={code}, status={status})\n");
    }
    text.push('\n');
    for name in PROPERTIES {
        if let Some(value) = get(name).filter(|value| !is_unset(value)) {
            text += &format!("{name}={value}\n");
        }
    }
    for name in MOMENTS {
        if let Some(time) = get(name).and_then(moment) {
            text += &format!("{name}={time}\n");
        }
    }
    text
}

/// Returns the state of a unit as a fact; `None` for a unit that was never started.
fn observation(unit: &Unit, properties: &[(String, Value)]) -> Option<Observation> {
    let get = |name: &str| properties.iter().find(|(property, _)| property == name).map(|(_, value)| value);
    let number = |name: &str| match get(name) {
        Some(Value::Signed(number)) => *number,
        Some(Value::Unsigned(number)) => i64::try_from(*number).unwrap_or(i64::MAX),
        _ => 0,
    };
    let state = UnitState {
        unit: unit.name.clone(),
        active: unit.active.clone(),
        sub: unit.sub.clone(),
        result: get("Result").map(ToString::to_string).unwrap_or_default(),
        status: number("ExecMainStatus"),
        restarts: u64::try_from(number("NRestarts")).unwrap_or(0),
    };
    Some(Observation { kind: Fact::Unit(state), time: get("StateChangeTimestamp").and_then(moment)? })
}

/// Returns whether a value is unset: empty, or the maximum, which means "no limit" or "unknown".
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Unsigned(number) => *number == u64::MAX,
        Value::Text(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        _ => false,
    }
}

/// systemd counts microseconds since 1970; 0 means never.
fn moment(value: &Value) -> Option<Timestamp> {
    let Value::Unsigned(time @ 1..) = value else { return None };
    Timestamp::from_microsecond(i64::try_from(*time).ok()?).ok()
}

// === impl Trouble ===

impl From<DbusError> for Trouble {
    fn from(error: DbusError) -> Self {
        match error {
            DbusError::TimedOut => Self::TimedOut,
            other => Self::Failed(chain(&other).to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(name: &str, active: &str, sub: &str) -> Unit {
        let text = |text: &str| text.to_owned();
        Unit {
            name: text(name),
            description: text("A unit"),
            load: text("loaded"),
            active: text(active),
            sub: text(sub),
            path: text("/"),
        }
    }

    #[test]
    fn failed_units_are_listed_as_systemctl_does() {
        let units = [unit("a.service", "active", "running"), unit("kubelet.service", "failed", "failed")];
        let text = failed_list(&units);
        assert_eq!(
            text,
            "  UNIT            LOAD   ACTIVE SUB    DESCRIPTION\n● kubelet.service loaded failed failed A unit\n\n1 loaded units listed.\n"
        );
        assert_eq!(failed_list(&units[..1]), "\n0 loaded units listed.\n");
    }

    #[test]
    fn states_are_facts_unless_a_unit_was_never_started() {
        let mut properties = vec![
            ("Result".to_owned(), Value::Text("exit-code".to_owned())),
            ("ExecMainStatus".to_owned(), Value::Signed(203)),
            ("NRestarts".to_owned(), Value::Unsigned(7)),
            ("StateChangeTimestamp".to_owned(), Value::Unsigned(0)),
        ];
        let unit = unit("kubelet.service", "activating", "auto-restart");
        assert_eq!(observation(&unit, &properties), None);
        properties[3].1 = Value::Unsigned(1_767_323_045_000_000);
        let state = UnitState {
            unit: "kubelet.service".to_owned(),
            active: "activating".to_owned(),
            sub: "auto-restart".to_owned(),
            result: "exit-code".to_owned(),
            status: 203,
            restarts: 7,
        };
        let time = Timestamp::from_second(1_767_323_045).unwrap();
        assert_eq!(observation(&unit, &properties), Some(Observation { kind: Fact::Unit(state), time }));
    }

    #[test]
    fn status_says_how_it_ended() {
        let properties = [
            ("Result".to_owned(), Value::Text("exit-code".to_owned())),
            ("ExecMainPID".to_owned(), Value::Unsigned(42)),
            ("ExecMainCode".to_owned(), Value::Signed(1)),
            ("ExecMainStatus".to_owned(), Value::Signed(203)),
            ("MemoryPeak".to_owned(), Value::Unsigned(u64::MAX)),
            ("Environment".to_owned(), Value::Array(vec![Value::Text("PASSWORD=hunter2".to_owned())])),
        ];
        let text = status(&unit("k.service", "activating", "auto-restart"), &properties);
        assert!(text.contains("Active: activating (auto-restart) (Result: exit-code)"), "{text}");
        assert!(text.contains("Main PID: 42 (code=exited, status=203)"), "{text}");
        assert!(!text.contains("MemoryPeak") && !text.contains("hunter2"), "{text}");
    }
}
