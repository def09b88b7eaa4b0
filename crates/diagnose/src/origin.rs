//! The origin of a line, and whether the reader can prove it.
//!
//! `rules/sources.toml` names the components of a bootstrap. A reader assigns each line the set of components
//! that may have written it; a rule counts a line only if it accepts one of them. In a journal, the fields
//! set by journald itself prove the origin. In text, the name in the line's prefix is a claim: sufficient for
//! a manual diagnosis, but never for deleting a machine.

use std::sync::LazyLock;

use landfall_model::report::Trust;
use serde::Deserialize;

use crate::embedded;

/// Maximum number of components; a set of them is 64 bits wide.
const MAX_COMPONENTS: usize = 64;

/// A set of components.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Components(u64);

/// The origin of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub(crate) components: Components,
    pub(crate) trust: Trust,
}

/// The components of a bootstrap and how they are recognized.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    components: Vec<Component>,
    namespaces: Vec<String>,
}

/// The fields of a journal entry that identify its origin.
///
/// Only journald sets names that start with an underscore.
#[derive(Clone, Copy, Debug, Default)]
pub struct JournalFields<'a> {
    /// `_TRANSPORT`
    pub transport: &'a [u8],
    /// `_SYSTEMD_CGROUP`
    pub cgroup: &'a [u8],
    /// `_SYSTEMD_UNIT`
    pub unit: &'a [u8],
    /// `_COMM`
    pub comm: &'a [u8],
    /// `_EXE`, the executed file. A process may change its `_COMM`, also through the name of a link to a
    /// setuid program.
    pub exe: &'a [u8],
    /// `_UID`
    pub uid: &'a [u8],
    /// `_PID`
    pub pid: &'a [u8],
    /// `SYSLOG_FACILITY`. The kernel reserves its own, 0, and does not let programs use it in its ring
    /// buffer.
    pub facility: &'a [u8],
    /// `SYSLOG_IDENTIFIER`, chosen by the writer.
    pub identifier: &'a [u8],
    /// `MESSAGE`
    pub message: &'a [u8],
    /// `CONTAINER_NAME` or `CONTAINER_ID` is set: a container runtime forwards a container's output.
    pub container: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Component {
    name: String,
    #[serde(default)]
    programs: Vec<String>,
    #[serde(default)]
    units: Vec<String>,
    #[serde(default)]
    containers: Vec<String>,
    /// Only the start of its messages counts: the rest quotes names chosen by users, clients or devices.
    #[serde(default)]
    at_start: bool,
}

/// The part of a rule file that names components.
#[derive(Deserialize)]
struct SourcesFile {
    namespaces: Vec<String>,
    source: Vec<Component>,
}

/// The name of the group of all components.
const ANY: &str = "any";

// === impl Components ===

impl Components {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const ALL: Self = Self(u64::MAX);

    pub(crate) fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

// === impl Origin ===

impl Origin {
    /// A program without a role in a bootstrap, or text that a component only quotes.
    pub const FOREIGN: Self = Self { components: Components::NONE, trust: Trust::Claimed };
    /// Text without a name: its file may be any component's output.
    pub(crate) const UNNAMED: Self = Self { components: Components::ALL, trust: Trust::Claimed };
    /// A statement of the reader itself, such as the start of a boot.
    pub const READER: Self = Self { components: Components::ALL, trust: Trust::Proven };

    pub fn trust(self) -> Trust {
        self.trust
    }

    fn claimed(components: Components) -> Self {
        Self { components, trust: Trust::Claimed }
    }

    fn proven(components: Components) -> Self {
        let trust = if components.is_empty() { Trust::Claimed } else { Trust::Proven };
        Self { components, trust }
    }
}

// === impl Origins ===

impl Origins {
    /// Returns the components of `rules/sources.toml`, for readers without an engine.
    pub fn embedded() -> &'static Self {
        static EMBEDDED: LazyLock<Origins> = LazyLock::new(|| {
            let text = embedded::FILES.iter().find(|(name, _)| *name == "sources.toml");
            // The tests parse the file, so it is never malformed here.
            let file: Option<SourcesFile> = text.and_then(|(_, text)| toml::from_str(text).ok());
            file.map(|file| Origins { components: file.source, namespaces: file.namespaces })
                .unwrap_or_default()
        });
        &EMBEDDED
    }

    /// Adds components and namespaces; returns `false` if there are too many.
    pub(crate) fn extend(&mut self, components: Vec<Component>, namespaces: Vec<String>) -> bool {
        self.components.extend(components);
        self.namespaces.extend(namespaces);
        self.components.len() <= MAX_COMPONENTS
    }

