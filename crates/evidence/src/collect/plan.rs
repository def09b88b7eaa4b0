//! The collection plan: the built-in `gather.d/*.toml` and drop-ins in the same format.

use std::collections::HashSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Deserialize;

use super::forbidden;
use super::host::Host;
use super::piece::Trouble;
use super::sink::Limits;

/// Maximum size of a drop-in.
const MAX_FILE: u64 = 1 << 20;

/// Directory for the administrator's drop-ins.
pub const DROP_INS: &str = "/etc/landfall/gather.d";

/// Bundle order: likely evidence of the cause comes first, in case the stream is truncated. Items that may
/// wait for other systems come last.
const BUILT_IN: [&str; 6] = [
    include_str!("../../../../gather.d/services.toml"),
    include_str!("../../../../gather.d/provisioning.toml"),
    include_str!("../../../../gather.d/openshift.toml"),
    include_str!("../../../../gather.d/cluster.toml"),
    include_str!("../../../../gather.d/machine.toml"),
    include_str!("../../../../gather.d/probes.toml"),
];

/// A list of items, in the order they are collected.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) items: Vec<Item>,
    /// Rejected drop-ins.
    pub(super) refused: Vec<Refused>,
    pub(super) since: Option<Timestamp>,
}

/// A rejected drop-in. Its content is not quoted, because the file may be a link to a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) file: PathBuf,
    pub(super) why: Trouble,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(super) struct Item {
    /// Name of the item. A drop-in replaces the built-in item with the same ID.
    pub(super) id: String,
    /// Destination below the bundle's directory. Ends with `/` if it is a directory.
    pub(super) to: String,
    /// Time limit in seconds.
    #[serde(default = "default_seconds")]
    seconds: u64,
    /// Size limit of each file in MiB; the excess is omitted.
    #[serde(default = "default_mebibytes")]
    mebibytes: u64,
    /// Platforms on which the item is collected; all platforms if empty.
    #[serde(default)]
    platforms: Vec<Platform>,
    /// The source, as a table of one of the kinds below.
    pub(super) source: Spec,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
enum Platform {
    CloudInit,
    Ignition,
    Openrc,
    Openshift,
    Systemd,
}

/// The kind of source and its parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(super) enum Spec {
    /// Files by name or pattern.
    Files {
        /// Names or patterns with `*`.
        paths: Vec<String>,
        /// Line format: plain, or as container runtimes write them.
        #[serde(default)]
        lines: Lines,
    },
    /// Small files, combined into one.
    Facts {
        /// Names or patterns with `*`.
        paths: Vec<String>,
    },
    /// Journal entries of one unit or of all units.
    Journal {
        /// Unit name; all units if omitted.
        #[serde(default)]
        unit: Option<String>,
        /// The current boot, or all entries.
        #[serde(default)]
        since: Since,
    },
    /// Journal entries of each service in the current boot, one file per service.
    Journals {
        /// Names of services.
        services: Vec<String>,
    },
    /// Failed units, and the state of the named ones.
    Units {
        /// Units whose state is always included.
        names: Vec<String>,
    },
    /// OpenRC services and their state.
    Openrc {},
    /// Operating system images of an ostree machine.
    Ostree {},
    /// Public facts of certificates in files.
    Certificates {
        /// Names or patterns with `*`.
        paths: Vec<String>,
    },
    /// Containers, pods and images of a container runtime.
    Cri {
        /// Runtime sockets; each one that responds is queried.
        sockets: Vec<String>,
        /// Bundle directory for the details of each container.
        inspect: String,
    },
    /// File system usage.
    Disks {},
    /// Names and sizes of files, without content.
    Listing {
        /// Names or patterns with `*`.
        paths: Vec<String>,
    },
    /// Structure of files that are never collected, without their values.
    Shapes {
        /// Names or patterns with `*`.
        paths: Vec<String>,
    },
    /// Addresses, routes, sockets.
    Network {},
    /// Response of a local service to a plain GET request.
    Http {
        /// `HOST:PORT` on this machine.
        address: String,
        /// The path of the request.
        path: String,
    },
    /// Response of each name server for the API endpoint and these names.
    Dns {
        /// Additional names.
        #[serde(default)]
        names: Vec<String>,
    },
    /// API objects, with the first kubeconfig whose server responds.
    Resources {
        /// Kubeconfigs, in the order in which they are tried.
        kubeconfigs: Vec<String>,
    },
    /// TCP, TLS and HTTP probes of the API endpoints in the machine's configuration.
    Api {
        /// The path of the request.
        path: String,
    },
    /// TCP, TLS and HTTP probes of the configured registries and of these hosts.
    Registry {
        /// Additional registries.
        #[serde(default)]
        hosts: Vec<String>,
        /// The path of the request.
        path: String,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(super) enum Lines {
    #[default]
    Plain,
    Cri,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(super) enum Since {
    #[default]
    Boot,
    All,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct PlanFile {
    /// The items, in the order they are collected.
    item: Vec<Item>,
}

/// Reason for rejecting a list of items.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("line {line} is not part of a list of items to collect")]
    Parse { line: usize },
    #[error("item {number} allows no time or no bytes, or more than an hour or {MAX_MEBIBYTES} MiB")]
    Limits { number: usize },
    #[error("item {number} has an id that is not made of letters, digits, `.`, `_` and `-`")]
    Id { number: usize },
    #[error("item {number} leads out of the bundle")]
    Place { number: usize },
    #[error("there are more than {MAX_ITEMS} items")]
    TooMany,
}

/// Returns the JSON schema of drop-ins.
#[cfg(feature = "schema")]
pub fn drop_in_schema() -> schemars::Schema {
    schemars::schema_for!(PlanFile)
}

// === impl Plan ===

impl Plan {
    /// Returns the built-in plan.
    pub fn built_in() -> Result<Self, PlanError> {
        let mut items = Vec::new();
        for text in BUILT_IN {
            items.extend(parse(text)?);
        }
        Ok(Self { items, refused: Vec::new(), since: None })
    }

    /// Returns the built-in plan with the drop-ins in [`DROP_INS`].
    ///
    /// A rejected drop-in becomes a record in the bundle; all other items are collected.
    pub fn of(host: &Host) -> Result<Self, PlanError> {
        let mut plan = Self::built_in()?;
        let found = host.find(&format!("{DROP_INS}/*.toml"), Instant::now() + PATIENCE);
        let files = match found {
            Ok(files) => files,
            Err(error) => {
                plan.refused.push(Refused { file: DROP_INS.into(), why: error.into() });
                return Ok(plan);
            }
        };
        for file in files {
            match drop_in(host, &file) {
                Ok(items) if plan.items.len() + items.len() <= MAX_ITEMS => plan.extend(items),
                Ok(_) => plan.refused.push(Refused { file, why: PlanError::TooMany.into() }),
                Err(why) => plan.refused.push(Refused { file, why }),
            }
        }
        Ok(plan)
    }

    /// Omits evidence older than this time: journal entries, and logs not written since then.
    ///
    /// State, configuration and facts are collected regardless of age.
    #[must_use]
    pub fn since(self, since: Timestamp) -> Self {
        Self { since: Some(since), ..self }
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the items for this machine, and those for other platforms.
    pub(super) fn for_host(&self, host: &Host) -> (Vec<Item>, Vec<Item>) {
        let wanted =
            |item: &Item| item.platforms.is_empty() || item.platforms.iter().any(|p| p.is_here(host));
        self.items.iter().cloned().partition(wanted)
    }

    fn extend(&mut self, items: Vec<Item>) {
        let replaced: HashSet<&str> = items.iter().map(|item| item.id.as_str()).collect();
        self.items.retain(|item| !replaced.contains(item.id.as_str()));
        self.items.extend(items);
    }
}

// === impl Item ===

impl Item {
    pub(super) fn limits(&self) -> Limits {
        Limits { time: Duration::from_secs(self.seconds), bytes: self.mebibytes << 20, since: None }
    }
}

// === impl Platform ===

impl Platform {
    fn is_here(self, host: &Host) -> bool {
        let signs: &[&str] = match self {
            Self::CloudInit => {
                &["/etc/cloud", "/run/cloud-init", "/var/lib/cloud", "/var/log/cloud-init-output.log"]
            }
            Self::Ignition => {
                &["/etc/.ignition-result.json", "/run/ignition", "/usr/lib/dracut/modules.d/30ignition"]
            }
            Self::Openrc => &["/run/openrc", "/etc/runlevels"],
            Self::Openshift => {
                &["/opt/openshift", "/var/opt/openshift", "/var/log/openshift", "/etc/machine-config-daemon"]
            }
            Self::Systemd => &["/run/systemd", "/etc/systemd", "/var/log/journal"],
        };
        signs.iter().any(|sign| host.exists(sign))
    }
}

fn default_seconds() -> u64 {
    15
}

fn default_mebibytes() -> u64 {
    8
}

/// Limits for one item: none justifies more of a machine's time or of a bundle.
const MAX_SECONDS: u64 = 3600;
const MAX_MEBIBYTES: u64 = 65_536;

/// Drop-ins add a handful; thousands would keep the machine busy for days.
const MAX_ITEMS: usize = 500;
const MAX_ID: usize = 100;

/// Drop-ins are in one directory, so finding them takes little time.
const PATIENCE: Duration = Duration::from_secs(5);

fn drop_in(host: &Host, path: &Path) -> Result<Vec<Item>, Trouble> {
    let (_, file) = forbidden::open(host, path)?;
    let mut text = String::new();
    file.take(MAX_FILE).read_to_string(&mut text)?;
    Ok(parse(&text)?)
}

fn parse(text: &str) -> Result<Vec<Item>, PlanError> {
    let plan: PlanFile = toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        PlanError::Parse { line: 1 + text.bytes().take(start).filter(|byte| *byte == b'\n').count() }
    })?;
    for (item, number) in plan.item.iter().zip(1..) {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if item.id.is_empty() || item.id.len() > MAX_ID || !item.id.chars().all(is_plain) {
            return Err(PlanError::Id { number });
        }
        if !(1..=MAX_SECONDS).contains(&item.seconds) || !(1..=MAX_MEBIBYTES).contains(&item.mebibytes) {
            return Err(PlanError::Limits { number });
        }
        if item.to.starts_with('/')
            || item.to.split('/').any(|part| part == "..")
            || item.to.contains(char::is_control)
        {
            return Err(PlanError::Place { number });
        }
    }
    Ok(plan.item)
}

// === impl Trouble ===

impl From<PlanError> for Trouble {
    fn from(error: PlanError) -> Self {
        Self::Failed(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_items_have_ids_and_places_of_their_own() {
        let plan = Plan::built_in().unwrap();
        let ids: HashSet<&str> = plan.items.iter().map(|item| item.id.as_str()).collect();
        assert_eq!(ids.len(), plan.items.len());
        let files: Vec<&str> = plan
            .items
            .iter()
            .map(|item| item.to.as_str())
            .filter(|to| !to.is_empty() && !to.ends_with('/'))
            .collect();
        assert_eq!(files.iter().collect::<HashSet<_>>().len(), files.len());
        assert!(plan.items.iter().all(|item| !item.to.starts_with('/') && !item.to.contains("..")));
    }

    #[test]
    fn a_drop_in_replaces_by_id_and_adds_the_rest() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("etc/landfall/gather.d");
        std::fs::create_dir_all(&folder).unwrap();
        let text = "[[item]]\nid = \"kubelet-journal\"\nto = \"k.log\"\nsource.files.paths = [\"/k\"]\n\
                    [[item]]\nid = \"mine\"\nto = \"mine/\"\nseconds = 3\nsource.files.paths = [\"/srv/*.log\"]\n";
        std::fs::write(folder.join("mine.toml"), text).unwrap();
        let before = Plan::built_in().unwrap().len();
        let plan = Plan::of(&Host::at(root.path()).unwrap()).unwrap();
        assert_eq!(plan.len(), before + 1);
        let kubelet = plan.items.iter().find(|item| item.id == "kubelet-journal").unwrap();
        assert_eq!(kubelet.to, "k.log");
    }

    #[test]
    fn a_bad_drop_in_is_refused_without_quoting_it_and_the_others_count() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("etc/landfall/gather.d");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(root.path().join("etc/shadow"), "root:$6$hunter2:1:2\n").unwrap();
        std::os::unix::fs::symlink("/etc/shadow", folder.join("a-link.toml")).unwrap();
        let item = |id: &str, to: &str, rest: &str| {
            format!("[[item]]\nid = \"{id}\"\nto = \"{to}\"\n{rest}source.files.paths = [\"/srv/*.log\"]\n")
        };
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        write("b-syntax.toml", "[[item]]\nid = \"x\"\npassword = \"hunter2\"\n");
        write("c-limits.toml", &item("hunter2", "y", "seconds = 0\n"));
        write("d-place.toml", &item("d", "../../hunter2", ""));
        write("e-id.toml", &item("password hunter2", "y", ""));
        write("f-good.toml", &item("good", "good/", ""));
        write("g-many.toml", &(0..600).map(|n| item(&format!("i{n}"), "y/", "")).collect::<String>());
        let plan = Plan::of(&Host::at(root.path()).unwrap()).unwrap();
        assert!(plan.items.iter().any(|item| item.id == "good"));
        let told: Vec<String> = plan
            .refused
            .iter()
            .map(|Refused { file, why }| match why {
                Trouble::Failed(why) | Trouble::Withheld(why) => format!("{}: {why}", file.display()),
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = [
            "a-link.toml: it holds secrets of this machine",
            "b-syntax.toml: line 3 is not part of a list of items to collect",
            "c-limits.toml: item 1 allows no time or no bytes, or more than an hour or 65536 MiB",
            "d-place.toml: item 1 leads out of the bundle",
            "e-id.toml: item 1 has an id that is not made of letters, digits, `.`, `_` and `-`",
            "g-many.toml: there are more than 500 items",
        ];
        assert_eq!(told, expected.map(|line| format!("{DROP_INS}/{line}")));
    }
}
