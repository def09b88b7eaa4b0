//! A request to a store, before and after signing, and its canonical encoding. Pure.

use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use landfall_model::Secret;
use sha2::Sha256;

/// The parts of a request that are signed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub method: &'static str,
    pub host: &'a str,
    /// Encoded as it is sent.
    pub path: &'a str,
    /// Names and values before encoding, in any order.
    pub query: &'a [(&'a str, &'a str)],
    /// Headers in addition to those of every request in the protocol; names in lower case.
    pub headers: &'a [(&'static str, String)],
    pub content: Option<&'a Content>,
}

/// Length and hashes of uploaded content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub length: u64,
    /// In hexadecimal.
    pub sha256: String,
    /// In Base64, for stores that check this one.
    pub md5: Option<String>,
}

/// The signature of a request.
pub(crate) struct Signed {
    pub headers: Vec<(&'static str, Secret<String>)>,
    /// The rest of the query, where it contains the credentials.
    pub query: Option<Secret<String>>,
    /// The signed time, if there is one.
    pub time: Option<Timestamp>,
}

/// Returns the query as it is sent: sorted, and with special characters escaped.
pub(crate) fn query(pairs: &[(&str, &str)]) -> String {
    let mut pairs: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{}={}", escape(name, Slash::Escaped), escape(value, Slash::Escaped)))
        .collect();
    pairs.sort_unstable();
    pairs.join("&")
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slash {
    Kept,
    Escaped,
}

/// Encodes every byte but letters, digits and `-._~` as `%XX`.
pub(crate) fn escape(text: &str, slash: Slash) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => escaped.push(byte.into()),
            b'/' if slash == Slash::Kept => escaped.push('/'),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

pub(crate) fn mac(key: &[u8], text: &[u8]) -> Vec<u8> {
    // HMAC takes keys of any length.
    let Ok(mac) = Hmac::<Sha256>::new_from_slice(key) else { return Vec::new() };
    mac.chain_update(text).finalize().into_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_keys_are_escaped() {
        assert_eq!(escape("a/ü b+c~", Slash::Kept), "a/%C3%BC%20b%2Bc~");
        assert_eq!(query(&[("prefix", "a/b"), ("list-type", "2")]), "list-type=2&prefix=a%2Fb");
    }
}
