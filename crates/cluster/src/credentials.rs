use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use kube::config::{AuthInfo, Cluster as NamedCluster, Kubeconfig};
use landfall_model::Secret;
use secrecy::ExposeSecret;

use crate::Error;

/// The connection settings of a kubeconfig's current context. They are for callers that connect to the
/// endpoint themselves, before its API server runs.
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Credentials {
    /// URL as written, `https://api.example.com:6443`.
    pub server: Option<String>,
    /// The expected name in the server's certificate, if it is not the URL's host.
    pub server_name: Option<String>,
    /// CA certificates (PEM).
    pub authority: Option<Vec<u8>>,
    pub skip_verification: bool,
    pub proxy: Option<String>,
    pub identity: Option<Identity>,
    pub token: Option<Secret<String>>,
}

/// A client certificate and its key (PEM).
#[expect(missing_debug_implementations, reason = "holds a private key")]
pub struct Identity {
    pub certificate: Vec<u8>,
    pub key: Secret<Vec<u8>>,
}

// === impl Credentials ===

impl Credentials {
    /// Reads one file, or without one `KUBECONFIG` and `~/.kube/config`, merged as in kubectl.
    pub fn from_kubeconfig(path: Option<&Path>) -> Result<Self, Error> {
        let shown = || path.map_or_else(|| "that kubectl would use".into(), Path::to_owned);
        let failed = |source| Error::Kubeconfig { path: shown(), source };
        let kubeconfig = match path {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
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
        String::from_utf8(bytes).map_err(|_| Error::CredentialData { what: "a token file is not text" })?;
    Ok(Some(Secret::new(text.trim().to_owned())))
}

/// Returns the inline data or the file's content. Inline data takes precedence, as in kubectl.
fn data_or_file(data: Option<&str>, file: Option<&str>) -> Result<Option<Vec<u8>>, Error> {
    if let Some(data) = data.filter(|data| !data.is_empty()) {
        let decoded = BASE64.decode(data.trim());
        return decoded
            .map(Some)
            .map_err(|_| Error::CredentialData { what: "certificate data is not Base64" });
    }
    file.filter(|file| !file.is_empty()).map(read).transpose()
}

fn read(file: &str) -> Result<Vec<u8>, Error> {
    std::fs::read(file).map_err(|source| Error::CredentialFile { path: file.into(), source })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kube::config::KubeconfigError;

    use super::*;

    #[test]
    fn files_are_found_from_where_the_kubeconfig_lies() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        fs::write(
            &path,
            "clusters:\n- name: a\n  cluster: {server: 'https://a:6443', certificate-authority: ca.crt}\n\
             users:\n- name: u\n  user: {client-certificate: /etc/u.crt, client-key: keys/u.key, tokenFile: t,\n\
             \x20   exec: {command: aws}}\n- name: v\n  user: {exec: {command: bin/login}}\n\
             contexts: null\n---\ncurrent-context: c\nclusters:\n- name: a\n  cluster: {server: 'https://b:6443'}\n---\n",
        )
        .unwrap();
        let read = Kubeconfig::read_from(&path).unwrap();
        let here = |name: &str| Some(folder.path().join(name).display().to_string());
        assert_eq!(read.clusters.len(), 1, "the first of a name wins");
        let cluster = read.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://a:6443"));
        assert_eq!(cluster.certificate_authority, here("ca.crt"));
        let users: Vec<_> = read.auth_infos.iter().map(|user| user.auth_info.as_ref().unwrap()).collect();
        assert_eq!(users[0].client_certificate.as_deref(), Some("/etc/u.crt"));
        assert_eq!(
            (users[0].client_key.clone(), users[0].token_file.clone()),
            (here("keys/u.key"), here("t"))
        );
        let commands: Vec<_> = users.iter().map(|user| user.exec.as_ref().unwrap().command.clone()).collect();
        assert_eq!(commands, [Some("aws".to_owned()), here("bin/login")]);
        assert_eq!(read.current_context.as_deref(), Some("c"));
    }

    #[test]
    fn what_is_wrong_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        for (text, told) in
            [("clusters: [", ""), ("clusters: 7", "line 1 column 11"), ("- a\n", "line 1 column 1")]
        {
            fs::write(&path, text).unwrap();
            let error = Kubeconfig::read_from(&path).unwrap_err();
            assert!(matches!(error, KubeconfigError::Parse(_)), "{text}: {error}");
            assert!(error.to_string().contains(told), "{text}: {error}");
        }
        fs::write(&path, "").unwrap();
        assert!(Kubeconfig::read_from(&path).unwrap().current_context.is_none());
        assert!(matches!(
            Kubeconfig::read_from(folder.path().join("none")),
            Err(KubeconfigError::ReadConfig(..))
        ));
    }
}
