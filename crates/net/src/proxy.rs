//! The PROXY protocol, versions 1 and 2, with the client address behind a load balancer. Only headers from known load
//! balancers are trustworthy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Maximum length of a version 1 header, including its line end.
const MAX_TEXT: usize = 107;
/// Maximum length of a version 2 header after its fixed part: addresses and a few attributes.
const MAX_BINARY: usize = 4096;
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const CRC32C: u8 = 0x03;

/// A parsed PROXY header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// The original client; `None` for connections of the load balancer itself, such as health checks.
    pub client: Option<SocketAddr>,
    /// Length of the header in bytes.
    pub length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    #[error("no PROXY protocol header")]
    Missing,
    #[error("the PROXY protocol header is malformed")]
    Malformed,
    #[error("the PROXY protocol header is too long")]
    TooLong,
    #[error("the checksum of the PROXY protocol header is wrong")]
    Checksum,
}

/// Parses the bytes received so far; `None` if more are needed.
pub fn proxy_header(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyError> {
    if bytes.starts_with(b"PROXY ") {
        return text(bytes);
    }
    if bytes.starts_with(SIGNATURE) {
        return binary(bytes);
    }
    if b"PROXY ".starts_with(bytes) || SIGNATURE.starts_with(bytes) {
        return Ok(None);
    }
    Err(ProxyError::Missing)
}

fn text(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyError> {
    let seen = &bytes[..bytes.len().min(MAX_TEXT)];
    let Some(end) = seen.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() >= MAX_TEXT { Err(ProxyError::TooLong) } else { Ok(None) };
    };
    let line = std::str::from_utf8(&bytes[..end]).map_err(|_| ProxyError::Malformed)?;
    let length = end + 2;
    let mut words = line.split(' ').skip(1);
    let family = words.next().unwrap_or_default();
    if family == "UNKNOWN" {
        return Ok(Some(ProxyHeader { client: None, length }));
    }
    let (Some(source), Some(_), Some(port), Some(_), None) =
        (words.next(), words.next(), words.next(), words.next(), words.next())
    else {
        return Err(ProxyError::Malformed);
    };
    let address: IpAddr = source.parse().map_err(|_| ProxyError::Malformed)?;
    let port: u16 = port.parse().map_err(|_| ProxyError::Malformed)?;
    match (family, address) {
        ("TCP4", IpAddr::V4(_)) | ("TCP6", IpAddr::V6(_)) => {
            Ok(Some(ProxyHeader { client: Some(SocketAddr::new(address.to_canonical(), port)), length }))
        }
        _ => Err(ProxyError::Malformed),
    }
}

fn binary(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyError> {
    let Some((head, rest)) = bytes.split_at_checked(16) else { return Ok(None) };
    let size = usize::from(head[14]) << 8 | usize::from(head[15]);
    if size > MAX_BINARY {
        return Err(ProxyError::TooLong);
    }
    let command = match head[12] {
        0x20 => None,
        0x21 => Some(head[13]),
        _ => return Err(ProxyError::Malformed),
    };
    let Some(content) = rest.get(..size) else { return Ok(None) };
    let length = 16 + size;
    let (addresses, client) = match command {
        Some(0x11) => {
            let fields: &[u8; 12] = content.first_chunk().ok_or(ProxyError::Malformed)?;
            let address = Ipv4Addr::new(fields[0], fields[1], fields[2], fields[3]);
            (12, Some(SocketAddr::new(address.into(), u16::from_be_bytes([fields[8], fields[9]]))))
        }
        Some(0x21) => {
            let fields: &[u8; 36] = content.first_chunk().ok_or(ProxyError::Malformed)?;
            let mut address = [0; 16];
            address.copy_from_slice(&fields[..16]);
            let address = IpAddr::from(Ipv6Addr::from(address)).to_canonical();
            (36, Some(SocketAddr::new(address, u16::from_be_bytes([fields[32], fields[33]]))))
        }
        Some(0x31 | 0x32) => (216, None),
        // LOCAL, and families without an address: the rest of the header is ignored.
        _ => return Ok(Some(ProxyHeader { client: None, length })),
    };
    let attributes = content.get(addresses..).ok_or(ProxyError::Malformed)?;
    check_attributes(&bytes[..length], 16 + addresses, attributes)?;
    Ok(Some(ProxyHeader { client, length }))
}

/// Checks that attributes are well-formed and that a checksum is correct.
fn check_attributes(header: &[u8], offset: usize, attributes: &[u8]) -> Result<(), ProxyError> {
    let mut at = 0;
    while at < attributes.len() {
        let head = attributes.get(at..at + 3).ok_or(ProxyError::Malformed)?;
        let size = usize::from(head[1]) << 8 | usize::from(head[2]);
        let value = attributes.get(at + 3..at + 3 + size).ok_or(ProxyError::Malformed)?;
        if head[0] == CRC32C {
            let told: [u8; 4] = value.try_into().map_err(|_| ProxyError::Malformed)?;
            let mut zeroed = header.to_vec();
            zeroed[offset + at + 3..offset + at + 7].fill(0);
            if crc32c(&zeroed) != u32::from_be_bytes(told) {
                return Err(ProxyError::Checksum);
            }
        }
        at += 3 + size;
    }
    Ok(())
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |sum, byte| {
        (0..8).fold(
            sum ^ u32::from(*byte),
            |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version_2(command: u8, family: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([command, family]);
        bytes.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
        bytes.extend(content);
        bytes
    }

    #[test]
    fn clients_are_read_from_both_versions() {
        let four = [192, 0, 2, 7, 192, 0, 2, 1, 0x1f, 0x90, 0x19, 0x2b];
        let mut six = [0; 36];
        (six[0], six[15], six[33]) = (0xfd, 9, 80);
        let cases: [(Vec<u8>, Option<&str>); 7] = [
            (b"PROXY TCP4 192.0.2.7 192.0.2.1 8080 6443\r\n".to_vec(), Some("192.0.2.7:8080")),
            (b"PROXY TCP6 fd00::9 fd00::1 80 6443\r\n".to_vec(), Some("[fd00::9]:80")),
            (b"PROXY UNKNOWN whatever it says\r\n".to_vec(), None),
            (version_2(0x21, 0x11, &four), Some("192.0.2.7:8080")),
            (version_2(0x21, 0x21, &six), Some("[fd00::9]:80")),
            (version_2(0x20, 0, b""), None),
            (version_2(0x21, 0x31, &[0; 216]), None),
        ];
        for (bytes, client) in cases {
            let client = client.map(|text| text.parse().unwrap());
            let length = bytes.len();
            for cut in 0..length {
                assert_eq!(proxy_header(&bytes[..cut]), Ok(None), "{bytes:?} cut at {cut}");
            }
            let mut followed = bytes.clone();
            followed.extend(b"GET / HTTP/1.1\r\n");
            assert_eq!(proxy_header(&followed), Ok(Some(ProxyHeader { client, length })), "{bytes:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_refused() {
        let long = [b"PROXY TCP4 ".to_vec(), vec![b'1'; 200]].concat();
        for (bytes, expected) in [
            (b"GET / HTTP/1.1\r\n".to_vec(), ProxyError::Missing),
            (b"PROXY TCP4 fd00::9 fd00::1 80 6443\r\n".to_vec(), ProxyError::Malformed),
            (b"PROXY TCP4 192.0.2.7 192.0.2.1 8080 6443 x\r\n".to_vec(), ProxyError::Malformed),
            (b"PROXY TCP4 192.0.2.7 192.0.2.1 99999 6443\r\n".to_vec(), ProxyError::Malformed),
            (long, ProxyError::TooLong),
            (version_2(0x31, 0x11, &[0; 12]), ProxyError::Malformed),
            (version_2(0x21, 0x11, &[0; 11]), ProxyError::Malformed),
            (version_2(0x21, 0x11, &[0; 14]), ProxyError::Malformed),
            (version_2(0x21, 0x11, &[0; 5000]), ProxyError::TooLong),
        ] {
            assert_eq!(proxy_header(&bytes), Err(expected), "{bytes:?}");
        }
    }

    #[test]
    fn a_checksum_is_verified() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let mut content = vec![192, 0, 2, 7, 192, 0, 2, 1, 0x1f, 0x90, 0x19, 0x2b, CRC32C, 0, 4, 0, 0, 0, 0];
        let sum = crc32c(&version_2(0x21, 0x11, &content));
        content[15..].copy_from_slice(&sum.to_be_bytes());
        assert!(proxy_header(&version_2(0x21, 0x11, &content)).unwrap().unwrap().client.is_some());
        content[1] ^= 1;
        assert_eq!(proxy_header(&version_2(0x21, 0x11, &content)), Err(ProxyError::Checksum));
    }
}
