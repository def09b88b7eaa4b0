use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use landfall_model::Secret;
use landfall_pki::{Authority, KeyedCertificate, Leaf, Purpose, signing_key};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::{Binary, Need, Process, free_port};

const START_LIMIT: Duration = Duration::from_secs(60);
/// The first address of the default service range: `kubernetes.default`.
const SERVICE_ADDRESS: &str = "10.96.0.1";

/// Options for starting an API server.
#[derive(Clone, Debug)]
pub struct ApiServerSpec {
    /// Address at which clients reach it; it listens on all addresses.
    pub address: IpAddr,
    /// Additional names in its certificate.
    pub names: Vec<String>,
    /// Additional flags; the last of repeated flags takes precedence.
    pub arguments: Vec<String>,
}

/// A real kube-apiserver with its own etcd, CAs and administrator.
#[expect(missing_debug_implementations, reason = "holds private keys")]
pub struct ApiServer {
    // Fields drop in this order: the server ends before its store, and the directory is removed last.
    server: Process,
    _etcd: Process,
    address: IpAddr,
    port: u16,
    authority: Authority,
    front_proxy: Authority,
    /// Its flags, without the port.
    arguments: Vec<String>,
    directory: TempDir,
}

/// Another API server of a cluster: the same store and CAs, another port.
#[derive(Debug)]
pub struct Sibling {
    server: Process,
    port: u16,
    admin: PathBuf,
}

// === impl ApiServerSpec ===

impl Default for ApiServerSpec {
    fn default() -> Self {
        Self { address: IpAddr::V4(Ipv4Addr::LOCALHOST), names: Vec::new(), arguments: Vec::new() }
    }
}

// === impl ApiServer ===

impl ApiServer {
    pub const NEEDS: &'static [Need] =
        &[Need::Program("etcd"), Need::Built(Binary::KubeApiserver), Need::Built(Binary::Kubectl)];

    pub fn start() -> Result<Self> {
        Self::start_with(&ApiServerSpec::default())
    }

