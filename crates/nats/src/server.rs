//! Where a server is, as users write it.

use std::fmt;
use std::str::FromStr;

const PORT: u16 = 4222;

/// `tls://HOST[:PORT]`, or `nats://` to this machine itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub host: String,
    pub port: u16,
    pub encrypted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no address of a NATS server: `tls://HOST[:PORT]`, or `nats://` to this machine itself")]
pub struct InvalidServer(String);

// === impl Server ===

impl FromStr for Server {
    type Err = InvalidServer;

    fn from_str(text: &str) -> Result<Self, InvalidServer> {
        let invalid = || InvalidServer(text.to_owned());
        let (scheme, place) = text.split_once("://").ok_or_else(invalid)?;
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| invalid())?),
            _ => (place, PORT),
        };
        let host = host.trim_matches(['[', ']']).to_owned();
        let encrypted = match scheme {
            "tls" => true,
            // A password in the clear is anybody's.
            "nats" if ["localhost", "127.0.0.1", "::1"].contains(&host.as_str()) => false,
            _ => return Err(invalid()),
        };
        if host.is_empty() { Err(invalid()) } else { Ok(Self { host, port, encrypted }) }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Names of letters, digits, `-` and `_`, with dots between them: no wildcard, nothing that could end a line.
pub fn is_subject(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    text.split('.').all(|part| !part.is_empty() && part.bytes().all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_encrypted_unless_it_is_this_machine() {
        for (text, shown, encrypted) in [
            ("tls://nats.corp", "nats.corp:4222", true),
            ("tls://[fd00::1]:99", "fd00::1:99", true),
            ("nats://127.0.0.1:99", "127.0.0.1:99", false),
        ] {
            let server: Server = text.parse().unwrap();
            assert_eq!((server.to_string().as_str(), server.encrypted), (shown, encrypted));
        }
        for bad in ["", "nats.corp", "nats://nats.corp", "tls://", "tls://h:x", "https://h"] {
            assert!(bad.parse::<Server>().is_err(), "{bad}");
        }
        assert!(is_subject("a.b-c.d_1"));
        for bad in ["", "a.", "a..b", "a.*", ">", "a b", "a\r\nPUB x 0"] {
            assert!(!is_subject(bad), "{bad}");
        }
    }
}