    pub(crate) fn named(&self, name: &str) -> Option<Components> {
        if name == ANY {
            return Some(Components::ALL);
        }
        let at = self.components.iter().position(|component| component.name == name)?;
        Some(Components(1 << at))
    }

    /// Returns the namespaces whose pods are part of the cluster.
    pub(crate) fn namespaces(&self) -> &[String] {
        &self.namespaces
    }

    /// Returns whether only the start of a message of these components counts.
    pub(crate) fn counts_at_start(&self, components: Components) -> bool {
        let at_start = self.set(|component| component.at_start);
        !components.is_empty() && at_start.union(components) == at_start
    }

    /// Returns the origin claimed by a name in text: a prefix, a section heading or a file name.
    ///
    /// `None` if no component has this name.
    pub(crate) fn of_name(&self, name: &str) -> Option<Origin> {
        let name = name.rsplit('/').next().unwrap_or(name);
        let name = name.trim_matches(['(', ')']);
        let name = name.strip_suffix(".log").unwrap_or(name);
        let name = name.strip_suffix(".service").unwrap_or(name);
        let claimed = self.set(|component| {
            matches(&component.programs, name)
                || matches(&component.units, name)
                || matches(&component.containers, name)
        });
        (!claimed.is_empty()).then_some(Origin::claimed(claimed))
    }

    /// Returns the origin claimed by the name in a line's prefix.
    ///
    /// Names must match exactly, except for a version and a template instance.
    pub(crate) fn of_prefix(&self, name: &str) -> Option<Origin> {
        let name = name.rsplit('/').next().unwrap_or(name);
        let name = name.trim_matches(['(', ')']);
        let name = name.strip_suffix(".service").unwrap_or(name);
        let name = name.split_once('@').map_or(name, |(name, _)| name);
        let claimed = self.exactly(without_version(name));
        (!claimed.is_empty()).then_some(Origin::claimed(claimed))
    }

    fn exactly(&self, name: &str) -> Components {
        self.set(|component| {
            let mut names = component.programs.iter().chain(&component.units).chain(&component.containers);
            names.any(|known| known == name)
        })
    }

    /// Returns the origin claimed by a section's heading.
    ///
    /// A heading is a program or a container, unless it is a path.
    pub(crate) fn of_section(&self, name: &str) -> Origin {
        let is_path = name.contains(['/', '.']);
        self.of_name(name).unwrap_or(if is_path { Origin::UNNAMED } else { Origin::FOREIGN })
    }

    /// Returns the origin of a container in the cluster's own namespaces.
    pub(crate) fn of_container(&self, name: &str) -> Origin {
        let claimed = self.set(|component| matches(&component.containers, name));
        Origin::claimed(claimed)
    }

    /// Returns the origin proven by journald's own fields.
    pub fn of_journal(&self, fields: &JournalFields<'_>) -> Origin {
        let text = |bytes| std::str::from_utf8(bytes).unwrap_or_default();
        let nothing_proven = fields.transport.is_empty()
            && fields.unit.is_empty()
            && fields.comm.is_empty()
            && fields.uid.is_empty();
        if nothing_proven {
            return self.of_prefix(text(fields.identifier)).unwrap_or(Origin::FOREIGN);
        }
        let by_program = |name: &str| {
            let name = without_version(name);
            self.set(|component| component.programs.iter().any(|known| known == name))
        };
        match fields.transport {
            b"kernel" if matches!(fields.facility, b"" | b"0") => {
                return Origin::proven(by_program("kernel"));
            }
            b"kernel" => return self.of_prefix(text(fields.identifier)).unwrap_or(Origin::FOREIGN),
            // User actions with user-chosen names, except for the denials.
            b"audit" if fields.message.starts_with(b"AVC ") => return Origin::proven(by_program("audit")),
            b"audit" => return Origin::FOREIGN,
            _ => {}
        }
        if fields.pid == b"1" {
            return Origin::proven(by_program("systemd"));
        }
        let unit = text(fields.unit);
        let is_container = CONTAINERS.iter().any(|part| text(fields.cgroup).contains(part));
        if is_container || QUOTERS.iter().any(|program| unit.starts_with(program)) {
            return Origin::FOREIGN;
        }
        let by_unit = match unit.strip_suffix(".service") {
            Some(unit) => self.set(|component| matches(&component.units, unit)),
            None => Components::NONE,
        };
        if fields.container && (by_unit.is_empty() || by_unit.intersects(self.runtime())) {
            return Origin::FOREIGN;
        }
        // Containers and users run in separate scopes; of these only sessions may be root's. Outside of
        // units, container runtimes create cgroups.
        let is_in_unit = !unit.is_empty() || matches!(fields.cgroup, b"" | b"/");
        let is_scope = unit.strip_suffix(".scope").is_some();
        let is_host = is_in_unit && (!is_scope || unit.starts_with("session-") || unit == "init.scope");
        let by_program = if fields.uid == b"0" && !fields.container && is_host {
            let exe = text(fields.exe).rsplit('/').next().unwrap_or_default();
            // Through these, root's scripts write to the journal under an arbitrary name.
            let name = if PIPES.contains(&exe) { text(fields.identifier) } else { exe };
            if is_own_name(name) { by_program(name) } else { Components::NONE }
        } else {
            Components::NONE
        };
        // A process that systemd forks for a unit has the unit's name in brackets until it executes the
        // program.
        let is_starting = fields.comm.starts_with(b"(") && !by_unit.is_empty();
        let starting =
            if is_starting { self.named("systemd").unwrap_or(Components::NONE) } else { Components::NONE };
        Origin::proven(by_unit.union(by_program).union(starting))
    }

