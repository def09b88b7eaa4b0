//! Detection of the host's control plane: its distribution and the paths of its credentials.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use landfall_net::{CertificateFiles, every_address};

use crate::config::{
    Collector, Config, ConfigError, FrontProxy, Mode, Patience, Readiness, Settings, Tunnel, Upstream,
};

const DEFAULT_PORT: u16 = 6444;
/// k3s has its own API server behind 6444.
const PORT_BESIDE_K3S: u16 = 6445;
const API_PORT: u16 = 6443;
const SSH_PORT: u16 = 22;
/// Port on which node agents serve reports and bundles.
const AGENT_PORT: u16 = 8710;
/// The certificate of every API server contains this name.
const API_NAME: &str = "kubernetes.default.svc";
const DEFAULT_GATHER_TOKEN: &str = "etc/landfall/gather-token";
const MAX_CONNECTIONS: usize = 20_000;
/// Upper limit above the processor count of any host.
const MAX_THREADS: usize = 1024;
const MAX_TUNNELS: usize = 16;

/// A complete configuration, with one sentence of explanation for each detected value.
#[derive(Clone, Debug)]
pub struct Chosen {
    pub config: Config,
    pub reasons: Vec<String>,
}

/// The files of one distribution, below the root.
struct Layout {
    name: &'static str,
    /// The file that identifies the distribution.
    sign: &'static str,
    /// Paths of certificates without extension; the first is the default.
    serving: &'static [&'static str],
    client_authority: &'static str,
    front_proxy: &'static str,
    front_proxy_authority: &'static str,
    upstream_authority: &'static str,
    kubeconfigs: &'static [&'static str],
    finished: &'static [&'static str],
    port: u16,
}

const LAYOUTS: [Layout; 3] = [
    Layout {
        name: "an OpenShift bootstrap host",
        sign: "opt/openshift/tls/kube-apiserver-lb-server.crt",
        serving: &[
            "opt/openshift/tls/kube-apiserver-service-network-server",
            "opt/openshift/tls/kube-apiserver-localhost-server",
            "opt/openshift/tls/kube-apiserver-lb-server",
            "opt/openshift/tls/kube-apiserver-internal-lb-server",
        ],
        client_authority: "opt/openshift/tls/kube-apiserver-complete-client-ca-bundle.crt",
        front_proxy: "opt/openshift/tls/aggregator-client",
        front_proxy_authority: "opt/openshift/tls/aggregator-signer.crt",
        upstream_authority: "opt/openshift/tls/kube-apiserver-complete-server-ca-bundle.crt",
        kubeconfigs: &["opt/openshift/auth/kubeconfig-loopback", "opt/openshift/auth/kubeconfig"],
        finished: &["opt/openshift/cb-bootstrap.done", "opt/openshift/.bootkube.done"],
        port: DEFAULT_PORT,
    },
    Layout {
        name: "a kubeadm control plane",
        sign: "etc/kubernetes/pki/apiserver.crt",
        serving: &["etc/kubernetes/pki/apiserver"],
        client_authority: "etc/kubernetes/pki/ca.crt",
        front_proxy: "etc/kubernetes/pki/front-proxy-client",
        front_proxy_authority: "etc/kubernetes/pki/front-proxy-ca.crt",
        upstream_authority: "etc/kubernetes/pki/ca.crt",
        kubeconfigs: &["etc/kubernetes/super-admin.conf", "etc/kubernetes/admin.conf"],
        finished: &[],
        port: DEFAULT_PORT,
    },
    Layout {
        name: "a k3s server",
        sign: "var/lib/rancher/k3s/server/tls/serving-kube-apiserver.crt",
        serving: &["var/lib/rancher/k3s/server/tls/serving-kube-apiserver"],
        client_authority: "var/lib/rancher/k3s/server/tls/client-ca.crt",
        front_proxy: "var/lib/rancher/k3s/server/tls/client-auth-proxy",
        front_proxy_authority: "var/lib/rancher/k3s/server/tls/request-header-ca.crt",
        upstream_authority: "var/lib/rancher/k3s/server/tls/server-ca.crt",
        kubeconfigs: &["etc/rancher/k3s/k3s.yaml"],
        finished: &[],
        port: PORT_BESIDE_K3S,
    },
];

