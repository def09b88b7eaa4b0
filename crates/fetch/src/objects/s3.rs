//! Amazon's protocol: signature version 4, a chain of HMACs over the canonical form of the request. Pure.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use landfall_model::Secret;
use sha2::{Digest as _, Sha256};

use super::credentials::KeyPair;
use super::request::{Content, Request, Signed, mac, query};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SERVICE: &str = "s3";
/// SHA-256 of the empty string.
const NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Returns the query for a page of a listing.
pub(crate) fn listing<'a>(prefix: &'a str, next: Option<&'a str>) -> Vec<(&'static str, &'a str)> {
    let mut query = vec![("list-type", "2"), ("encoding-type", "url"), ("prefix", prefix)];
    query.extend(next.map(|next| ("continuation-token", next)));
    query
}

pub(crate) fn sign(request: &Request<'_>, keys: KeyPair, region: &str, now: Timestamp) -> Signed {
    let zoned = now.to_zoned(TimeZone::UTC);
    let (time, date) = (zoned.strftime("%Y%m%dT%H%M%SZ").to_string(), zoned.strftime("%Y%m%d").to_string());
    let hash = request.content.map_or(NOTHING, |Content { sha256, .. }| sha256);
    let mut headers = vec![("host", request.host.to_owned())];
    headers.extend(request.headers.iter().cloned());
    headers.push(("x-amz-content-sha256", hash.to_owned()));
    headers.push(("x-amz-date", time.clone()));
    if let Some(session) = &keys.session {
        headers.push(("x-amz-security-token", session.expose().clone()));
    }
    headers.sort_unstable();
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let mut canonical = format!("{}\n{}\n{}\n", request.method, request.path, query(request.query));
    for (name, value) in &headers {
        canonical.push_str(&format!("{name}:{}\n", value.trim()));
    }
    canonical.push_str(&format!("\n{names}\n{hash}"));
    let scope = format!("{date}/{region}/{SERVICE}/aws4_request");
    let text = format!("{ALGORITHM}\n{time}\n{scope}\n{}", hexadecimal(&Sha256::digest(&canonical)));
    let mut key = Secret::new(format!("AWS4{}", keys.secret.expose()).into_bytes());
    for part in [date.as_str(), region, SERVICE, "aws4_request"] {
        key = Secret::new(mac(key.expose(), part.as_bytes()));
    }
    let signature = hexadecimal(&mac(key.expose(), text.as_bytes()));
    let authorization =
        format!("{ALGORITHM} Credential={}/{scope},SignedHeaders={names},Signature={signature}", keys.id);
    let mut headers = vec![
        ("authorization", Secret::new(authorization)),
        ("x-amz-date", Secret::new(time)),
        ("x-amz-content-sha256", Secret::new(hash.to_owned())),
    ];
    headers.extend(keys.session.map(|session| ("x-amz-security-token", session)));
    Signed { headers, query: None, time: Some(now) }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of Amazon's documentation "Signature calculations for the authorization header".
    #[test]
    fn signatures_are_those_of_the_specification() {
        let keys = || KeyPair {
            id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
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
            content: None,
        };
        let range = [("range", "bytes=0-9".to_owned())];
        let sha256 = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072".to_owned();
        let content = Content { length: 19, sha256, md5: None };
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
                    content: Some(&content),
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
            let signed = sign(&request, keys(), "us-east-1", now);
            let header = |name| signed.headers.iter().find(|(key, _)| *key == name).unwrap().1.expose();
            assert!(header("authorization").ends_with(&format!("Signature={signature}")), "{request:?}");
            assert_eq!(header("x-amz-date"), "20130524T000000Z");
        }
    }
}