    pub fn start_with(spec: &ApiServerSpec) -> Result<Self> {
        let directory =
            tempfile::Builder::new().prefix("landfall-api-").tempdir().context("make a folder")?;
        let home = directory.path();
        let authority = Authority::new("kubernetes", 30)?;
        let front_proxy = Authority::new("front-proxy", 30)?;
        std::fs::write(home.join("ca.crt"), authority.certificate())?;
        std::fs::write(home.join("front-proxy-ca.crt"), front_proxy.certificate())?;
        write_secret(&home.join("ca.key"), authority.key())?;

        let (etcd, etcd_port) = start_etcd(home, spec.address)?;

        let mut names: Vec<String> =
            ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
                .map(String::from)
                .into_iter()
                .chain([SERVICE_ADDRESS.to_owned(), "127.0.0.1".to_owned(), spec.address.to_string()])
                .chain(spec.names.iter().cloned())
                .collect();
        names.dedup();
        let serving = Leaf::new("kube-apiserver", Purpose::Serve).names(names);
        write_pair(home, "apiserver", &authority.issue(&serving)?)?;
        let kubelet_client = Leaf::new("kube-apiserver", Purpose::Call).organization("system:masters");
        write_pair(home, "kubelet-client", &authority.issue(&kubelet_client)?)?;
        write_pair(
            home,
            "front-proxy",
            &front_proxy.issue(&Leaf::new("front-proxy-client", Purpose::Call))?,
        )?;
        let admin = Leaf::new("admin", Purpose::Call).organization("system:masters");
        write_pair(home, "admin", &authority.issue(&admin)?)?;
        let (key, public) = signing_key()?;
        write_secret(&home.join("service-account.key"), &key)?;
        std::fs::write(home.join("service-account.pub"), public)?;

        let port = free_port()?;
        let url = format!("https://{}:{port}", bracketed(spec.address));
        std::fs::write(home.join("admin.kubeconfig"), kubeconfig(home, &url, "admin"))?;
        let file = |name: &str| home.join(name).display().to_string();
        let mut arguments = vec![
            "--bind-address=0.0.0.0".to_owned(),
            format!("--advertise-address={}", spec.address),
            format!("--etcd-servers=https://{}:{etcd_port}", bracketed(spec.address)),
            format!("--etcd-cafile={}", file("etcd-ca.crt")),
            format!("--etcd-certfile={}", file("etcd-client.crt")),
            format!("--etcd-keyfile={}", file("etcd-client.key")),
            format!("--tls-cert-file={}", file("apiserver.crt")),
            format!("--tls-private-key-file={}", file("apiserver.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--kubelet-certificate-authority={}", file("ca.crt")),
            format!("--kubelet-client-certificate={}", file("kubelet-client.crt")),
            format!("--kubelet-client-key={}", file("kubelet-client.key")),
            format!("--requestheader-client-ca-file={}", file("front-proxy-ca.crt")),
            "--requestheader-allowed-names=front-proxy-client".to_owned(),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            format!("--proxy-client-cert-file={}", file("front-proxy.crt")),
            format!("--proxy-client-key-file={}", file("front-proxy.key")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-signing-key-file={}", file("service-account.key")),
            format!("--service-account-key-file={}", file("service-account.pub")),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            "--enable-bootstrap-token-auth".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--shutdown-delay-duration=0s".to_owned(),
        ];
        arguments.extend(spec.arguments.iter().cloned());
        let program = Binary::KubeApiserver.path()?;
        let admin = home.join("admin.kubeconfig");
        let server = start_server(&program, "kube-apiserver", home, port, &arguments, &admin)?;
        let address = spec.address;
        Ok(Self { server, _etcd: etcd, address, port, authority, front_proxy, arguments, directory })
    }

    /// Starts another API server of the same cluster.
    pub fn sibling(&self) -> Result<Sibling> {
        self.sibling_with(&[])
    }

    /// Starts another API server of the same cluster with a different version, as during an upgrade.
    ///
    /// It runs a copy of the binary with the version string replaced by one of the same length.
    pub fn sibling_with_version(&self, version: &str, instead: &str) -> Result<Sibling> {
        ensure!(version.len() == instead.len(), "`{version}` is not as long as `{instead}`");
        let mut program = std::fs::read(Binary::KubeApiserver.path()?).context("read the API server")?;
        let mut found = 0;
        let mut at = 0;
        while let Some(next) = memchr::memmem::find(&program[at..], instead.as_bytes()) {
            at += next;
            program[at..at + version.len()].copy_from_slice(version.as_bytes());
            found += 1;
        }
        ensure!(found > 0, "the API server is not `{instead}`");
        let path = self.directory().join("kube-apiserver-other");
        std::fs::write(&path, program).context("write the other API server")?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        self.sibling_of(&path, self.address, &[])
    }

    /// Like [`Self::sibling`], with additional flags; the last of repeated flags takes precedence.
    pub fn sibling_with(&self, further: &[String]) -> Result<Sibling> {
        self.sibling_of(&Binary::KubeApiserver.path()?, self.address, further)
    }

    /// Like [`Self::sibling_with`], on another machine at `address` that uses this server's store over the
    /// network. The certificate must include the address: [`ApiServerSpec::names`].
    pub fn sibling_at(&self, address: IpAddr, further: &[String]) -> Result<Sibling> {
        let advertised = format!("--advertise-address={address}");
        self.sibling_of(&Binary::KubeApiserver.path()?, address, &[&[advertised], further].concat())
    }

    fn sibling_of(&self, program: &Path, address: IpAddr, further: &[String]) -> Result<Sibling> {
        let (home, port) = (self.directory(), free_port()?);
        let name = format!("kube-apiserver-{port}");
        let admin = home.join(format!("admin-{port}.kubeconfig"));
        let url = format!("https://{}:{port}", bracketed(address));
        std::fs::write(&admin, kubeconfig(home, &url, "admin"))?;
        let arguments = [self.arguments.as_slice(), further].concat();
        let server = start_server(program, &name, home, port, &arguments, &admin)?;
        Ok(Sibling { server, port, admin })
    }

    pub fn url(&self) -> String {
        format!("https://{}:{}", bracketed(self.address), self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the CA that signs the cluster's clients and servers.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Returns the CA whose clients may set other users (`X-Remote-User`).
    pub fn front_proxy(&self) -> &Authority {
        &self.front_proxy
    }

    /// Returns the directory with certificates, keys, kubeconfigs and logs.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.directory.path().join("admin.kubeconfig")
    }

    pub fn process(&self) -> &Process {
        &self.server
    }

    /// Runs `kubectl` as the administrator and returns its output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        kubectl_output(&self.admin_kubeconfig(), arguments, None)
    }

    /// Applies a manifest like `kubectl apply -f -`.
    pub fn apply(&self, manifest: &Value) -> Result<String> {
        kubectl_output(&self.admin_kubeconfig(), &["apply", "-f", "-"], Some(manifest.to_string()))
    }

    /// Simulates the kubelet of a node that reports ready in this boot.
    pub fn report_ready(&self, node: &str, boot_id: &str) -> Result<()> {
        // All fields are required, but most are not used.
        let names = [
            "architecture",
            "containerRuntimeVersion",
            "kernelVersion",
            "kubeProxyVersion",
            "kubeletVersion",
            "machineID",
            "operatingSystem",
            "osImage",
            "systemUUID",
        ];
        let mut info: Map<String, Value> =
            names.iter().map(|name| ((*name).to_owned(), json!("x"))).collect();
        info.insert("bootID".to_owned(), json!(boot_id));
        let ready = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}]);
        let patch = json!({"status": {"conditions": ready, "nodeInfo": info}}).to_string();
        self.kubectl(&["patch", "node", node, "--subresource=status", "--type=strategic", "-p", &patch])?;
        Ok(())
    }

    /// Writes a kubeconfig with a separate certificate for `user` and returns its path.
    pub fn kubeconfig_for(&self, user: &str, group: &str) -> Result<PathBuf> {
        let name: String = user.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let leaf = Leaf::new(user, Purpose::Call).organization(group);
        write_pair(self.directory(), &name, &self.authority.issue(&leaf)?)?;
        let path = self.directory().join(format!("{name}.kubeconfig"));
        std::fs::write(&path, kubeconfig(self.directory(), &self.url(), &name))?;
        Ok(path)
    }
}

