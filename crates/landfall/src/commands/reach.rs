//! Access to an API endpoint: the arguments that the operator's commands share.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use landfall_cluster::{Credentials, Identity};
use landfall_gather::{Access, Endpoint};
use landfall_model::{Secret, chain};

use crate::exit::{Exit, Failure};
use crate::output;

const CREDENTIALS: &str = "Credentials";

#[derive(Args)]
pub(crate) struct Reach {
    /// Where server and credentials are taken from [default: as kubectl: KUBECONFIG, ~/.kube/config]
    #[arg(long, value_name = "FILE", help_heading = CREDENTIALS)]
    kubeconfig: Option<PathBuf>,

    /// Trust these authorities (PEM) instead of the kubeconfig's
    #[arg(long, value_name = "FILE", help_heading = CREDENTIALS)]
    certificate_authority: Option<PathBuf>,

    /// Client certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "client_key", help_heading = CREDENTIALS)]
    client_certificate: Option<PathBuf>,

    /// The key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "client_certificate", help_heading = CREDENTIALS)]
    client_key: Option<PathBuf>,

    /// File with a bearer token, or the gather token of the bootstrap machine
    #[arg(long, value_name = "FILE", help_heading = CREDENTIALS)]
    token_file: Option<PathBuf>,

    /// Check the endpoint's certificate for this name instead of the URL's
    #[arg(long, value_name = "NAME", help_heading = CREDENTIALS)]
    tls_server_name: Option<String>,

    /// Skip verification of the server certificate. A man in the middle can read the token
    #[arg(long, help_heading = CREDENTIALS)]
    insecure_skip_tls_verify: bool,
}

// === impl Reach ===

impl Reach {
    /// Returns the endpoint of this URL or of the kubeconfig, with the credentials for it.
    pub(crate) fn resolve(&self, url: Option<&str>) -> Result<(Endpoint, Access), Failure> {
        let explicit = self.client_certificate.is_some() || self.token_file.is_some();
        // The default kubeconfig may be missing when all values are given.
        let credentials = match Credentials::from_kubeconfig(self.kubeconfig.as_deref()) {
            Ok(credentials) => Some(credentials),
            Err(_) if explicit && url.is_some() && self.kubeconfig.is_none() => None,
            Err(error) => {
                let hint = "name one with `--kubeconfig`, or give `--client-certificate` or `--token-file`";
                return Err(Failure::new(error, hint));
            }
        };
        let server = credentials.as_ref().and_then(|credentials| credentials.server.clone());
        let Some(url) = url.map(str::to_owned).or(server) else {
            let error = anyhow::anyhow!("no endpoint: neither a URL nor a kubeconfig with a server");
            return Err(Failure::new(error, "name it: `landfall gather https://api.example.com:6443`"));
        };
        let endpoint: Endpoint = url
            .parse()
            .map_err(|error: landfall_gather::Error| Failure::new(error, "write it as https://HOST:PORT"))?;
        let mut access = credentials.map(Access::from).unwrap_or_default();
        self.override_with_flags(&mut access)?;
        Ok((endpoint, access))
    }

    fn override_with_flags(&self, access: &mut Access) -> Result<(), Failure> {
        if let Some(path) = &self.certificate_authority {
            access.authority = Some(read(path)?);
        }
        if let (Some(certificate), Some(key)) = (&self.client_certificate, &self.client_key) {
            access.identity =
                Some(Identity { certificate: read(certificate)?, key: Secret::new(read(key)?) });
            access.token = None;
        }
        if let Some(path) = &self.token_file {
            let text = String::from_utf8(read(path)?)
                .with_context(|| format!("read the token in `{}`", path.display()))?;
            access.token = Some(Secret::new(text.trim().to_owned()));
            if self.client_certificate.is_none() {
                // The gateway would use the certificate rather than the token, as API servers do.
                access.identity = None;
            }
        }
        if self.tls_server_name.is_some() {
            access.server_name.clone_from(&self.tls_server_name);
        }
        access.skip_verification |= self.insecure_skip_tls_verify;
        Ok(())
    }

    /// Returns the same arguments for another process of this binary. Secrets stay in their files.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let files = [
            ("--kubeconfig", &self.kubeconfig),
            ("--certificate-authority", &self.certificate_authority),
            ("--client-certificate", &self.client_certificate),
            ("--client-key", &self.client_key),
            ("--token-file", &self.token_file),
        ];
        for (flag, path) in files {
            if let Some(path) = path {
                arguments.extend([flag.into(), path.clone().into()]);
            }
        }
        if let Some(name) = &self.tls_server_name {
            arguments.extend(["--tls-server-name".into(), name.into()]);
        }
        if self.insecure_skip_tls_verify {
            arguments.push("--insecure-skip-tls-verify".into());
        }
        arguments
    }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let bytes = std::fs::read(path).with_context(|| format!("read `{}`", path.display()));
    bytes.map_err(|error| Failure::new(error, "check the path and your right to read it"))
}

/// Reports why the command is waiting for an endpoint.
pub(crate) fn tell_no_answer(error: &landfall_gather::Error) {
    output::say(&format!("no answer yet ({}); trying on", chain(error)));
}

/// Adds a hint to a connection failure.
pub(crate) fn explain(error: landfall_gather::Error) -> Failure {
    use landfall_gather::Error;
    use landfall_net::http::HttpError;
    let hint = match &error {
        Error::Tunnel { .. } => {
            "allow the node with `tunnel.networks` in the gateway's settings, and be allowed `get` on /bootstrap/tunnel"
        }
        Error::Refused { status: 503, .. } => {
            "tokens cannot be verified without an API server: use a client certificate or the gather token"
        }
        Error::Credentials { .. } => "check the files of `--client-certificate`, `--client-key` and the rest",
        _ if error.is_denied() => {
            "come as a member of system:masters, or be allowed `get` on the path /bootstrap, or use the gather token"
        }
        Error::NotFound { .. } => {
            "is `landfall gateway` running on the bootstrap machine, and does the load balancer still send to it?"
        }
        Error::Http(HttpError::Tls { .. }) => {
            "name the authority with `--certificate-authority`, or the right name with `--tls-server-name`"
        }
        Error::Proxy { .. } | Error::Http(HttpError::Proxy { .. }) => "check HTTPS_PROXY and NO_PROXY",
        Error::Http(HttpError::Unreachable { .. } | HttpError::Late { .. }) => {
            "check the address, DNS, and the proxy settings of this shell"
        }
        Error::Agent { .. } => "look at the agent's log on the node",
        Error::Write { .. } => "name a file in a folder you may write to with `-o`",
        Error::Ssh { .. } => "install the OpenSSH client",
        _ => "run again with `-v` to see more",
    };
    failed(error, hint)
}

/// Returns a failure with the exit code of its kind.
pub(crate) fn failed(error: landfall_gather::Error, hint: &'static str) -> Failure {
    let exit = match (error.is_denied(), error.is_unavailable()) {
        (true, _) => Exit::NotPermitted,
        (_, true) => Exit::Unavailable,
        _ => Exit::Failed,
    };
    Failure::new(error, hint).exit(exit)
}
