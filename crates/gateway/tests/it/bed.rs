//! A gateway with its files, certificates and clients.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use landfall_gateway::collector;
use landfall_gateway::config::{
    AccessSettings, Collector, Config, FrontProxy, Mode, Patience, Readiness, Tunnel, Upstream,
};
use landfall_net::CertificateFiles;
use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{ApiServer, free_port};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::client::{Client, Identity};

pub(crate) const GATHER_TOKEN: &str = "a-gather-token-of-some-length";
/// Timeout with a margin for a loaded host.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A gateway that runs until it is dropped.
pub(crate) struct Bed {
    pub(crate) runtime: Runtime,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) folder: TempDir,
    pub(crate) authority: Arc<Authority>,
    /// The CA that clients verify the gateway's certificate with.
    authority_pem: String,
    clients: AtomicUsize,
    stops: Vec<oneshot::Sender<()>>,
    serving: Option<tokio::task::JoinHandle<()>>,
}

/// Certificates and their CAs, as files.
pub(crate) struct Files {
    pub(crate) folder: PathBuf,
}

// === impl Files ===

impl Files {
    pub(crate) fn issue(&self, authority: &Authority, name: &str, leaf: &Leaf) -> CertificateFiles {
        let issued = authority.issue(leaf).unwrap();
        let pair = CertificateFiles {
            certificate: self.folder.join(format!("{name}.crt")),
            key: self.folder.join(format!("{name}.key")),
        };
        std::fs::write(&pair.certificate, &issued.certificate).unwrap();
        std::fs::write(&pair.key, issued.key.expose()).unwrap();
        pair
    }
}

// === impl Bed ===