// === impl Sibling ===

impl Sibling {
    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn process(&self) -> &Process {
        &self.server
    }

    /// Runs `kubectl` as the administrator through this server.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        kubectl_output(&self.admin, arguments, None)
    }
}

fn start_server(
    program: &Path,
    name: &str,
    home: &Path,
    port: u16,
    arguments: &[String],
    admin: &Path,
) -> Result<Process> {
    let mut server = Process::start(name, program, home, |command| {
        command.arg(format!("--secure-port={port}")).args(arguments);
    })?;
    server.wait_until("the API server to be ready", START_LIMIT, || {
        kubectl_output(admin, &["get", "--raw", "/readyz"], None).is_ok().then_some(())
    })?;
    Ok(server)
}

/// Starts etcd without fsync, because a test's store need not survive a crash of the machine.
///
/// Other machines reach it at the server's address.
fn start_etcd(home: &Path, address: IpAddr) -> Result<(Process, u16)> {
    let authority = Authority::new("etcd", 30)?;
    std::fs::write(home.join("etcd-ca.crt"), authority.certificate())?;
    write_pair(
        home,
        "etcd",
        &authority.issue(&Leaf::new("etcd", Purpose::Peer).names([
            "127.0.0.1",
            "localhost",
            &address.to_string(),
        ]))?,
    )?;
    write_pair(home, "etcd-client", &authority.issue(&Leaf::new("kube-apiserver", Purpose::Call))?)?;
    let (port, peer_port) = (free_port()?, free_port()?);
    let (url, peer_url) =
        (format!("https://{}:{port}", bracketed(address)), format!("http://127.0.0.1:{peer_port}"));
    let mut etcd = Process::start("etcd", Path::new("etcd"), home, |command| {
        let file = |name: &str| home.join(name);
        command
            .arg("--data-dir")
            .arg(file("etcd"))
            .args(["--name", "test", "--unsafe-no-fsync", "--client-cert-auth"])
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &format!("test={peer_url}")])
            .arg("--trusted-ca-file")
            .arg(file("etcd-ca.crt"))
            .arg("--cert-file")
            .arg(file("etcd.crt"))
            .arg("--key-file")
            .arg(file("etcd.key"));
    })?;
    etcd.wait_until("etcd to listen", START_LIMIT, || std::net::TcpStream::connect((address, port)).ok())?;
    Ok((etcd, port))
}

fn kubectl_output(kubeconfig: &Path, arguments: &[&str], input: Option<String>) -> Result<String> {
    let mut child = Command::new(Binary::Kubectl.path()?)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--request-timeout=30s")
        // Keeps the cache out of the user's home directory.
        .arg("--cache-dir")
        .arg(kubeconfig.with_file_name("kubectl-cache"))
        .args(arguments)
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start kubectl")?;
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        stdin.write_all(input.as_bytes()).context("write to kubectl")?;
    }
    let output = child.wait_with_output().context("wait for kubectl")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "kubectl {}: {}", arguments.join(" "), errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns a kubeconfig with the certificate files of `user` in `home`.
fn kubeconfig(home: &Path, url: &str, user: &str) -> String {
    let file = |name: String| home.join(name).display().to_string();
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": file("ca.crt".into())}}],
        "users": [{"name": user, "user": {
            "client-certificate": file(format!("{user}.crt")),
            "client-key": file(format!("{user}.key")),
        }}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        "current-context": "test",
    })
    .to_string()
}

fn write_pair(home: &Path, name: &str, pair: &KeyedCertificate) -> Result<()> {
    std::fs::write(home.join(format!("{name}.crt")), &pair.certificate)?;
    write_secret(&home.join(format!("{name}.key")), &pair.key)
}

fn write_secret(path: &Path, secret: &Secret<String>) -> Result<()> {
    std::fs::write(path, secret.expose()).with_context(|| format!("write `{}`", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(())
}

fn bracketed(address: IpAddr) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = if address.is_ipv6() { write!(text, "[{address}]") } else { write!(text, "{address}") };
    text
}
