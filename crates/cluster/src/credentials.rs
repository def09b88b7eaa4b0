use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use kube::config::{AuthInfo, Cluster as NamedCluster};
use landfall_model::Secret;
use secrecy::ExposeSecret;

use crate::{Error, kubeconfig};

/// What a kubeconfig's current context says about reaching an API server: for those who speak to the endpoint
/// themselves, before there is an API server behind it.
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Credentials {
    /// As written, `https://api.example.com:6443`.
    pub server: Option<String>,
    /// The name to check the server's certificate for, where it is not the URL's.
    pub server_name: Option<String>,
    /// PEM.
    pub authority: Option<Vec<u8>>,
    pub skip_verification: bool,
    pub proxy: Option<String>,
    pub identity: Option<Identity>,
    pub token: Option<Secret<String>>,
}

/// A client certificate and its key, PEM.
#[expect(missing_debug_implementations, reason = "holds a private key")]
pub struct Identity {
    pub certificate: Vec<u8>,
    pub key: Secret<Vec<u8>>,
}

// === impl Credentials ===

impl Credentials {
    /// Of one file; without one, of `KUBECONFIG` and `~/.kube/config`, merged as kubectl does.
    pub fn from_kubeconfig(path: Option<&Path>) -> Result<Self, Error> {
        let shown = || path.map_or_else(|| "that kubectl would use".into(), Path::to_owned);
        let failed = |source| Error::Kubeconfig { path: shown(), source };
        let kubeconfig = match path {
            Some(path) => kubeconfig::read(path),
            None => kubeconfig::of_kubectl(),
        };
        let kubeconfig = kubeconfig.map_err(failed)?;
        let unusable = |what: &'static str| Error::Context { path: shown(), what };
        let current = kubeconfig.current_context.as_ref().ok_or_else(|| unusable("no current context"))?;
        let context = kubeconfig.contexts.iter().find(|context| &context.name == current);
        let context = context
            .and_then(|context| context.context.as_ref())
            .ok_or_else(|| unusable("its current context does not exist"))?;
        let cluster = kubeconfig.clusters.iter().find(|cluster| cluster.name == context.cluster);
        let cluster = cluster
            .and_then(|cluster| cluster.cluster.as_ref())
            .ok_or_else(|| unusable("the cluster of its current context does not exist"))?;
        let user = kubeconfig.auth_infos.iter().find(|user| Some(&user.name) == context.user.as_ref());
        let user = user.and_then(|user| user.auth_info.clone()).unwrap_or_default();
        if user.exec.is_some() || user.auth_provider.is_some() {
            return Err(unusable("its user is made by a plugin, which cannot be asked here"));
        }
        Ok(Self {
            server: cluster.server.clone(),
            server_name: cluster.tls_server_name.clone(),
            authority: authority(cluster)?,
            skip_verification: cluster.insecure_skip_tls_verify == Some(true),
            proxy: cluster.proxy_url.clone(),
            identity: identity(&user)?,
            token: token(&user)?,
        })
    }
}

fn authority(cluster: &NamedCluster) -> Result<Option<Vec<u8>>, Error> {
    data_or_file(cluster.certificate_authority_data.as_deref(), cluster.certificate_authority.as_deref())
}

fn identity(user: &AuthInfo) -> Result<Option<Identity>, Error> {
    let certificate =
        data_or_file(user.client_certificate_data.as_deref(), user.client_certificate.as_deref())?;
    let key = user.client_key_data.as_ref().map(ExposeSecret::expose_secret);
    let key = data_or_file(key, user.client_key.as_deref())?;
    Ok(certificate.zip(key).map(|(certificate, key)| Identity { certificate, key: Secret::new(key) }))
}

fn token(user: &AuthInfo) -> Result<Option<Secret<String>>, Error> {
    if let Some(token) = &user.token {
        return Ok(Some(Secret::new(token.expose_secret().to_owned())));
    }
    let Some(file) = &user.token_file else { return Ok(None) };
    let bytes = read(file)?;
    let text =
        String::from_utf8(bytes).map_err(|_| Error::CredentialData { what: "a token file is no text" })?;
    Ok(Some(Secret::new(text.trim().to_owned())))
}

/// Data wins over a file, as with kubectl.
fn data_or_file(data: Option<&str>, file: Option<&str>) -> Result<Option<Vec<u8>>, Error> {
    if let Some(data) = data.filter(|data| !data.is_empty()) {
        let decoded = BASE64.decode(data.trim());
        return decoded
            .map(Some)
            .map_err(|_| Error::CredentialData { what: "certificate data is no Base64" });
    }
    file.filter(|file| !file.is_empty()).map(read).transpose()
}

fn read(file: &str) -> Result<Vec<u8>, Error> {
    std::fs::read(file).map_err(|source| Error::CredentialFile { path: file.into(), source })
}
