//! What is collected: `gather.d/*.toml`, built in, and drop-ins of the same form.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::host::Host;
use super::sink::Limits;

/// Drop-ins are small; what is larger is not one.
const MAX_FILE: u64 = 1 << 20;

/// Where an administrator adds items.
pub const DROP_INS: &str = "/etc/landfall/gather.d";

/// The order is that of the bundle: what most likely tells the cause comes first, in case the stream is cut, and what may
/// have to wait for others comes last.
const BUILT_IN: [(&str, &str); 6] = [
    ("services.toml", include_str!("../../../../gather.d/services.toml")),
    ("provisioning.toml", include_str!("../../../../gather.d/provisioning.toml")),
    ("openshift.toml", include_str!("../../../../gather.d/openshift.toml")),
    ("cluster.toml", include_str!("../../../../gather.d/cluster.toml")),
    ("machine.toml", include_str!("../../../../gather.d/machine.toml")),
    ("probes.toml", include_str!("../../../../gather.d/probes.toml")),
];

/// A list of items, in the order they are collected.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) items: Vec<Item>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Item {
    /// A drop-in replaces the built-in item of the same id.
    pub(super) id: String,
    /// Where it goes, below the bundle's folder. Ends with `/` when it is a folder.
    pub(super) to: String,
    #[serde(default = "default_seconds")]
    seconds: u64,
    /// Of each file.
    #[serde(default = "default_mebibytes")]
    mebibytes: u64,
    /// Collected only on machines of one of these kinds; on all when empty.
    #[serde(default)]
    platforms: Vec<Platform>,
    pub(super) source: Spec,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Platform {
    CloudInit,
    Ignition,
    Openrc,
    Openshift,
    Systemd,
}

/// Which source, and what it needs to know.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Spec {
    /// Files by name or pattern.
    Files {
        paths: Vec<String>,
        #[serde(default)]
        lines: Lines,
    },
    /// Small files, all in one.
    Facts { paths: Vec<String> },
    /// What one unit, or everybody, wrote to the journal.
    Journal {
        #[serde(default)]
        unit: Option<String>,
        #[serde(default)]
        since: Since,
    },
    /// Failed units, and the state of the named ones.
    Units { names: Vec<String> },
    /// Services by their state, on OpenRC.
    Openrc {},
    /// The public facts of certificates in files.
    Certificates { paths: Vec<String> },
    /// How full the file systems are.
    Disks {},
    /// Addresses, routes, sockets.
    Network {},
    /// What a service on this machine answers to a plain GET.
    Http { address: String, path: String },
    /// What each name server says about the API endpoint and these names.
    Dns {
        #[serde(default)]
        names: Vec<String>,
    },
    /// TCP, TLS and HTTP to the API endpoints this machine was told of.
    Api { path: String },
    /// The same to the registries the machine is configured for, or else to these.
    Registry { hosts: Vec<String>, path: String },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Lines {
    #[default]
    Plain,
    Cri,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Since {
    #[default]
    Boot,
    All,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    item: Vec<Item>,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("`{file}` is not a list of items to collect")]
    Parse {
        file: String,
        #[source]
        source: toml::de::Error,
    },
    #[error(
        "item `{id}` of `{file}` allows no time or no bytes, or more than an hour or {MAX_MEBIBYTES} MiB"
    )]
    Limits { file: String, id: String },
    #[error("cannot read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

// === impl Plan ===

impl Plan {
    /// What is built in.
    pub fn built_in() -> Result<Self, PlanError> {
        let mut items = Vec::new();
        for (file, text) in BUILT_IN {
            items.extend(parse(file, text)?);
        }
        Ok(Self { items })
    }

    /// What is built in and what the machine's administrator added under [`DROP_INS`].
    pub fn of(host: &Host) -> Result<Self, PlanError> {
        let mut plan = Self::built_in()?;
        let names = host.find(&format!("{DROP_INS}/*.toml"));
        let read = |path: &Path, source| PlanError::Read { path: path.to_owned(), source };
        for path in names.map_err(|source| read(Path::new(DROP_INS), source))? {
            let text = host.read(&path, MAX_FILE).map_err(|source| read(&path, source))?;
            plan.extend(parse(&path.display().to_string(), &String::from_utf8_lossy(&text))?);
        }
        Ok(plan)
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The items for this machine.
    pub(super) fn for_host(&self, host: &Host) -> Vec<Item> {
        let wanted =
            |item: &&Item| item.platforms.is_empty() || item.platforms.iter().any(|p| p.is_here(host));
        self.items.iter().filter(wanted).cloned().collect()
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
        Limits { time: Duration::from_secs(self.seconds), bytes: self.mebibytes << 20 }
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

/// No item is worth more of a machine's time, or of a bundle.
const MAX_SECONDS: u64 = 3600;
const MAX_MEBIBYTES: u64 = 65_536;

fn parse(file: &str, text: &str) -> Result<Vec<Item>, PlanError> {
    let plan: PlanFile =
        toml::from_str(text).map_err(|source| PlanError::Parse { file: file.to_owned(), source })?;
    match plan.item.iter().find(|item| {
        !(1..=MAX_SECONDS).contains(&item.seconds) || !(1..=MAX_MEBIBYTES).contains(&item.mebibytes)
    }) {
        Some(item) => Err(PlanError::Limits { file: file.to_owned(), id: item.id.clone() }),
        None => Ok(plan.item),
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
        std::fs::write(folder.join("bad.toml"), "[[item]]\nid = \"x\"\nto = \"y\"\ncolour = 3\n").unwrap();
        assert!(Plan::of(&Host::at(root.path()).unwrap()).is_err());
    }
}