    /// Returns whether the writer of an entry used the name of a component that journald's own fields
    /// contradict.
    pub fn is_impersonated(&self, fields: &JournalFields<'_>) -> bool {
        let is_audit = fields.transport == b"audit";
        let claimed = std::str::from_utf8(fields.identifier).ok().and_then(|name| self.of_prefix(name));
        !is_audit
            && claimed
                .is_some_and(|claimed| !claimed.components.intersects(self.of_journal(fields).components))
    }

    pub(crate) fn kernel(&self) -> Components {
        self.named("kernel").unwrap_or(Components::NONE)
    }

    /// Returns the components that run scripts, which print any text.
    pub(crate) fn scripts(&self) -> Components {
        self.named("script").unwrap_or(Components::NONE)
    }

    fn runtime(&self) -> Components {
        self.named("runtime").unwrap_or(Components::NONE)
    }

    fn set(&self, is_meant: impl Fn(&Component) -> bool) -> Components {
        let named = self.components.iter().enumerate().filter(|(_, component)| is_meant(component));
        Components(named.fold(0, |set, (at, _)| set | 1 << at))
    }
}

/// Programs that forward their input to the journal.
const PIPES: [&str; 3] = ["cat", "logger", "systemd-cat"];

/// Service manager units whose messages consist of user-chosen names of programs and files.
const QUOTERS: [&str; 3] = ["systemd-coredump", "systemd-nspawn", "systemd-tmpfiles"];

/// Parts of cgroups in which containers run, also below the unit of their runtime.
const CONTAINERS: [&str; 5] = ["/payload", "libpod-", "/kubepods", "/docker/", "machine.slice"];

/// Returns whether the program's name identifies it.
///
/// Shells and interpreters run anything, for example a DHCP client hook, so only their unit identifies them.
/// The commands of container runtimes print container output, and snapd quotes users' requests.
fn is_own_name(name: &str) -> bool {
    const INTERPRETERS: [&str; 6] = ["bash", "sh", "dash", "env", "curl", "wget"];
    const RELAYS: [&str; 9] =
        ["docker", "podman", "nerdctl", "ctr", "crictl", "conmon", "runc", "crun", "snapd"];
    !name.is_empty()
        && !INTERPRETERS.contains(&name)
        && !RELAYS.contains(&name)
        && !QUOTERS.contains(&name)
        && !name.starts_with("python")
        && name.rsplit_once('.').is_none_or(|(_, end)| end != "sh")
        && name != "systemd"
}

/// Removes the version from `kubelet-v1.29.0` and `kubelet-1.29`.
fn without_version(name: &str) -> &str {
    let is_version = |end: &str| {
        let digits = end.strip_prefix('v').unwrap_or(end);
        digits.starts_with(|c: char| c.is_ascii_digit())
            && digits.chars().all(|c| c.is_ascii_digit() || c == '.')
    };
    name.rsplit_once('-').filter(|(_, end)| is_version(end)).map_or(name, |(name, _)| name)
}

fn matches(names: &[String], name: &str) -> bool {
    names.iter().any(|pattern| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(rest), Some(_)) => name.contains(rest.trim_end_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    })
}

#[cfg(test)]
mod tests {
    use crate::rules::RuleSet;

    use super::*;

