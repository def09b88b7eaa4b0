//! API endpoints and registries in the machine's configuration.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Instant;

use crate::collect::host::Host;

/// A machine has one or two endpoints; further ones in its files are outdated.
const MAX_ENDPOINTS: usize = 8;

const MAX_FILE: u64 = 1 << 20;

const API_FILES: [&str; 10] = [
    "/etc/kubernetes/*.conf",
    "/etc/kubernetes/kubeconfig",
    "/etc/kubeadm.yml",
    "/etc/rancher/*/config.yaml",
    "/opt/openshift/auth/kubeconfig",
    "/run/kubeadm/*.yaml",
    "/tmp/kubeadm.yml",
    "/var/lib/kubelet/bootstrap-kubeconfig",
    "/var/lib/kubelet/kubeconfig",
    "/var/lib/rancher/*/agent/kubelet.kubeconfig",
];

const REGISTRY_FILES: [&str; 12] = [
    "/etc/containerd/certs.d/*/hosts.toml",
    "/etc/containerd/conf.d/*.toml",
    "/etc/containerd/config.toml",
    "/etc/containers/registries.conf",
    "/etc/containers/registries.conf.d/*.conf",
    "/etc/crio/crio.conf",
    "/etc/crio/crio.conf.d/*",
    "/etc/kubeadm.yml",
    "/etc/kubernetes/manifests/*.yaml",
    "/run/kubeadm/*.yaml",
    "/tmp/kubeadm.yml",
    "/var/lib/kubelet/kubeadm-flags.env",
];

/// A host name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Endpoint {
    pub(super) host: String,
    pub(super) port: u16,
}

/// Kubeconfigs and kubeadm's configuration.
pub(super) fn api_files(host: &Host, deadline: Instant) -> impl Iterator<Item = PathBuf> {
    API_FILES.iter().flat_map(move |pattern| host.find(pattern, deadline).unwrap_or_default())
}

/// Returns the API endpoints in kubeconfigs and kubeadm's configuration.
pub(super) fn api(host: &Host, deadline: Instant) -> Vec<Endpoint> {
    let mut found = BTreeSet::new();
    for path in api_files(host, deadline) {
        let Ok(content) = host.read(&path, MAX_FILE) else { continue };
        found.extend(in_text(&String::from_utf8_lossy(&content)));
    }
    found.into_iter().take(MAX_ENDPOINTS).collect()
}

/// Returns the registries from which this machine pulls images: mirrors, the pause image's registry,
/// kubeadm's repository and the images of static pods.
pub(super) fn registries(host: &Host, deadline: Instant) -> Vec<Endpoint> {
    let folders = host.list("/etc/containerd/certs.d").unwrap_or_default();
    let mut found: BTreeSet<Endpoint> =
        folders.iter().filter_map(|name| registry(&name.to_string_lossy())).collect();
    for path in REGISTRY_FILES.iter().flat_map(|pattern| host.find(pattern, deadline).unwrap_or_default()) {
        let Ok(content) = host.read(&path, MAX_FILE) else { continue };
        found.extend(registries_in(&String::from_utf8_lossy(&content)));
    }
    found.into_iter().take(MAX_ENDPOINTS).collect()
}

/// Finds registries in the fields that name them, in TOML, YAML and kubelet flags.
fn registries_in(text: &str) -> impl Iterator<Item = Endpoint> {
    text.lines().map(str::trim).filter(|line| !line.starts_with('#')).filter_map(|line| {
        // containerd's mirrors: `[host."https://mirror.example"]`.
        if let Some(mirror) = line.strip_prefix("[host.") {
            return registry(mirror.trim_end_matches(']'));
        }
        if let Some((_, image)) = line.split_once("--pod-infra-container-image=") {
            return registry(image.split([' ', '"']).next()?);
        }
        let (name, value) = line.split_once([':', '='])?;
        let known =
            ["sandbox_image", "sandbox", "pause_image", "location", "imageRepository", "image", "server"];
        let name = name.trim().trim_start_matches("- ");
        if known.contains(&name) { registry(value) } else { None }
    })
}

