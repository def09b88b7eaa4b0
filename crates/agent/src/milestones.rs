//! Files that a bootstrap creates as it progresses.
//!
//! They exist even if a script discards the output of the command that wrote them. Each file is reported
//! once, when it first exists in this boot.

use jiff::Timestamp;
use landfall_diagnose::{Fact, Observation};
use landfall_evidence::collect::Host;

/// The watched files. `rules/watched.toml` defines the meaning of each.
pub(crate) const FILES: [&str; 35] = [
    // Cluster API's bootstrap data is on the machine.
    "/etc/kubeadm.yml",
    "/run/kubeadm/kubeadm.yaml",
    "/run/kubeadm/kubeadm-join-config.yaml",
    // kubeadm creates or joins a control plane.
    "/etc/kubernetes/pki/apiserver.crt",
    "/etc/kubernetes/admin.conf",
    "/etc/kubernetes/controller-manager.conf",
    "/etc/kubernetes/scheduler.conf",
    "/etc/kubernetes/manifests/etcd.yaml",
    "/etc/kubernetes/manifests/kube-apiserver.yaml",
    "/etc/kubernetes/manifests/kube-controller-manager.yaml",
    "/etc/kubernetes/manifests/kube-scheduler.yaml",
    "/var/lib/etcd/member",
    // kubelet gets its configuration and its certificate.
    "/etc/kubernetes/bootstrap-kubelet.conf",
    "/var/lib/kubelet/config.yaml",
    "/var/lib/kubelet/instance-config.yaml",
    "/var/lib/kubelet/kubeadm-flags.env",
    "/var/lib/kubelet/pki/kubelet-client-current.pem",
    SUCCESS,
    // k3s and RKE2.
    "/var/lib/rancher/k3s/server/token",
    "/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
    "/var/lib/rancher/rke2/server/token",
    "/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
    // bootkube's stages.
    "/opt/openshift/openshift-manifests.done",
    "/opt/openshift/cvo-bootstrap.done",
    "/opt/openshift/etcd-bootstrap.done",
    "/opt/openshift/config-bootstrap.done",
    "/opt/openshift/kube-apiserver-bootstrap.done",
    "/opt/openshift/kube-controller-manager-bootstrap.done",
    "/opt/openshift/kube-scheduler-bootstrap.done",
    "/opt/openshift/ingress-operator-bootstrap.done",
    "/opt/openshift/mco-bootstrap.done",
    "/opt/openshift/cco-bootstrap.done",
    "/opt/openshift/cb-bootstrap.done",
    "/opt/openshift/.bootkube.done",
    // cloud-init has ended.
    CLOUD_INIT_END,
];

/// cloud-init writes it at the end of its last stage, whether or not its scripts succeeded.
const CLOUD_INIT_END: &str = "/var/lib/cloud/instance/boot-finished";
/// Written right after kubeadm has succeeded, if Cluster API created the bootstrap data.
const SUCCESS: &str = "/run/cluster-api/bootstrap-success.complete";
/// Part of that bootstrap data. Neither file survives a reboot.
const EXPECTED: &str = "/run/cluster-api/placeholder";

#[derive(Debug, Default)]
pub(crate) struct Milestones {
    told: Vec<&'static str>,
    /// Whether the missing success file was reported.
    missed: bool,
}

// === impl Milestones ===

impl Milestones {
    /// Returns the files that are new since the last call. Files from before this boot do not count as its
    /// progress.
    pub(crate) fn look(&mut self, host: &Host, began: Option<Timestamp>, now: Timestamp) -> Vec<Observation> {
        let mut new = Vec::new();
        for path in FILES {
            if self.told.contains(&path) {
                continue;
            }
            let Ok(stat) = host.stat(path) else { continue };
            let written = Timestamp::new(stat.st_mtime, i32::try_from(stat.st_mtime_nsec).unwrap_or(0)).ok();
            if began.zip(written).is_some_and(|(began, written)| written < began) {
                continue;
            }
            self.told.push(path);
            let at = written.filter(|written| *written <= now).unwrap_or(now);
            new.push(Observation { kind: Fact::File { file: path.to_owned() }, time: at });
        }
        // Checked last: the success file is written before cloud-init ends.
        let ended = self.told.contains(&CLOUD_INIT_END);
        if ended && !self.missed && host.exists(EXPECTED) && !host.exists(SUCCESS) {
            self.missed = true;
            new.push(Observation { kind: Fact::Missing { missing: SUCCESS.to_owned() }, time: now });
        }
        new.sort_by_key(|observation| observation.time);
        new
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    use super::*;

    fn write(root: &Path, path: &str) {
        let path = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    fn files(observations: &[Observation]) -> Vec<&str> {
        observations
            .iter()
            .filter_map(|observation| match &observation.kind {
                Fact::File { file } => Some(file.as_str()),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn a_file_is_told_once_and_with_its_own_time() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::at(root.path()).unwrap();
        let mut milestones = Milestones::default();
        assert!(milestones.look(&host, None, Timestamp::now()).is_empty());
        let path = "/etc/kubernetes/bootstrap-kubelet.conf";
        write(root.path(), path);
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        fs::File::open(root.path().join(&path[1..])).unwrap().set_modified(at).unwrap();
        let told = milestones.look(&host, None, Timestamp::now());
        assert_eq!(files(&told), [path]);
        assert_eq!(told[0].time, Timestamp::from_second(1_700_000_000).unwrap());
        // kubeadm removes the file at the end; a second attempt may create it again.
        fs::remove_file(root.path().join(&path[1..])).unwrap();
        assert!(milestones.look(&host, None, Timestamp::now()).is_empty());
        write(root.path(), path);
        assert!(milestones.look(&host, None, Timestamp::now()).is_empty());
    }

    #[test]
    fn what_an_earlier_boot_left_is_told_when_it_is_written_again() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::at(root.path()).unwrap();
        write(root.path(), CLOUD_INIT_END);
        let began = Timestamp::now() + jiff::SignedDuration::from_secs(1000);
        let mut milestones = Milestones::default();
        assert!(milestones.look(&host, Some(began), Timestamp::now()).is_empty());
        let later = SystemTime::from(began) + Duration::from_secs(1);
        fs::File::open(root.path().join(&CLOUD_INIT_END[1..])).unwrap().set_modified(later).unwrap();
        assert_eq!(milestones.look(&host, Some(began), later.try_into().unwrap()).len(), 1);
    }

    #[test]
    fn a_success_that_is_missing_is_told_only_where_it_is_due() {
        for (files, missing) in [
            (&[CLOUD_INIT_END][..], false),
            (&[EXPECTED], false),
            (&[CLOUD_INIT_END, EXPECTED, SUCCESS], false),
            (&[CLOUD_INIT_END, EXPECTED], true),
        ] {
            let root = tempfile::tempdir().unwrap();
            let host = Host::at(root.path()).unwrap();
            for file in files {
                write(root.path(), file);
            }
            let mut milestones = Milestones::default();
            let told = milestones.look(&host, None, Timestamp::now());
            assert_eq!(
                told.iter().any(|told| matches!(told.kind, Fact::Missing { .. })),
                missing,
                "{files:?}"
            );
            assert!(milestones.look(&host, None, Timestamp::now()).is_empty(), "it is told once");
        }
    }
}
