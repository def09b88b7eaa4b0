//! Ownership of logs: an application's messages prove little about the machine on which it runs.

use memchr::memmem;

use crate::words::WORDS;

/// The namespace of the control plane.
const SYSTEM: &str = "kube-system";

/// Logs of containers in unknown namespaces in a `sos` report.
const UNNAMED_LOGS: [&str; 3] = ["crictl_logs", "docker_logs", "podman_logs"];

/// Usual directory names for `kubectl cluster-info dump`.
const DUMPS: [&str; 3] = ["cluster-info", "cluster-state", "dump"];

/// A pod's container, from the path of its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub(crate) namespace: String,
    pub(crate) container: String,
}

/// Returns whether a program has no role in a bootstrap: a container ID or an unknown name.
pub(crate) fn is_foreign(process: &str) -> bool {
    process != "sh" && !WORDS.bootstrap_programs.iter().any(|program| process.contains(program))
}

/// Returns the pod of a path: `pods/NAMESPACE_POD_UID/CONTAINER/…`,
/// `containers/POD_NAMESPACE_CONTAINER-ID.log`, `namespaces/NAMESPACE/pods/POD/CONTAINER/…`.
pub(crate) fn pod(name: &str) -> Option<Pod> {
    let path = name;
    let from_file: Vec<&str> = name.rsplit(['/', ':']).take(3).collect();
    match from_file[..] {
        // `kubectl cluster-info dump`. minikube also uses this name for its logs.
        ["logs.txt", name, namespace] if DUMPS.iter().any(|folder| path.contains(folder)) => {
            return Some(Pod { namespace: namespace.to_owned(), container: name.to_owned() });
        }
        // The name is a container ID.
        [file, ..]
            if file.ends_with("-json.log") || UNNAMED_LOGS.iter().any(|logs| file.starts_with(logs)) =>
        {
            return Some(Pod { namespace: String::new(), container: file.to_owned() });
        }
        _ => {}
    }
    let mut segments = name.split(['/', ':']).peekable();
    while let Some(segment) = segments.next() {
        let mut after = segments.clone();
        let next = after.next();
        let pod = |namespace: &str, container: &str| {
            Some(Pod { namespace: namespace.to_owned(), container: container.to_owned() })
        };
        match segment {
            // The layout of troubleshoot.sh.
            "pods" if next == Some("logs") => {
                let namespace = after.next()?;
                let _ = after.next();
                let container = after.next().unwrap_or_default();
                return pod(namespace, container.strip_suffix(".log").unwrap_or(container));
            }
            // RKE2 and k3s name a file after the namespace and the pod.
            "podlogs" => {
                let name = next?;
                let system = name.strip_prefix(SYSTEM).and_then(|name| name.strip_prefix('-'));
                return system.map_or_else(|| pod(name, ""), |name| pod(SYSTEM, name));
            }
            "pods" => {
                let parts: Vec<&str> = next?.split('_').collect();
                match parts[..] {
                    // A file is also named after the container.
                    [namespace, _, container, ..] if after.peek().is_none() => {
                        return pod(namespace, container.strip_suffix(".log").unwrap_or(container));
                    }
                    [namespace, _, _] => return pod(namespace, after.next().unwrap_or_default()),
                    _ => {}
                }
            }
            // A directory is named as in `pods`; a file name starts with the pod.
            "containers" => {
                let name = next?;
                let parts: Vec<&str> = name.split('_').collect();
                if let ([namespace, _, _], Some(container)) = (&parts[..], after.next()) {
                    return pod(namespace, container);
                }
                if let [_, namespace, container] = parts[..] {
                    return pod(namespace, container.rsplit_once('-').map_or(container, |(name, _)| name));
                }
            }
            "namespaces" => {
                let namespace = next?;
                if after.next() == Some("pods") {
                    let _ = after.next();
                    return pod(namespace, after.next().unwrap_or_default());
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns whether a file of a bundle contains API objects that users of any namespace write:
/// `resources/pods.json`, `cluster-resources/events/shop.json`, `namespaces/shop/core/configmaps.yaml`. Their
/// text proves nothing about a machine.
pub(crate) fn holds_user_objects(name: &str) -> bool {
    // While the kubelet is down, any user's program may respond on its port.
    if name.contains("kubelet-health") {
        return true;
    }
    let Some((stem, end @ ("json" | "yaml" | "yml" | "txt" | "html" | "log"))) = name.rsplit_once('.') else {
        return false;
    };
    let file = stem.rsplit(['/', ':']).next().unwrap_or_default();
    let mut words = file.split(['-', '_', '.']);
    let lists = |word: &str| matches!(word, "event" | "events") || end != "log" && word == "pods";
    if words.any(lists) {
        return true;
    }
    if matches!(end, "html" | "log") {
        return false;
    }
    let has_folder = |folder: &str| stem.split(['/', ':']).any(|segment| segment == folder);
    let is_of_nodes = file == "nodes" || has_folder("nodes");
    let folders = ["cluster-resources", "namespaces", "certificatesigningrequests"];
    if !is_of_nodes && folders.into_iter().any(has_folder) {
        return true;
    }
    let is_kind =
        |name: Option<&str>| name.is_some_and(|name| WORDS.user_kinds.iter().any(|kind| kind == name));
    let mut from_file = stem.rsplit(['/', ':']);
    let (file, directory, above) = (from_file.next(), from_file.next(), from_file.next());
    is_kind(file) || is_kind(directory) && above == Some("cluster-resources")
}

/// Returns whether a line of the kubelet or the container runtime is about a pod outside the cluster's own
/// namespaces: `pod="NAMESPACE/NAME"`, `object="NAMESPACE/NAME"`, `(NAME_NAMESPACE(UID))`,
/// `Namespace:NAMESPACE,`.
pub(crate) fn is_about_workload(line: &[u8], is_system: impl Fn(&[u8]) -> bool) -> bool {
    let name =
        |bytes: &[u8]| bytes.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'-').count();
    let is_foreign = |rest: &[u8], end: u8| {
        let length = name(rest);
        length > 0 && rest.get(length) == Some(&end) && !is_system(&rest[..length])
    };
    let named = [&b"pod="[..], b"object="].into_iter().any(|key| {
        memmem::find_iter(line, key).any(|at| {
            let rest = &line[at + key.len()..];
            is_foreign(&rest[rest.iter().take_while(|byte| matches!(byte, b'\\' | b'"')).count()..], b'/')
        })
    });
    let described = || {
        memmem::find_iter(line, b"Namespace:").any(|at| {
            let rest = &line[at + 10..];
            let quoted = rest.strip_prefix(b"\"").is_some_and(|rest| is_foreign(rest, b'"'));
            quoted || is_foreign(rest, b',') || is_foreign(rest, b' ')
        })
    };
    let quoted = || {
        let keys = [&b"namespace:"[..], b"namespace_name\":"];
        let ends = keys.into_iter().flat_map(|key| memmem::find_iter(line, key).map(|at| at + key.len()));
        ends.into_iter().any(|at| {
            let rest = &line[at..];
            let quotes = rest.iter().take_while(|byte| matches!(byte, b'\\' | b'"')).count();
            let rest = &rest[quotes..];
            quotes > 0 && (is_foreign(rest, b'"') || is_foreign(rest, b'\\'))
        })
    };
    // `"web-1_shop(8a7b…)"`
    let formatted = || {
        memmem::find_iter(line, b"_").any(|at| {
            let rest = &line[at + 1..];
            let uid = rest.get(name(rest) + 1..name(rest) + 9);
            is_foreign(rest, b'(') && uid.is_some_and(|uid| uid.iter().all(u8::is_ascii_hexdigit))
        })
    };
    named || described() || quoted() || formatted()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_pod_and_container() {
        for (name, namespace, container) in [
            ("/var/log/pods/shop_web-1_8a7b/web/0.log", "shop", "web"),
            ("/var/log/pods/kube-system_coredns-1_8a7b/coredns/0.log", "kube-system", "coredns"),
            ("/var/log/containers/web-1_shop_web-0123.log", "shop", "web"),
            ("b/bootstrap/containers/shop_kube-system_8a7b/web/1.log", "shop", "web"),
            ("must-gather/namespaces/shop/pods/web-1/web/logs/current.log", "shop", "web"),
        ] {
            let pod = pod(name).unwrap();
            assert_eq!((pod.namespace.as_str(), pod.container.as_str()), (namespace, container), "{name}");
        }
        assert_eq!(pod("bundle/bootstrap/containers/etcd-0123.log"), None);
        assert_eq!(pod("kubelet.log"), None);
    }

    #[test]
    fn files_of_user_objects_are_recognized() {
        for (name, holds) in [
            ("log-bundle-1.tar.gz:log-bundle-1/resources/pods.json", true),
            ("landfall:resources/events.json", true),
            ("cluster-resources/configmaps/shop.json", true),
            ("must-gather/namespaces/shop/core/configmaps.yaml", true),
            ("resources/clusteroperators.json", false),
            ("bootstrap/services/bootkube.json", false),
            ("/var/log/pods/kube-system_etcd-n1_8a7b/etcd/0.log", false),
            ("pods.log", false),
        ] {
            assert_eq!(holds_user_objects(name), holds, "{name}");
        }
    }

    #[test]
    fn lines_about_workloads_are_recognized() {
        for (line, about) in [
            (r#""Error syncing pod, skipping" err="x" pod="shop/web-1" podUID="8a7b""#, true),
            (r#"err="pod=kube-system/x" pod="shop/web-1""#, true),
            (r#"msg="… pod=\"shop/web-1\"""#, true),
            (r#"Error syncing pod 8a ("web-1_shop(8a7b1234-00)"), skipping"#, true),
            (
                "RunPodSandbox for &PodSandboxMetadata{Name:web-1,Uid:8a,Namespace:shop,Attempt:0,} failed",
                true,
            ),
            (r#""Event occurred" object="shop/web-1" kind="Pod" message="x""#, true),
            (r#"pod="kube-system/etcd-n1""#, false),
            (r#""Event occurred" object="n1" kind="Node" message="x""#, false),
            ("connection_refused(0)", false),
            ("pod=8a7b", false),
        ] {
            let is_system = |namespace: &[u8]| namespace == b"kube-system";
            assert_eq!(is_about_workload(line.as_bytes(), is_system), about, "{line}");
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