/// Returns the host of `https://host:port/…` or of an image reference; `None` if the image has no host.
fn registry(text: &str) -> Option<Endpoint> {
    let text = text.trim().trim_matches(['"', '\'']);
    let url = text.strip_prefix("https://");
    let endpoint = Endpoint::parse(url.unwrap_or(text).split('/').next()?, 443)?;
    // As in image references: the first part is a host if it has a dot or a port, or is `localhost`.
    let is_host =
        url.is_some() || endpoint.host.contains('.') || endpoint.port != 443 || endpoint.host == "localhost";
    is_host.then_some(endpoint)
}

fn in_text(text: &str) -> impl Iterator<Item = Endpoint> {
    text.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        let default = match name.trim().trim_start_matches("- ").trim_matches('"') {
            // A kubeconfig, or the k3s configuration.
            "server" if value.contains("https://") => 443,
            "apiServerEndpoint" | "controlPlaneEndpoint" => 6443,
            _ => return None,
        };
        Endpoint::parse(value, default)
    })
}

// === impl Endpoint ===

impl Endpoint {
    /// Parses `https://host:port/path` or a part of it.
    pub(super) fn parse(text: &str, default_port: u16) -> Option<Self> {
        let text = text.trim().trim_end_matches(',').trim_matches(['"', '\'']);
        let text = text.strip_prefix("https://").unwrap_or(text);
        let text = text.split(['/', '?', '#']).next().unwrap_or_default();
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (address, port) = rest.split_once(']')?;
            (address, port.strip_prefix(':'))
        } else {
            match text.rsplit_once(':') {
                Some((host, port)) if !host.contains(':') => (host, Some(port)),
                _ => (text, None),
            }
        };
        let port = port.map_or(Some(default_port), |port| port.parse().ok())?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let valid = host.parse::<IpAddr>().is_ok() || (host.contains(is_name) && host.chars().all(is_name));
        valid.then(|| Self { host: host.to_owned(), port })
    }

    pub(super) fn is_name(&self) -> bool {
        self.host.parse::<IpAddr>().is_err()
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_found_in_each_kind_of_file() {
        let kubeconfig = "clusters:\n- cluster:\n    server: https://api.c1.example:6443\n";
        let kubeadm = "discovery:\n  bootstrapToken:\n    apiServerEndpoint: \"10.0.0.1:6443\"\ncontrolPlaneEndpoint: '[fd00::1]:443'\n";
        let rke = "server: https://rke.example:9345\ntoken: x\nserver: not-a-url\n";
        let told: Vec<String> =
            in_text(&[kubeconfig, kubeadm, rke].concat()).map(|endpoint| endpoint.to_string()).collect();
        assert_eq!(told, ["api.c1.example:6443", "10.0.0.1:6443", "[fd00::1]:443", "rke.example:9345"]);
    }

    #[test]
    fn registries_are_those_the_machine_was_told_of() {
        let text = "# sandbox_image = \"registry.k8s.io/pause:3.10\"\n\
                    sandbox_image = \"r.corp.example:5000/pause:3.10\"\n\
                    pause_image = 'quay.example/pause@sha256:00'\n\
                    [host.\"https://mirror.example\"]\n\
                    server = \"https://up.example/v2\"\n\
                    location = \"pull.example/team\"\n\
                    imageRepository: repo.example/k8s\n\
                    - image: busybox\n\
                    image: library/nginx\n\
                    KUBELET_KUBEADM_ARGS=\"--pod-infra-container-image=flag.example/pause:3 --x=y\"\n\
                    other = \"no.example\"\n";
        let told: Vec<String> = registries_in(text).map(|endpoint| endpoint.to_string()).collect();
        let expected = [
            "r.corp.example:5000",
            "quay.example:443",
            "mirror.example:443",
            "up.example:443",
            "pull.example:443",
            "repo.example:443",
            "flag.example:443",
        ];
        assert_eq!(told, expected);
        assert_eq!(registry("_default"), None);
    }

    #[test]
    fn nonsense_is_no_endpoint() {
        for text in ["", "https://", "a b:1", "host:port", "host:99999", "{{ .Server }}", "[::1"] {
            assert_eq!(Endpoint::parse(text, 443), None, "{text}");
        }
    }
}