    #[test]
    fn chosen_names_are_impersonations_unless_fields_prove_them() {
        let origins = Origins::embedded();
        let stdout = JournalFields { transport: b"stdout", pid: b"812", ..JournalFields::default() };
        let (root, user) = (JournalFields { uid: b"0", ..stdout }, JournalFields { uid: b"1000", ..stdout });
        for (fields, identifier, expected) in [
            (JournalFields { exe: b"/usr/bin/logger", unit: b"session-1.scope", ..user }, "kernel", true),
            (JournalFields { exe: b"/usr/bin/logger", unit: b"session-1.scope", ..user }, "alice", false),
            (JournalFields { exe: b"/usr/sbin/sshd", unit: b"ssh.service", ..root }, "sshd", false),
            (JournalFields { exe: b"/usr/bin/kubelet", unit: b"kubelet.service", ..root }, "kubelet", false),
            (JournalFields { exe: b"/usr/bin/logger", unit: b"session-1.scope", ..root }, "kubeadm", false),
            (JournalFields { transport: b"kernel", ..JournalFields::default() }, "kernel", false),
            (JournalFields { transport: b"audit", ..JournalFields::default() }, "audit", false),
            // An export without journald's fields.
            (JournalFields::default(), "kubelet", false),
        ] {
            let fields = JournalFields { identifier: identifier.as_bytes(), ..fields };
            assert_eq!(origins.is_impersonated(&fields), expected, "{fields:?}");
        }
    }

    /// Each entry is attributed to a component by the fields that journald sets.
    #[test]
    fn journal_fields_prove_the_origin() {
        let rules = RuleSet::embedded().unwrap();
        let origins = rules.origins();
        let root = JournalFields { transport: b"stdout", uid: b"0", pid: b"812", ..JournalFields::default() };
        let user = JournalFields { uid: b"1000", ..root };
        let table = [
            (JournalFields { unit: b"kubelet.service", exe: b"/usr/bin/kubelet", ..root }, "kubelet", true),
            (JournalFields { unit: b"cloud-final.service", exe: b"/usr/bin/bash", ..root }, "script", true),
            (JournalFields { unit: b"my.service", exe: b"/usr/bin/kubeadm", ..root }, "kubeadm", true),
            (JournalFields { unit: b"session-1.scope", exe: b"/usr/bin/kubeadm", ..root }, "kubeadm", true),
            (JournalFields { exe: b"/usr/bin/cat", identifier: b"kubeadm", ..root }, "kubeadm", true),
            (JournalFields { transport: b"kernel", ..root }, "kernel", true),
            (JournalFields { pid: b"1", unit: b"init.scope", ..root }, "systemd", true),
            (JournalFields { comm: b"(kubelet)", unit: b"kubelet.service", ..root }, "systemd", true),
            // A user's `logger -t kubelet`, and a user's program with this name.
            (JournalFields { exe: b"/usr/bin/logger", identifier: b"kubelet", ..user }, "kubelet", false),
            (JournalFields { exe: b"/home/alice/kubelet", comm: b"kubelet", ..user }, "kubelet", false),
            // A link named `kubeadm` to a setuid program.
            (
                JournalFields { unit: b"cron.service", exe: b"/usr/bin/su", comm: b"kubeadm", ..root },
                "kubeadm",
                false,
            ),
            // The user's own service manager and units.
            (
                JournalFields { pid: b"99", unit: b"user@1000.service", comm: b"systemd", ..user },
                "systemd",
                false,
            ),
            // A DHCP client hook prints host names.
            (JournalFields { unit: b"dhcpcd.service", exe: b"/usr/bin/bash", ..root }, "script", false),
            (
                JournalFields { unit: b"ssh.service", exe: b"/usr/sbin/sshd", identifier: b"sshd", ..root },
                "kubelet",
                false,
            ),
            // Containers with Docker's journald driver and with a socket of the host.
            (
                JournalFields { unit: b"docker.service", exe: b"/usr/bin/dockerd", container: true, ..root },
                "runtime",
                false,
            ),
            (
                JournalFields { unit: b"cri-containerd-1.scope", exe: b"/usr/bin/kubelet", ..root },
                "kubelet",
                false,
            ),
            (
                JournalFields { cgroup: b"/kubepods/pod8a7b/3f2a", exe: b"/usr/bin/kubelet", ..root },
                "kubelet",
                false,
            ),
            // Output of a unit's container is forwarded by these programs.
            (JournalFields { unit: b"web.service", exe: b"/usr/bin/docker", ..root }, "runtime", false),
            (
                JournalFields {
                    unit: b"systemd-coredump@0-1-0.service",
                    exe: b"/usr/lib/systemd/systemd-coredump",
                    ..root
                },
                "host",
                false,
            ),
            (JournalFields { transport: b"audit", message: b"USER_CMD pid=1", ..root }, "host", false),
            (JournalFields { transport: b"audit", message: b"AVC avc:  denied", ..root }, "host", true),
        ];
        for (fields, component, accepted) in table {
            let origin = origins.of_journal(&fields);
            let is_it = origin.components.intersects(origins.named(component).unwrap());
            assert_eq!(is_it, accepted, "{component}: {fields:?}");
            assert_eq!(origin.trust == Trust::Proven, !origin.components.is_empty(), "{fields:?}");
        }
    }
}
