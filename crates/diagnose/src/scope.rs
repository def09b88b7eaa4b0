//! Whose log it is. What an application says about its own world proves little about the machine it runs on.

/// Namespaces of the cluster itself, by how their names begin.
const SYSTEM_NAMESPACES: [&str; 12] = [
    "kube-",
    "openshift-",
    "calico-",
    "tigera-",
    "cilium",
    "cattle-",
    "metallb-",
    "rook-",
    "longhorn-",
    "local-path-",
    "gmp-",
    "capi-",
];

/// Programs that have a part in bringing a node up, by what their names hold.
const PROGRAMS: [&str; 47] = [
    "kube",
    "containerd",
    "crio",
    "cri-",
    "docker",
    "cloud-",
    "ignition",
    "bootkube",
    "release-image",
    "k3s",
    "rke2",
    "etcd",
    "nodeadm",
    "systemd",
    "kernel",
    "Network",
    "network",
    "dhc",
    "curl",
    "wget",
    "bash",
    "python",
    "podman",
    "coreos",
    "node",
    "machine-config",
    "apt",
    "dnf",
    "yum",
    "rpm",
    "snap",
    "chrony",
    "ntp",
    "timesync",
    "sudo",
    "flannel",
    "calico",
    "cilium",
    "bootstrap",
    "setup",
    "install",
    "agent",
    "openshift",
    "resolv",
    "cluster",
    "boot",
    "dmesg",
];

/// Whether a log, by its path, is of an application's pod.
pub(crate) fn is_workload(name: &str) -> bool {
    namespace(name)
        .is_some_and(|namespace| !SYSTEM_NAMESPACES.iter().any(|system| namespace.starts_with(system)))
}

/// Whether a program is known to have no part in bringing a node up: a container's id, or a name nobody here knows.
pub(crate) fn is_foreign(process: &str) -> bool {
    process != "sh" && !PROGRAMS.iter().any(|program| process.contains(program))
}

/// The namespace a path tells: `pods/NAMESPACE_POD_UID/…`, `containers/POD_NAMESPACE_CONTAINER-ID.log`,
/// `namespaces/NAMESPACE/pods/…`.
fn namespace(name: &str) -> Option<&str> {
    let mut segments = name.split(['/', ':']).peekable();
    while let Some(segment) = segments.next() {
        let next = segments.peek().copied();
        match segment {
            "pods" => {
                let parts: Vec<&str> = next?.split('_').collect();
                if let [namespace, _, _] = parts[..] {
                    return Some(namespace);
                }
            }
            "containers" => {
                let parts: Vec<&str> = next?.split('_').collect();
                if let [_, namespace, _] = parts[..] {
                    return Some(namespace);
                }
            }
            "namespaces" => {
                let namespace = next?;
                if segments.clone().nth(1) == Some("pods") {
                    return Some(namespace);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_tells_whose_pod_it_is() {
        for (name, workload) in [
            ("/var/log/pods/shop_web-1_8a7b/web/0.log", true),
            ("/var/log/pods/kube-system_coredns-1_8a7b/coredns/0.log", false),
            ("/var/log/containers/web-1_shop_web-0123.log", true),
            ("/var/log/containers/etcd-n1_kube-system_etcd-0123.log", false),
            ("must-gather/namespaces/shop/pods/web-1/web/logs/current.log", true),
            ("must-gather/namespaces/openshift-etcd/pods/etcd-1/etcd/logs/current.log", false),
            ("bundle/bootstrap/containers/etcd-0123.log", false),
            ("kubelet.log", false),
        ] {
            assert_eq!(is_workload(name), workload, "{name}");
        }
    }

    #[test]
    fn programs_of_the_bootstrap_are_known() {
        for program in [
            "kubelet",
            "cloud-init",
            "bootkube.sh",
            "systemd",
            "dockerd",
            "my-bootstrap.sh",
            "NetworkManager",
        ] {
            assert!(!is_foreign(program), "{program}");
        }
        for program in ["shopd", "3f2a91bc77de", "java", "nginx"] {
            assert!(is_foreign(program), "{program}");
        }
    }
}