impl Bed {
    /// Starts a gateway without any API server.
    pub(crate) fn without_api(adjust: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("kubernetes", 30).unwrap();
        let front = Authority::new("front-proxy", 30).unwrap();
        let files = Files { folder: folder.path().to_owned() };
        std::fs::write(folder.path().join("ca.crt"), authority.certificate()).unwrap();
        std::fs::write(folder.path().join("front-proxy-ca.crt"), front.certificate()).unwrap();
        let names = ["kubernetes.default.svc", "localhost", "127.0.0.1"];
        let serving =
            files.issue(&authority, "apiserver", &Leaf::new("kube-apiserver", Purpose::Serve).names(names));
        let pair = files.issue(&front, "front-proxy", &Leaf::new("front-proxy-client", Purpose::Call));
        let nowhere = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), free_port().unwrap());
        let config = config(folder.path(), folder.path(), serving, pair, nowhere, None);
        Self::start(folder, authority, config, adjust)
    }

    /// Starts a gateway in front of a real API server.
    pub(crate) fn before(api: &ApiServer, adjust: impl FnOnce(&mut Config)) -> Self {
        Self::before_in_phase(api, "local", adjust)
    }

    pub(crate) fn before_in_phase(api: &ApiServer, phase: &str, adjust: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let home = api.directory();
        let pair = |name: &str| CertificateFiles {
            certificate: home.join(format!("{name}.crt")),
            key: home.join(format!("{name}.key")),
        };
        let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), api.port());
        let config = config(
            home,
            folder.path(),
            pair("apiserver"),
            pair("front-proxy"),
            local,
            Some(api.admin_kubeconfig()),
        );
        let authority = Authority::from_pem(
            api.authority().certificate(),
            landfall_model::Secret::new(api.authority().key().expose().clone()),
        )
        .unwrap();
        let bed = Self::start(folder, authority, config, adjust);
        bed.wait_for_phase(phase);
        bed
    }

    fn start(
        folder: TempDir,
        authority: Authority,
        mut config: Config,
        adjust: impl FnOnce(&mut Config),
    ) -> Self {
        let runtime = Runtime::new().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::create_dir_all(root.join("var/log")).unwrap();
        std::fs::write(root.join("etc/hostname"), "bootstrap-0\n").unwrap();
        std::fs::write(root.join("var/log/cloud-init-output.log"), "a line of a log\n".repeat(2000)).unwrap();
        std::fs::write(folder.path().join("gather-token"), format!("{GATHER_TOKEN}\n")).unwrap();
        let socket = folder.path().join("collector.sock");
        adjust(&mut config);
        let mut stops = Vec::new();
        let (stop, stopped) = oneshot::channel::<()>();
        stops.push(stop);
        runtime.spawn({
            let socket = socket.clone();
            async move {
                collector::serve(&socket, &root, async { drop(stopped.await) }).await.unwrap();
            }
        });
        let admin = config.admin.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        stops.push(stop);
        let authority_pem = authority.certificate().to_owned();
        let bound = runtime.block_on(async { landfall_gateway::bind(config) }).unwrap();
        runtime.block_on(bound.check()).unwrap();
        let address = bound.addresses()[0];
        let serving = runtime.spawn(bound.run(async { drop(stopped.await) }));
        landfall_testkit::eventually("the collector to listen", LIMIT, || {
            std::os::unix::net::UnixStream::connect(&socket).ok().map(drop)
        })
        .unwrap();
        Self {
            runtime,
            address,
            admin,
            folder,
            authority: Arc::new(authority),
            authority_pem,
            clients: AtomicUsize::new(0),
            stops,
            serving: Some(serving),
        }
    }

    pub(crate) fn files(&self) -> Files {
        Files { folder: self.folder.path().to_owned() }
    }

    /// Returns a client of the gateway.
    pub(crate) fn client(&self, identity: Identity) -> Client {
        Client::new(self.address, &self.authority_pem, identity)
    }

    /// Returns a client of another server with the same certificates.
    pub(crate) fn client_of(&self, address: SocketAddr, identity: Identity) -> Client {
        Client::new(address, &self.authority_pem, identity)
    }

    /// Issues a client certificate of the cluster's CA.
    pub(crate) fn user(&self, name: &str, group: &str) -> Identity {
        let leaf = Leaf::new(name, Purpose::Call).organization(group);
        // Every client has its own files.
        let number = self.clients.fetch_add(1, Ordering::Relaxed);
        Identity::Certificate(self.files().issue(&self.authority, &format!("client-{number}"), &leaf))
    }

    pub(crate) fn phase(&self) -> String {
        let client =
            self.client(Identity::None).protocol(landfall_gateway::OWN_PROTOCOL).bearer(GATHER_TOKEN);
        let answer = client.get(&self.runtime, "/bootstrap/identity");
        answer.json()["phase"].as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    pub(crate) fn wait_for_phase(&self, phase: &str) {
        landfall_testkit::eventually(&format!("phase {phase}"), LIMIT, || {
            (self.phase() == phase).then_some(())
        })
        .unwrap();
    }

    /// Returns the metrics page of the admin port.
    pub(crate) fn metrics(&self) -> String {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect(self.admin).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    }

    /// Requests the gateway's shutdown but keeps its collector.
    pub(crate) fn ask_to_stop(&mut self) {
        self.stops.pop();
    }

    /// Stops the gateway and waits for its end.
    pub(crate) fn stop(&mut self) {
        self.stops.clear();
        if let Some(serving) = self.serving.take() {
            self.runtime.block_on(async { tokio::time::timeout(LIMIT, serving).await }).unwrap().unwrap();
        }
    }
}

fn config(
    home: &Path,
    folder: &Path,
    serving: CertificateFiles,
    front: CertificateFiles,
    local: SocketAddr,
    kubeconfig: Option<PathBuf>,
) -> Config {
    Config {
        listen: vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)],
        mode: Mode::Intercept,
        readiness: Readiness::Hold,
        root: folder.join("root"),
        serving: vec![serving],
        client_authority: home.join("ca.crt"),
        front_proxy: Some(FrontProxy {
            pair: front,
            authority: home.join("front-proxy-ca.crt"),
            username_headers: vec!["X-Remote-User".to_owned()],
            group_headers: vec!["X-Remote-Group".to_owned()],
            extra_header_prefixes: vec!["X-Remote-Extra-".to_owned()],
        }),
        upstream: Upstream {
            local,
            permanent: Vec::new(),
            authority: home.join("ca.crt"),
            name: "kubernetes.default.svc".to_owned(),
        },
        kubeconfig,
        gather_token: Some(folder.join("gather-token")),
        access: AccessSettings::default(),
        collector: Collector::Socket(folder.join("collector.sock")),
        proxy_protocol_from: Vec::new(),
        redirect: None,
        tunnel: Tunnel { networks: Vec::new(), ports: vec![22], max_tunnels: 4 },
        ssh: None,
        admin: Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), free_port().unwrap())),
        audit_log: Some(folder.join("audit.log")),
        max_connections: 1000,
        threads: 2,
        patience: Patience::default(),
        finished_markers: vec![folder.join("finished")],
    }
}
