//! Amazon's signature, version 4: a chain of HMACs over the request in one agreed spelling. Pure.

use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use landfall_model::Secret;
use sha2::{Digest as _, Sha256};

use crate::credentials::Credentials;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SERVICE: &str = "s3";

/// What is signed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub method: &'static str,
    pub host: &'a str,
    /// Spelled as it goes over the wire.
    pub path: &'a str,
    /// Names and values as they are meant, in any order.
    pub query: &'a [(&'a str, &'a str)],
    /// Beside the host, the time and the hash of the content; names in lower case, in order.
    pub headers: &'a [(&'static str, String)],
    /// Of the content, in hexadecimal.
    pub hash: &'a str,
}

/// The headers that make a request ours.
pub(crate) struct Signed {
    pub authorization: Secret<String>,
    pub time: String,
}

// === impl Request ===

impl Request<'_> {
    pub(crate) fn sign(&self, credentials: &Credentials, region: &str, now: Timestamp) -> Signed {
        let zoned = now.to_zoned(TimeZone::UTC);
        let (time, date) =
            (zoned.strftime("%Y%m%dT%H%M%SZ").to_string(), zoned.strftime("%Y%m%d").to_string());
        let mut headers = vec![("host", self.host.to_owned())];
        headers.extend(self.headers.iter().cloned());
        headers.push(("x-amz-content-sha256", self.hash.to_owned()));
        headers.push(("x-amz-date", time.clone()));
        if let Some(session) = &credentials.session {
            headers.push(("x-amz-security-token", session.expose().clone()));
        }
        headers.sort_unstable();
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let mut canonical = format!("{}\n{}\n{}\n", self.method, self.path, query(self.query));
        for (name, value) in &headers {
            canonical.push_str(&format!("{name}:{}\n", value.trim()));
        }
        canonical.push_str(&format!("\n{names}\n{}", self.hash));
        let scope = format!("{date}/{region}/{SERVICE}/aws4_request");
        let text = format!("{ALGORITHM}\n{time}\n{scope}\n{}", hexadecimal(&Sha256::digest(&canonical)));
        let mut key = Secret::new(format!("AWS4{}", credentials.secret.expose()).into_bytes());
        for part in [date.as_str(), region, SERVICE, "aws4_request"] {
            key = Secret::new(mac(key.expose(), part.as_bytes()));
        }
        let signature = hexadecimal(&mac(key.expose(), text.as_bytes()));
        let authorization = format!(
            "{ALGORITHM} Credential={}/{scope},SignedHeaders={names},Signature={signature}",
            credentials.key_id
        );
        Signed { authorization: Secret::new(authorization), time }
    }
}

/// The query as it is signed and sent: sorted, everything escaped that is not plain.
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

/// Every byte but letters, digits and `-._~` as `%XX`.
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

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn mac(key: &[u8], text: &[u8]) -> Vec<u8> {
    // HMAC takes keys of any length.
    let Ok(mac) = Hmac::<Sha256>::new_from_slice(key) else { return Vec::new() };
    mac.chain_update(text).finalize().into_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    /// The examples Amazon gives in "Signature calculations for the authorization header".
    #[test]
    fn signatures_are_those_of_the_specification() {
        let credentials = Credentials {
            key_id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret: Secret::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned()),
            session: None,
        };
        let now = "2013-05-24T00:00:00Z".parse().unwrap();
        let base = Request {
            method: "GET",
            host: "examplebucket.s3.amazonaws.com",
            path: "/",
            query: &[],
            headers: &[],
            hash: EMPTY,
        };
        let range = [("range", "bytes=0-9".to_owned())];
        let put = [
            ("date", "Fri, 24 May 2013 00:00:00 GMT".to_owned()),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY".to_owned()),
        ];
        for (request, signature) in [
            (
                Request { path: "/test.txt", headers: &range, ..base },
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                Request {
                    method: "PUT",
                    path: "/test%24file.text",
                    headers: &put,
                    hash: "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
                    ..base
                },
                "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            ),
            (
                Request { query: &[("lifecycle", "")], ..base },
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                Request { query: &[("prefix", "J"), ("max-keys", "2")], ..base },
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ] {
            let signed = request.sign(&credentials, "us-east-1", now);
            assert!(
                signed.authorization.expose().ends_with(&format!("Signature={signature}")),
                "{request:?}"
            );
            assert_eq!(signed.time, "20130524T000000Z");
        }
    }

    #[test]
    fn odd_keys_are_escaped() {
        assert_eq!(escape("a/ü b+c~", Slash::Kept), "a/%C3%BC%20b%2Bc~");
        assert_eq!(query(&[("prefix", "a/b"), ("list-type", "2")]), "list-type=2&prefix=a%2Fb");
    }
}
