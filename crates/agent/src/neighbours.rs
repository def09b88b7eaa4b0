//! Reports of peers that cannot reach any other receiver.
//!
//! They are stored unmodified, with their own signatures, and served to the readers of this agent.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use landfall_durable::{self as durable, Access, Disk as _, HostDisk};
use landfall_model::envelope::{Envelope, EnvelopeError, MAX_ENVELOPE};

/// Directory below the state directory, with one file per node.
const FOLDER: &str = "neighbours";
const SUFFIX: &str = ".json";
/// Nodes whose last report is stored: enough for nodes that boot together, not for a fleet. A further node
/// replaces the one with the oldest report.
const MAX_NEIGHBOURS: usize = 64;
/// The maximum length of a DNS host name.
const MAX_NAME: usize = 253;

/// The last report of each peer.
#[derive(Debug)]
pub(crate) struct Neighbours {
    folder: PathBuf,
    /// Serializes writes, so that the number of files stays within the limit.
    taking: Mutex<()>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum NeighbourError {
    #[error("the report cannot be read")]
    Envelope(#[source] EnvelopeError),
    #[error(
        "the report is of `{claimed}`, and the certificate is not; this agent's cluster is in `/etc/landfall/cluster`"
    )]
    Name { claimed: String },
    #[error("the report's signature does not hold")]
    Signature,
    #[error("the report cannot be kept")]
    Write(#[source] durable::Error),
    #[error("the reports cannot be listed")]
    List(#[source] io::Error),
}

// === impl Neighbours ===

impl Neighbours {
    pub(crate) fn open(state: &Path) -> Result<Self, durable::Error> {
        let folder = state.join(FOLDER);
        durable::create_dir(&HostDisk, &folder, Access::PRIVATE_DIR)?;
        Ok(Self { folder, taking: Mutex::new(()) })
    }

    /// Stores a report of the node that the certificate identifies, unmodified. A known or older report is
    /// acknowledged without effect.
    ///
    /// A node of this cluster may prefix its name with the cluster's name. Names of other clusters are
    /// rejected: the certificate does not prove them, and one node could otherwise use many names.
    pub(crate) fn take(
        &self,
        certified: &str,
        cluster: Option<&str>,
        body: &[u8],
    ) -> Result<(), NeighbourError> {
        let envelope = Envelope::parse(body).map_err(NeighbourError::Envelope)?;
        if !matches!(landfall_pki::verify_envelope(&envelope), Ok(Some(_))) {
            return Err(NeighbourError::Signature);
        }
        let message = envelope.message().map_err(NeighbourError::Envelope)?;
        let name = message.node.hostname.as_str();
        let full = cluster.map(|cluster| format!("{cluster}.{certified}"));
        if (name != certified && Some(name) != full.as_deref()) || !is_name(name) {
            return Err(NeighbourError::Name { claimed: message.node.hostname });
        }
        let _one = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.read(name);
        if known.is_none() {
            self.make_room()?;
        }
        let known = known.and_then(|known| Envelope::parse(&known).ok()?.message().ok());
        if known.is_some_and(|known| known.id == message.id || !message.is_after(&known)) {
            return Ok(());
        }
        durable::write(&HostDisk, &self.path(name), body, Access::PRIVATE).map_err(NeighbourError::Write)
    }

    /// Removes the oldest reports when the limit is reached.
    fn make_room(&self) -> Result<(), NeighbourError> {
        let names = self.names()?;
        let heard = |name: &String| {
            // Unreadable files sort first and are removed first.
            std::fs::metadata(self.path(name)).and_then(|found| found.modified()).ok()
        };
        let mut oldest: Vec<_> = names.iter().map(|name| (heard(name), name)).collect();
        oldest.sort_unstable();
        for (_, name) in oldest.iter().take((names.len() + 1).saturating_sub(MAX_NEIGHBOURS)) {
            tracing::info!(node = name.as_str(), "peer report evicted for another");
            durable::remove(&HostDisk, &self.path(name)).map_err(NeighbourError::Write)?;
        }
        Ok(())
    }

    /// Returns the names of the nodes with a stored report.
    pub(crate) fn names(&self) -> Result<Vec<String>, NeighbourError> {
        let listed = HostDisk.names(&self.folder).map_err(NeighbourError::List)?;
        let name = |file: &std::ffi::OsString| file.to_str()?.strip_suffix(SUFFIX).map(str::to_owned);
        let mut names: Vec<String> = listed.iter().filter_map(name).filter(|name| is_name(name)).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the last report of a node, unmodified.
    pub(crate) fn read(&self, name: &str) -> Option<Vec<u8>> {
        is_name(name).then(|| HostDisk.read(&self.path(name), MAX_ENVELOPE as u64).ok())?
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}{SUFFIX}"))
    }
}

/// Whether this is a valid host name that cannot lead out of the directory.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    name.len() <= MAX_NAME
        && name.bytes().all(plain)
        && name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use landfall_diagnose::{Engine, RuleSet};
    use landfall_model::identity::NodeIdentity;

    use super::*;
    use crate::keeper::Keeper;

    fn node(name: &str, boot: &str) -> NodeIdentity {
        NodeIdentity {
            hostname: name.to_owned(),
            machine_id: None,
            boot_id: Some(boot.to_owned()),
            os: None,
            architecture: None,
            provider_id: None,
        }
    }

    /// Returns reports of a node, signed by its own key.
    fn reports(name: &str, count: usize) -> Vec<Vec<u8>> {
        let folder = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::open(&HostDisk, folder.path()).unwrap();
        let report = Engine::new(RuleSet::embedded().unwrap()).unwrap().open().finish();
        let mut keep =
            || keeper.keep(node(name, "b1"), report.clone(), Timestamp::now()).unwrap().envelope.clone();
        (0..count).map(|_| keep()).collect()
    }

    #[test]
    fn the_latest_is_kept_as_it_came() {
        let state = tempfile::tempdir().unwrap();
        let neighbours = Neighbours::open(state.path()).unwrap();
        let reports = reports("n1", 2);
        for (report, kept) in [(0, 0), (1, 1), (0, 1), (1, 1)] {
            neighbours.take("n1", None, &reports[report]).unwrap();
            assert_eq!(neighbours.read("n1").unwrap(), reports[kept]);
        }
        assert_eq!(neighbours.names().unwrap(), ["n1"]);
    }

    #[test]
    fn what_is_not_the_callers_own_is_refused() {
        let state = tempfile::tempdir().unwrap();
        let neighbours = Neighbours::open(state.path()).unwrap();
        let report = reports("n1", 1).remove(0);
        assert!(matches!(neighbours.take("n2", None, &report), Err(NeighbourError::Name { .. })));
        let mut forged = Envelope::parse(&report).unwrap();
        let message = String::from_utf8(forged.payload).unwrap();
        forged.payload = message.replace("\"sequence\":1", "\"sequence\":9").into_bytes();
        assert_ne!(forged.payload, message.as_bytes());
        let unsigned = Envelope::unsigned(message.into_bytes());
        for forged in [forged, unsigned] {
            let taken = neighbours.take("n1", None, &serde_json::to_vec(&forged).unwrap());
            assert!(matches!(taken, Err(NeighbourError::Signature)), "{taken:?}");
        }
        assert!(matches!(neighbours.take("n1", None, b"{}"), Err(NeighbourError::Envelope(_))));
        for name in ["../n1", "", ".", "a/b", "a\0"] {
            let report = reports(name, 1).remove(0);
            assert!(
                matches!(neighbours.take(name, None, &report), Err(NeighbourError::Name { .. })),
                "{name}"
            );
            assert_eq!(neighbours.read(name), None);
        }
        assert!(neighbours.names().unwrap().is_empty());
    }

    #[test]
    fn a_node_may_carry_the_name_of_our_cluster_and_of_no_other() {
        let state = tempfile::tempdir().unwrap();
        let neighbours = Neighbours::open(state.path()).unwrap();
        let take = |certified: &str, cluster, claimed: &str| {
            neighbours.take(certified, cluster, &reports(claimed, 1).remove(0))
        };
        for (certified, cluster, claimed) in [
            ("worker_0", None, "worker_0"),
            ("worker-0", Some("prod"), "prod.worker-0"),
            ("worker-0", Some("prod"), "worker-0"),
            ("ip-10-0-0-5.ec2.internal", Some("prod"), "prod.ip-10-0-0-5.ec2.internal"),
        ] {
            take(certified, cluster, claimed).unwrap();
            assert!(neighbours.read(claimed).is_some(), "{claimed}");
        }
        for (certified, cluster, claimed) in [
            ("worker-0", None, "prod.worker-0"),
            ("worker-0", Some("prod"), "test.worker-0"),
            ("worker-0", Some("prod"), "prod.worker-1"),
            ("example.com", Some("prod"), "worker-1.example.com"),
            ("worker-0", Some("prod"), "prod.prod.worker-0"),
        ] {
            let taken = take(certified, cluster, claimed);
            assert!(matches!(taken, Err(NeighbourError::Name { .. })), "{certified} {claimed}: {taken:?}");
        }
        let names = ["prod.ip-10-0-0-5.ec2.internal", "prod.worker-0", "worker-0", "worker_0"];
        assert_eq!(neighbours.names().unwrap(), names);
    }

    #[test]
    fn an_older_boot_does_not_take_the_place_of_a_newer_one() {
        let state = tempfile::tempdir().unwrap();
        let neighbours = Neighbours::open(state.path()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::open(&HostDisk, folder.path()).unwrap();
        let report = Engine::new(RuleSet::embedded().unwrap()).unwrap().open().finish();
        // Neither boot has a set clock, and the second boot's clock is behind the first's.
        let mut made = [("b1", 900), ("b2", 30)].map(|(boot, second)| {
            let now = Timestamp::from_second(second).unwrap();
            keeper.keep(node("n1", boot), report.clone(), now).unwrap().envelope.clone()
        });
        let [first, second] = &mut made;
        for (taken, kept) in [(&*second, &*second), (&*first, &*second)] {
            neighbours.take("n1", None, taken).unwrap();
            assert_eq!(neighbours.read("n1").as_ref(), Some(kept));
        }
    }

    #[test]
    fn who_was_heard_longest_ago_makes_room() {
        let state = tempfile::tempdir().unwrap();
        let neighbours = Neighbours::open(state.path()).unwrap();
        let hour = std::time::Duration::from_secs(3600);
        for number in 0..MAX_NEIGHBOURS {
            let path = neighbours.path(&format!("n{number}"));
            std::fs::write(&path, "{}").unwrap();
            // `n7` has been silent for hours.
            let heard = std::time::SystemTime::now() - if number == 7 { 9 * hour } else { hour };
            std::fs::File::options().write(true).open(&path).unwrap().set_modified(heard).unwrap();
        }
        neighbours.take("n1", None, &reports("n1", 1)[0]).unwrap();
        assert_eq!(neighbours.names().unwrap().len(), MAX_NEIGHBOURS, "who is known needs no room");
        for name in ["late", "later"] {
            neighbours.take(name, None, &reports(name, 1)[0]).unwrap();
            let names = neighbours.names().unwrap();
            assert!(names.len() == MAX_NEIGHBOURS && names.iter().any(|known| known == name), "{names:?}");
        }
        assert!(neighbours.read("n7").is_none() && neighbours.read("n1").is_some());
        assert!(neighbours.read("late").is_some(), "who was heard last stays");
    }
}
