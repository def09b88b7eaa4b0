//! Checks whether machine-config-daemon could apply a MachineConfig to this machine.
//!
//! The check runs before anything is changed, because the daemon itself fails only once the kubelet is down.

use serde_json::Value;

/// The properties of the machine that decide it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    pub fips: bool,
    /// Whether it was booted by ostree: the daemon changes no other system.
    pub ostree: bool,
    /// The current MachineConfig on disk.
    pub current: Option<String>,
}

/// A reason why the daemon cannot apply it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    #[error("FIPS is {} here and {} in the MachineConfig: it cannot be changed in place", on(*here), on(*wanted))]
    Fips { here: bool, wanted: bool },
    #[error("this system was not booted by ostree: machine-config-daemon does not change it")]
    NotOstree,
    #[error("the MachineConfig has `{section}`, which takes effect at the first boot of a machine only")]
    Section { section: &'static str },
    #[error("the MachineConfig has user `{name}`: only `core` can be changed")]
    User { name: String },
    #[error("the MachineConfig changes `{field}` of user `core`: only keys and password can be changed")]
    UserField { field: String },
}

/// Sections that only a new disk can have.
const FORBIDDEN: [(&str, &str, &str); 6] = [
    ("storage", "directories", "storage.directories"),
    ("storage", "links", "storage.links"),
    ("storage", "filesystems", "storage.filesystems"),
    ("storage", "disks", "storage.disks"),
    ("storage", "raid", "storage.raid"),
    ("passwd", "groups", "passwd.groups"),
];
/// Fields of a user that may change.
const USER_FIELDS: [&str; 3] = ["name", "sshAuthorizedKeys", "passwordHash"];

/// Returns all obstacles.
pub fn obstacles(config: &Value, host: &Host) -> Vec<Obstacle> {
    let mut found = Vec::new();
    let wanted = config["spec"]["fips"].as_bool().unwrap_or(false);
    if wanted != host.fips {
        found.push(Obstacle::Fips { here: host.fips, wanted });
    }
    if !host.ostree {
        found.push(Obstacle::NotOstree);
    }
    let ignition = &config["spec"]["config"];
    for (part, name, section) in FORBIDDEN {
        if ignition[part][name].as_array().is_some_and(|entries| !entries.is_empty()) {
            found.push(Obstacle::Section { section });
        }
    }
    for user in ignition["passwd"]["users"].as_array().into_iter().flatten() {
        let name = user["name"].as_str().unwrap_or("core");
        if name != "core" {
            found.push(Obstacle::User { name: name.chars().take(64).collect() });
            continue;
        }
        let fields = user.as_object().into_iter().flatten();
        for (field, _) in fields.filter(|(field, _)| !USER_FIELDS.contains(&field.as_str())) {
            found.push(Obstacle::UserField { field: field.chars().take(64).collect() });
        }
    }
    found
}

/// Returns the name of a MachineConfig.
pub fn name(config: &Value) -> Option<&str> {
    config["metadata"]["name"].as_str()
}

fn on(state: bool) -> &'static str {
    if state { "on" } else { "off" }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FIT: Host = Host { fips: false, ostree: true, current: None };

    #[test]
    fn a_usual_worker_fits() {
        let config = json!({"spec": {"config": {"storage": {"files": [{"path": "/etc/x"}], "links": []},
            "passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["k"]}]}}}});
        assert_eq!(obstacles(&config, &FIT), []);
    }

    #[test]
    fn every_obstacle_is_told() {
        let config = json!({"spec": {"fips": true, "config": {
            "storage": {"directories": [{}], "links": [{}], "filesystems": [{}], "disks": [{}], "raid": [{}]},
            "passwd": {"groups": [{}], "users": [{"name": "root"}, {"name": "core", "uid": 0}]}}}});
        let told: Vec<String> =
            obstacles(&config, &Host::default()).iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 10, "{told:#?}");
        assert_eq!(told[0], "FIPS is off here and on in the MachineConfig: it cannot be changed in place");
    }
}
