//! The hello of a TLS client, parsed without a response: the requested server and the offered protocols.

/// Maximum size of a hello. Hybrid key shares need about 2 KiB; valid hellos are far below the limit.
pub const MAX_HELLO: usize = 16 * 1024;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
/// Maximum plaintext size of one record.
const MAX_RECORD: usize = 16 * 1024;
/// Maximum length of a DNS name.
const MAX_NAME: usize = 253;

/// A parsed TLS ClientHello.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// Server name (SNI) in lower case; absent in many probes and when a client dials an IP address.
    pub server_name: Option<String>,
    /// ALPN protocols, in the client's order.
    pub protocols: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    #[error("not a TLS handshake record")]
    Record,
    #[error("not a ClientHello")]
    Message,
    #[error("the ClientHello is longer than {MAX_HELLO} bytes")]
    TooLong,
    #[error("the ClientHello is malformed")]
    Malformed,
}

/// Parses the bytes received so far; `None` if more are needed. The hello may span any number of records.
pub fn client_hello(bytes: &[u8]) -> Result<Option<ClientHello>, HelloError> {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        let Some((fragment, next)) = record(rest)? else { return Ok(None) };
        message.extend_from_slice(fragment);
        rest = next;
        match message[..] {
            [kind, ..] if kind != CLIENT_HELLO => return Err(HelloError::Message),
            [_, a, b, c, ..] => {
                let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                if length > MAX_HELLO {
                    return Err(HelloError::TooLong);
                }
                if let Some(body) = message.get(4..4 + length) {
                    return body_of(body).ok_or(HelloError::Malformed).map(Some);
                }
            }
            _ => {}
        }
    }
}

/// The content of a record and the bytes after it.
type Split<'a> = (&'a [u8], &'a [u8]);

/// Splits off one complete record. An incomplete record is validated as far as its head is available.
fn record(bytes: &[u8]) -> Result<Option<Split<'_>>, HelloError> {
    if bytes.first().is_some_and(|kind| *kind != HANDSHAKE) || bytes.get(1).is_some_and(|major| *major != 3) {
        return Err(HelloError::Record);
    }
    let Some((head, rest)) = bytes.split_at_checked(5) else { return Ok(None) };
    let length = usize::from(head[3]) << 8 | usize::from(head[4]);
    // The standard forbids empty handshake records, with which a peer could extend a hello without end.
    if length == 0 || length > MAX_RECORD {
        return Err(HelloError::Record);
    }
    Ok(rest.split_at_checked(length))
}

fn body_of(bytes: &[u8]) -> Option<ClientHello> {
    let mut input = Input(bytes);
    input.take(2 + 32)?;
    let session = input.short_vector()?;
    let suites = input.vector()?;
    let compressions = input.short_vector()?;
    if session.0.len() > 32
        || suites.0.is_empty()
        || !suites.0.len().is_multiple_of(2)
        || compressions.0.is_empty()
    {
        return None;
    }
    let mut hello = ClientHello::default();
    if input.0.is_empty() {
        return Some(hello);
    }
    let mut extensions = input.vector()?;
    while !extensions.0.is_empty() {
        let kind = extensions.number()?;
        let mut content = extensions.vector()?;
        match kind {
            SERVER_NAME => {
                let mut names = content.vector()?;
                while !names.0.is_empty() {
                    let kind = names.take(1)?;
                    let name = names.vector()?;
                    if kind == [0] && hello.server_name.is_none() {
                        hello.server_name = host_name(name.0);
                    }
                }
            }
            ALPN => {
                let mut protocols = content.vector()?;
                while !protocols.0.is_empty() {
                    hello.protocols.push(protocols.short_vector()?.0.to_vec());
                }
            }
            _ => {}
        }
    }
    input.0.is_empty().then_some(hello)
}

/// Returns a name that a certificate could contain; anything else counts as absent.
fn host_name(bytes: &[u8]) -> Option<String> {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
    let name = std::str::from_utf8(bytes).ok()?;
    let name = name.strip_suffix('.').unwrap_or(name);
    (!name.is_empty() && name.len() <= MAX_NAME && name.as_bytes().iter().all(fits))
        .then(|| name.to_ascii_lowercase())
}

struct Input<'a>(&'a [u8]);

// === impl Input ===

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from(bytes[0]) << 8 | u16::from(bytes[1]))
    }

    /// Reads a vector with one length byte.
    fn short_vector(&mut self) -> Option<Self> {
        let length = usize::from(self.take(1)?[0]);
        self.take(length).map(Self)
    }

    /// Reads a vector with two length bytes.
    fn vector(&mut self) -> Option<Self> {
        let length = usize::from(self.number()?);
        self.take(length).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    /// Returns the hello of a real TLS client.
    fn real(name: &'static str, protocols: &[&[u8]]) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let mut client =
            ClientConnection::new(Arc::new(config), ServerName::try_from(name).unwrap()).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    /// Splits a hello into records of `size` bytes.
    fn in_records_of(hello: &[u8], size: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in hello[5..].chunks(size) {
            bytes.extend([22, 3, 1]);
            bytes.extend(u16::try_from(piece.len()).unwrap().to_be_bytes());
            bytes.extend(piece);
        }
        bytes
    }

    #[test]
    fn name_and_protocols_are_read_from_a_real_hello() {
        let hello = client_hello(&real("api.example.org", &[b"h2", b"http/1.1"])).unwrap().unwrap();
        assert_eq!(hello.server_name.as_deref(), Some("api.example.org"));
        assert_eq!(hello.protocols, [b"h2".to_vec(), b"http/1.1".to_vec()]);
        assert_eq!(client_hello(&real("127.0.0.1", &[])), Ok(Some(ClientHello::default())));
    }

    #[test]
    fn any_number_of_records_and_any_cut_give_the_same() {
        let whole = real("api.example.org", &[b"h2"]);
        let expected = client_hello(&whole).unwrap();
        for size in [1, 3, 100, 700] {
            let bytes = in_records_of(&whole, size);
            assert_eq!(client_hello(&bytes), Ok(expected.clone()), "records of {size}");
            for cut in 0..bytes.len() {
                assert_eq!(client_hello(&bytes[..cut]), Ok(None), "records of {size}, cut at {cut}");
            }
        }
    }

    #[test]
    fn what_is_no_hello_is_refused_as_soon_as_it_shows() {
        for (bytes, expected) in [
            (&b"\x17\x03\x03"[..], HelloError::Record),
            (b"\x16\x03\x01\0\0", HelloError::Record),
            (b"\x16\x03\x01\xff\xff", HelloError::Record),
            (b"\x16\x03\x01\0\x01\x02", HelloError::Message),
            (b"\x16\x03\x01\0\x04\x01\x00\x40\x01", HelloError::TooLong),
            (b"\x16\x03\x01\0\x04\x01\x00\x00\x00", HelloError::Malformed),
        ] {
            assert_eq!(client_hello(bytes), Err(expected), "{bytes:?}");
        }
    }
}
