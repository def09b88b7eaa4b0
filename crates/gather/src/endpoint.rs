use std::fmt;
use std::str::FromStr;

use landfall_cluster::{Credentials, Identity};
use landfall_model::Secret;

use crate::Error;

/// kube-apiserver's port, for URLs without one.
const DEFAULT_PORT: u16 = 6443;

/// Maximum length of a DNS host name.
const MAX_HOST: usize = 253;

/// The API endpoint of a cluster: `https://api.example.com:6443`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
}

/// Credentials and trust for an endpoint.
#[expect(missing_debug_implementations, reason = "holds credentials")]
#[derive(Default)]
pub struct Access {
    /// CA certificates (PEM). Default: the CAs that the host trusts.
    pub authority: Option<Vec<u8>>,
    /// The name to verify the server's certificate for, if it is not the endpoint's.
    pub server_name: Option<String>,
    pub skip_verification: bool,
    pub identity: Option<Identity>,
    pub token: Option<Secret<String>>,
    /// `http://proxy:3128`. Default: the proxy of the environment.
    pub proxy: Option<String>,
}

// === impl Endpoint ===

impl Endpoint {
    /// Returns the host, without the brackets of an IPv6 address.
    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns `host:port`, with brackets where necessary.
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    /// Parses a URL with or without the path `/bootstrap`, or `host:port`.
    fn from_str(text: &str) -> Result<Self, Error> {
        // The part before an `@` may contain a password and must not appear in errors.
        let shown = text.rsplit_once('@').map_or(text, |(_, rest)| rest);
        let bad = |why: &'static str| Error::Url { url: shown.to_owned(), why };
        if text.starts_with("http://") {
            return Err(bad("the API endpoint speaks TLS: write https://"));
        }
        let rest = text.strip_prefix("https://").unwrap_or(text);
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !matches!(path.trim_end_matches('/'), "" | "bootstrap") {
            return Err(bad("only the endpoint is wanted, without a path"));
        }
        if authority.contains('@') {
            return Err(bad("credentials do not belong into a URL"));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(|| bad("a bracket is not closed"))?;
                (host, port.strip_prefix(':').filter(|port| !port.is_empty()))
            }
            None => match authority.rsplit_once(':') {
                Some((host, _)) if host.contains(':') => {
                    return Err(bad("an IPv6 address needs brackets"));
                }
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let port = match port {
            Some(port) => {
                port.parse().ok().filter(|port| *port > 0).ok_or_else(|| bad("its port is invalid"))?
            }
            None => DEFAULT_PORT,
        };
        let plain = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte));
        if host.is_empty() || host.len() > MAX_HOST || !plain {
            return Err(bad("its host name is invalid"));
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}", self.authority())
    }
}

// === impl Access ===

impl From<Credentials> for Access {
    fn from(credentials: Credentials) -> Self {
        Self {
            authority: credentials.authority,
            server_name: credentials.server_name,
            skip_verification: credentials.skip_verification,
            identity: credentials.identity,
            token: credentials.token,
            proxy: credentials.proxy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_users_write_them() {
        for (text, shown) in [
            ("https://api.example.com", "https://api.example.com:6443"),
            ("https://api.example.com:6443/", "https://api.example.com:6443"),
            ("https://api.example.com:6443/bootstrap", "https://api.example.com:6443"),
            ("api.example.com:8443", "https://api.example.com:8443"),
            ("https://[fd00::1]", "https://[fd00::1]:6443"),
            ("[fd00::1]:7443", "https://[fd00::1]:7443"),
            ("192.0.2.7", "https://192.0.2.7:6443"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), shown, "{text}");
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused() {
        for text in [
            "",
            "https://",
            "http://api:6443",
            "https://api:0",
            "https://api:port",
            "https://api/version",
            "fd00::1",
            "https://[fd00::1",
            "https://me:secret@api",
            "https://a b",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