/// Completes the settings with values detected on the host. `program` is the binary that starts a collector.
pub fn choose(settings: Settings, program: PathBuf) -> Result<Chosen, ConfigError> {
    settings.check()?;
    let root = settings.root.unwrap_or_else(|| PathBuf::from("/"));
    let layout = LAYOUTS.iter().find(|layout| root.join(layout.sign).is_file());
    let mut reasons = vec![match layout {
        Some(layout) => format!("this is {}: `{}` is there", layout.name, root.join(layout.sign).display()),
        None => "no known control plane has its files here: only what the settings name is used".to_owned(),
    }];
    let found = |told: Option<PathBuf>, place: fn(&Layout) -> &'static str, what: &str| {
        let path = told.or_else(|| layout.map(|layout| root.join(place(layout))));
        path.ok_or_else(|| {
            let known: Vec<String> =
                LAYOUTS.iter().map(|layout| format!("`{}`", root.join(layout.sign).display())).collect();
            ConfigError::Incomplete(format!(
                "no {what} is configured and none was found: looked for {}",
                known.join(", ")
            ))
        })
    };

    let mut serving: Vec<CertificateFiles> = settings
        .serving
        .into_iter()
        .map(|pair| CertificateFiles { certificate: pair.certificate, key: pair.key })
        .collect();
    if serving.is_empty() {
        let bases = layout.map(|layout| layout.serving).unwrap_or_default();
        serving =
            bases.iter().map(|base| pair(&root, base)).filter(|pair| pair.certificate.is_file()).collect();
    }
    if serving.is_empty() {
        found(None, |_| "", "certificate to serve")?;
    }
    for pair in &serving {
        reasons.push(format!("serves `{}`", pair.certificate.display()));
    }
    let client_authority =
        found(settings.client_authority, |layout| layout.client_authority, "client authority")?;
    reasons.push(format!("knows clients by `{}`", client_authority.display()));
    let upstream_authority = found(
        settings.upstream.authority,
        |layout| layout.upstream_authority,
        "authority of the API server",
    )?;

    let told = settings.front_proxy;
    let front_pair = match (told.certificate, told.key) {
        (Some(certificate), Some(key)) => Some(CertificateFiles { certificate, key }),
        _ => layout.map(|layout| pair(&root, layout.front_proxy)),
    };
    let front_authority =
        told.authority.or_else(|| layout.map(|layout| root.join(layout.front_proxy_authority)));
    let or = |told: Vec<String>, default: &str| if told.is_empty() { vec![default.to_owned()] } else { told };
    let front_proxy = match (front_pair, front_authority) {
        (Some(pair), Some(authority))
            if pair.certificate.is_file() && pair.key.is_file() && authority.is_file() =>
        {
            Some(FrontProxy {
                pair,
                authority,
                username_headers: or(told.username_headers, "X-Remote-User"),
                group_headers: or(told.group_headers, "X-Remote-Group"),
                extra_header_prefixes: or(told.extra_header_prefixes, "X-Remote-Extra-"),
            })
        }
        _ => None,
    };
    let mode = match (settings.mode.unwrap_or(Mode::Auto), &front_proxy) {
        (Mode::Auto, Some(front_proxy)) => {
            let certificate = front_proxy.pair.certificate.display();
            reasons.push(format!("mode `intercept`: `{certificate}` lets every client keep its identity"));
            Mode::Intercept
        }
        (Mode::Auto, None) => {
            reasons.push(
                "mode `splice`: without front-proxy credentials only untouched TLS keeps identities"
                    .to_owned(),
            );
            Mode::Splice
        }
        (Mode::Intercept, None) => {
            return Err(ConfigError::Incomplete(
                "mode `intercept` needs the front proxy's certificate, key and authority, which are not there"
                    .to_owned(),
            ));
        }
        (mode, _) => {
            reasons.push(format!(
                "mode `{}`, as configured",
                if mode == Mode::Splice { "splice" } else { "intercept" }
            ));
            mode
        }
    };
    let kubeconfig = settings.kubeconfig.or_else(|| {
        let places = layout.map(|layout| layout.kubeconfigs).unwrap_or_default();
        places.iter().map(|place| root.join(place)).find(|path| path.is_file())
    });
    reasons.push(match &kubeconfig {
        Some(path) => format!("asks the API server who may gather with `{}`", path.display()),
        None => "asks no API server who may gather: there is no kubeconfig".to_owned(),
    });
    let gather_token =
        settings.gather_token.or_else(|| Some(root.join(DEFAULT_GATHER_TOKEN)).filter(|path| path.is_file()));
    if let Some(path) = &gather_token {
        reasons.push(format!("the token in `{}` opens `/bootstrap`", path.display()));
    }
    let port = layout.map_or(DEFAULT_PORT, |layout| layout.port);
    let listen = settings.listen.unwrap_or_else(|| vec![every_address(port)]);
    let ports = settings.tunnel.ports;
    let ports = if ports.is_empty() { vec![SSH_PORT, AGENT_PORT] } else { ports };
    let config = Config {
        listen,
        mode,
        readiness: settings.readiness.unwrap_or(Readiness::Hold),
        serving,
        client_authority,
        front_proxy,
        upstream: Upstream {
            local: settings.upstream.local.unwrap_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), API_PORT)),
            permanent: settings.upstream.permanent,
            authority: upstream_authority,
            name: settings.upstream.name.unwrap_or_else(|| API_NAME.to_owned()),
        },
        kubeconfig,
        gather_token,
        access: settings.access,
        collector: settings.collector.map_or(Collector::Started { program }, Collector::Socket),
        proxy_protocol_from: settings.proxy_protocol_from,
        redirect: settings.redirect,
        tunnel: Tunnel {
            networks: settings.tunnel.networks,
            ports,
            max_tunnels: settings.tunnel.max_tunnels.unwrap_or(MAX_TUNNELS),
        },
        ssh: settings.ssh,
        admin: settings.admin,
        audit_log: settings.audit_log,
        max_connections: settings.max_connections.unwrap_or(MAX_CONNECTIONS),
        patience: Patience {
            notice: settings.shutdown_delay.map_or(Patience::default().notice, Duration::from_secs),
            ..Patience::default()
        },
        threads: settings.threads.unwrap_or_else(processors).clamp(1, MAX_THREADS),
        finished_markers: layout
            .map(|layout| layout.finished.iter().map(|file| root.join(file)).collect())
            .unwrap_or_default(),
        root,
    };
    Ok(Chosen { config, reasons })
}

