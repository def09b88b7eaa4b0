//! Protocol detection from the first bytes of a connection.

use crate::{ClientHello, client_hello};

const SSH: &[u8] = b"SSH-";
/// Plaintext requests begin with one of these.
const METHODS: [&[u8]; 9] = [
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"PUT ",
    b"PATCH ",
    b"DELETE ",
    b"OPTIONS ",
    b"CONNECT ",
    // HTTP/2 without TLS.
    b"PRI * ",
];

/// The protocol of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tls(ClientHello),
    Ssh,
    /// Plaintext HTTP, which is wrong on a TLS port but gets an error response.
    Http,
    Unknown,
}

/// Returns the protocol of a peer, or `None` if more bytes are needed. Bytes after a decision do not change it.
pub fn classify(bytes: &[u8]) -> Option<Protocol> {
    match bytes {
        [] | [0x16] => return None,
        [0x16, 0x03, ..] => {
            return match client_hello(bytes) {
                Ok(None) => None,
                Ok(Some(hello)) => Some(Protocol::Tls(hello)),
                Err(_) => Some(Protocol::Unknown),
            };
        }
        _ => {}
    }
    let mut more_may_tell = false;
    for (start, protocol) in
        [(SSH, Protocol::Ssh)].into_iter().chain(METHODS.map(|method| (method, Protocol::Http)))
    {
        if bytes.starts_with(start) {
            return Some(protocol);
        }
        more_may_tell |= start.starts_with(bytes);
    }
    if more_may_tell { None } else { Some(Protocol::Unknown) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_tell_the_protocol() {
        for (bytes, expected) in [
            (&b""[..], None),
            (b"S", None),
            (b"SSH-2.0-OpenSSH_9.2", Some(Protocol::Ssh)),
            (b"P", None),
            (b"POST", None),
            (b"POST /x HTTP/1.1", Some(Protocol::Http)),
            (b"PRI * HTTP/2.0", Some(Protocol::Http)),
            (b"get / ", Some(Protocol::Unknown)),
            (b"\x16", None),
            (b"\x16\x03\x01", None),
            (b"\x16\x02\x01", Some(Protocol::Unknown)),
            (b"\x80\x2e\x01\x03\x01", Some(Protocol::Unknown)),
            (b"\0", Some(Protocol::Unknown)),
        ] {
            assert_eq!(classify(bytes), expected, "{bytes:?}");
        }
    }
}
