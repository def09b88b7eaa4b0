//! The address of a server, in the users' notation.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

const PORT: u16 = 4222;

/// `tls://HOST[:PORT]`, or `nats://` for this host only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub host: String,
    pub port: u16,
    pub encrypted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid NATS server `{shown}`: must be `tls://HOST[:PORT]`, or `nats://` to this machine{also}")]
pub struct InvalidServer {
    shown: String,
    also: &'static str,
}

// === impl Server ===

impl FromStr for Server {
    type Err = InvalidServer;

    fn from_str(text: &str) -> Result<Self, InvalidServer> {
        parse(text).ok_or_else(|| match text.rsplit_once('@') {
            // The part before it may contain a password.
            Some((_, place)) => InvalidServer {
                shown: format!("…@{place}"),
                also: "; a user, a password or a token goes into the login file",
            },
            None => InvalidServer { shown: text.to_owned(), also: "" },
        })
    }
}

fn parse(text: &str) -> Option<Server> {
    let (scheme, place) = text.split_once("://")?;
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (place, PORT),
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let host = match host.strip_prefix('[') {
        Some(address) => address.strip_suffix(']').filter(|address| address.parse::<Ipv6Addr>().is_ok())?,
        None if !host.is_empty() && host.bytes().all(is_plain) => host,
        None => return None,
    };
    let encrypted = match scheme {
        "tls" => true,
        // Plaintext would expose the password on the network.
        "nats" if ["localhost", "127.0.0.1", "::1"].contains(&host) => false,
        _ => return None,
    };
    Some(Server { host: host.to_owned(), port, encrypted })
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Returns whether the text is a subject: letters, digits, `-` and `_`, separated by dots. Wildcards and characters
/// that could end a line are invalid.
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
            ("tls://[fd00::1]", "fd00::1:4222", true),
            ("nats://127.0.0.1:99", "127.0.0.1:99", false),
            ("nats://[::1]", "::1:4222", false),
        ] {
            let server: Server = text.parse().unwrap();
            assert_eq!((server.to_string().as_str(), server.encrypted), (shown, encrypted));
        }
        for bad in [
            "",
            "nats.corp",
            "nats://nats.corp",
            "tls://",
            "tls://:4222",
            "tls://h:x",
            "https://h",
            "tls://h/",
            "tls://h?x",
            "tls://h h",
            "tls://fd00::1",
            "tls://[fd00::1",
            "tls://[h]",
        ] {
            let said = bad.parse::<Server>().unwrap_err().to_string();
            assert!(
                said.starts_with(&format!("invalid NATS server `{bad}`")) && !said.contains("login"),
                "{said}"
            );
        }
    }

    #[test]
    fn a_login_in_an_address_is_refused_and_not_shown() {
        for text in [
            "tls://ann:canary@nats.corp:4222",
            "tls://canary@nats.corp:4222",
            "tls://a:c@nary:canary@nats.corp:4222",
        ] {
            let said = text.parse::<Server>().unwrap_err();
            assert!(said.to_string().starts_with("invalid NATS server `…@nats.corp:4222`"), "{said}");
            assert!(said.to_string().ends_with("goes into the login file"), "{said}");
            assert!(!format!("{said} {said:?}").contains("canary"), "{said:?}");
        }
    }

    #[test]
    fn a_subject_is_plain() {
        assert!(is_subject("a.b-c.d_1"));
        for bad in ["", "a.", "a..b", "a.*", ">", "a b", "a\r\nPUB x 0"] {
            assert!(!is_subject(bad), "{bad}");
        }
    }
}
