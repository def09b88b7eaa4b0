//! A real OCI registry (the distribution project's) over TLS, with a password.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use landfall_pki::{Authority, Leaf, Purpose};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::{Need, Process, free_port};

const START_LIMIT: Duration = Duration::from_mins(1);
/// bcrypt of [`Registry::PASSWORD`].
const HTPASSWD: &str = "pilot:$2b$04$7ulD7DH6ZB2zNJtWqQYaj.pa8dTM/nCU5T6XeG2SK1V3aQ2mUOqN6\n";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// A registry that runs until dropped.
#[derive(Debug)]
pub struct Registry {
    host: String,
    authority: String,
    directory: TempDir,
    _process: Process,
}

// === impl Registry ===

impl Registry {
    pub const NEEDS: &'static [Need] = &[Need::Program("docker-registry"), Need::Program("curl")];
    pub const USER: &'static str = "pilot";
    pub const PASSWORD: &'static str = "sea-and-shore-1";

    /// Serves at all addresses, with a certificate for this one.
    pub fn start(address: Ipv4Addr) -> Result<Self> {
        let directory = tempfile::tempdir().context("make a folder for a registry")?;
        let path = |name: &str| directory.path().join(name);
        let authority = Authority::new("registry authority", 7)?;
        let names = [address.to_string(), IpAddr::from(Ipv4Addr::LOCALHOST).to_string()];
        let pair = authority.issue(&Leaf::new("registry", Purpose::Serve).names(names))?;
        std::fs::write(path("tls.crt"), &pair.certificate)?;
        std::fs::write(path("tls.key"), pair.key.expose())?;
        std::fs::write(path("ca.crt"), authority.certificate())?;
        std::fs::write(path("htpasswd"), HTPASSWD)?;
        let port = free_port()?;
        let config = json!({
            "version": "0.1",
            "storage": {"filesystem": {"rootdirectory": path("data")}},
            "http": {"addr": format!("0.0.0.0:{port}"), "tls": {"certificate": path("tls.crt"), "key": path("tls.key")}},
            "auth": {"htpasswd": {"realm": "registry", "path": path("htpasswd")}},
        });
        // JSON is YAML.
        std::fs::write(path("config.yml"), config.to_string())?;
        let program = Path::new("/usr/bin/docker-registry");
        let mut process = Process::start("registry", program, directory.path(), |command| {
            command.arg("serve").arg(path("config.yml"));
        })?;
        let host = format!("{address}:{port}");
        process.wait_until("the registry to answer", START_LIMIT, || {
            std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
        })?;
        Ok(Self { host, authority: authority.certificate().to_owned(), directory, _process: process })
    }

    /// Returns `address:port`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the CA certificate that clients must trust.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns a `config.json` with this password.
    pub fn auth(&self, password: &str) -> String {
        let entry = json!({"username": Self::USER, "password": password});
        json!({"auths": {self.host.as_str(): entry}}).to_string()
    }

    /// Pushes an image with one layer (a tar) to a repository and returns its digest, `sha256:…`.
    pub fn push(&self, repository: &str, layer: &[u8]) -> Result<String> {
        let config = json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [digest(layer)]}});
        let config = config.to_string().into_bytes();
        for blob in [layer, &config] {
            let begun = self.curl(
                &["-X", "POST", "-D", "-", "-o", "/dev/null"],
                &format!("{repository}/blobs/uploads/"),
                b"",
            )?;
            let location = begun.lines().filter_map(|line| line.split_once(": "));
            let location = location.into_iter().find(|(name, _)| name.eq_ignore_ascii_case("location"));
            let location = location.map(|(_, value)| value);
            let location = location.context("the registry names a place for an upload")?.trim();
            let path = location.split_once("/v2/").context("a place below /v2/")?.1;
            let separator = if path.contains('?') { '&' } else { '?' };
            let target = format!("{path}{separator}digest={}", digest(blob));
            self.curl(
                &["-X", "PUT", "--data-binary", "@-", "-H", "content-type: application/octet-stream"],
                &target,
                blob,
            )?;
        }
        let describe = |kind: &str, bytes: &[u8]| json!({"mediaType": kind, "size": bytes.len(), "digest": digest(bytes)});
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": describe(CONFIG, &config), "layers": [describe(LAYER, layer)]});
        let manifest = manifest.to_string().into_bytes();
        let name = digest(&manifest);
        let kind = format!("content-type: {MANIFEST}");
        self.curl(
            &["-X", "PUT", "--data-binary", "@-", "-H", &kind],
            &format!("{repository}/manifests/{name}"),
            &manifest,
        )?;
        Ok(name)
    }

    fn curl(&self, arguments: &[&str], path: &str, body: &[u8]) -> Result<String> {
        let port = self.host.rsplit(':').next().unwrap_or_default();
        let mut child = Command::new("curl")
            .args(["--silent", "--show-error", "--fail", "--noproxy", "*", "--max-time", "120", "--cacert"])
            .arg(self.directory.path().join("ca.crt"))
            .args(["--user", &format!("{}:{}", Self::USER, Self::PASSWORD)])
            .args(arguments)
            .arg(format!("https://127.0.0.1:{port}/v2/{path}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("run `curl`")?;
        let mut stdin = child.stdin.take().context("a way to `curl`")?;
        // A request without a body may complete before the write.
        let _ = stdin.write_all(body);
        drop(stdin);
        let output = child.wait_with_output().context("wait for `curl`")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{path}: {}", errors.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}
