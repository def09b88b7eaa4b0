//! Paths where all programs of a machine, or all users of a cluster, have files: `/var/log`, `sos` reports,
//! bundles. There, lines count only if the file has the name of a component or of a machine-wide log.

use crate::words::WORDS;

/// Prefixes of bundle directories.
const BUNDLES: [&str; 4] = ["sosreport", "sos_commands", "must-gather", "support-bundle"];

/// Directories with command output of report collectors.
const LISTINGS: [&str; 5] = ["systeminfo", "crictl", "kubectl", "host-collectors", "kind-logs"];

/// Directories with one file or directory per pod. Users choose the names in them.
const PODS: [&str; 3] = ["pods", "pod-logs", "podlogs"];

/// Commands whose output `sos` stores and which print logs of the machine.
const SOS_LOGS: [&str; 2] = ["journalctl", "dmesg"];

/// Returns whether a file's path allows text of any program or user.
pub(crate) fn is_of_anyone(name: &str) -> bool {
    let segments: Vec<&str> = name.split(['/', ':']).filter(|segment| !segment.is_empty()).collect();
    let Some((file, folders)) = segments.split_last() else { return false };
    let is_in = |places: &[&str]| folders.iter().any(|folder| places.contains(folder));
    if is_in(&PODS) {
        // The namespace of the control plane is part of the cluster.
        return !folders.contains(&"kube-system") && !file.starts_with("kube-system_");
    }
    if is_in(&["sos_commands"]) {
        return !SOS_LOGS.iter().any(|log| file.starts_with(log));
    }
    let logs = folders.windows(2).position(|pair| pair == ["var", "log"]).map(|at| at + 2);
    let is_bundle = || folders.iter().any(|folder| BUNDLES.iter().any(|bundle| folder.starts_with(bundle)));
    if logs.is_none() && !is_in(&LISTINGS) && !is_bundle() {
        return false;
    }
    // A directory below `/var/log` is also named after a program.
    let named = &segments[logs.unwrap_or(folders.len())..];
    let is_named = named.iter().any(|name| {
        let name = name.to_ascii_lowercase();
        WORDS.machine_logs.iter().any(|log| name.contains(log))
    });
    let is_of_cluster = folders.iter().any(|folder| *folder == "nodes" || folder.ends_with(".openshift.io"));
    let is_audit = named.iter().any(|name| name.contains("audit"));
    is_audit || !is_named && !is_of_cluster
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_anyone_are_told_from_those_of_components() {
        for (name, anyone) in [
            ("/var/log/auth.log", true),
            ("/var/log/nginx/error.log", true),
            ("/var/log/kubernetes/audit.log", true),
            ("/var/log/cloud-init-output.log", false),
            ("/var/log/azure/cluster.log", false),
            ("/var/log/messages", false),
            ("sosreport-n1/sos_commands/process/ps_auxwww", true),
            ("sosreport-n1/sos_commands/kubernetes/journalctl_--unit_kubelet", false),
            ("sosreport-n1/environment", true),
            ("must-gather/quay/host_service_logs/masters/kubelet_service.log", false),
            ("must-gather/quay/cluster-scoped-resources/config.openshift.io/x.yaml", false),
            ("b.tar.gz:support-bundle/my-app/web.log", true),
            ("pod-logs/default/web.log", true),
            ("pods/kube-system/etcd-n1.log", false),
            ("n1/systeminfo/ps", true),
            ("/tmp/out.txt", false),
            ("kubelet.log", false),
            ("", false),
        ] {
            assert_eq!(is_of_anyone(name), anyone, "{name}");
        }
    }
}