fn pair(root: &Path, base: &str) -> CertificateFiles {
    CertificateFiles { certificate: root.join(format!("{base}.crt")), key: root.join(format!("{base}.key")) }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        root
    }

    fn chosen(root: &Path) -> Result<Chosen, ConfigError> {
        choose(Settings { root: Some(root.to_owned()), ..Settings::default() }, "/landfall".into())
    }

    #[test]
    fn each_kind_of_control_plane_is_recognised() {
        for layout in &LAYOUTS {
            let pair = |base: &&str| [format!("{base}.crt"), format!("{base}.key")];
            let mut files: Vec<String> = layout.serving.iter().flat_map(pair).collect();
            files.extend(pair(&layout.front_proxy));
            files.extend([layout.front_proxy_authority.to_owned(), layout.kubeconfigs[0].to_owned()]);
            let root = host(&files.iter().map(String::as_str).collect::<Vec<_>>());
            let Chosen { config, reasons } = chosen(root.path()).unwrap();
            assert_eq!(config.mode, Mode::Intercept, "{reasons:?}");
            assert_eq!(config.serving.len(), layout.serving.len());
            assert_eq!(config.serving[0], super::pair(root.path(), layout.serving[0]));
            assert_eq!(config.listen[0].port(), layout.port);
            assert_eq!(config.kubeconfig, Some(root.path().join(layout.kubeconfigs[0])));
            assert!(reasons[0].contains(layout.name), "{reasons:?}");
        }
    }

    #[test]
    fn without_front_proxy_credentials_tls_is_left_alone() {
        let root = host(&["etc/kubernetes/pki/apiserver.crt", "etc/kubernetes/pki/apiserver.key"]);
        let Chosen { config, reasons } = chosen(root.path()).unwrap();
        assert_eq!(config.mode, Mode::Splice);
        assert!(reasons.iter().any(|reason| reason.contains("splice")), "{reasons:?}");
        // The detected file contains no certificate.
        assert!(matches!(crate::check(&config), Err(crate::GatewayError::Credentials(_))));
        let told = Settings {
            root: Some(root.path().to_owned()),
            mode: Some(Mode::Intercept),
            ..Settings::default()
        };
        let error = choose(told, "/landfall".into()).unwrap_err().to_string();
        assert!(error.contains("front proxy"), "{error}");
    }

    #[test]
    fn a_machine_without_a_control_plane_is_told_what_was_looked_for() {
        let root = host(&[]);
        let error = chosen(root.path()).unwrap_err().to_string();
        for layout in &LAYOUTS {
            assert!(error.contains(layout.sign), "{error}");
        }
    }
}
