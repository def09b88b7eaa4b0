//! Azure's protocol. Pure.
//!
//! A request has either a Shared Key signature, one HMAC over its canonical form, or a shared access signature of
//! another party in its query.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use landfall_model::Secret;

use super::credentials::Access;
use super::request::{Request, Signed, mac};

/// Version of the protocol. It allows objects of some gigabytes, and marks escaped names in listings.
const VERSION: &str = "2021-12-02";
/// The maximum number of objects of one page.
const PAGE: &str = "1000";
/// Signed headers in their order; all headers with the prefix `x-ms-` follow them.
const SIGNED: [&str; 11] = [
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
];

/// Returns the query for a page of a listing.
pub(crate) fn listing<'a>(prefix: &'a str, next: Option<&'a str>) -> Vec<(&'static str, &'a str)> {
    let mut query = vec![("restype", "container"), ("comp", "list"), ("maxresults", PAGE)];
    query.extend((!prefix.is_empty()).then_some(("prefix", prefix)));
    query.extend(next.map(|next| ("marker", next)));
    query
}

pub(crate) fn sign(request: &Request<'_>, access: Access, account: &str, now: Timestamp) -> Signed {
    let mut headers = vec![("x-ms-version", VERSION.to_owned())];
    if let Some(content) = request.content {
        headers.push(("x-ms-blob-type", "BlockBlob".to_owned()));
        headers.extend(content.md5.clone().map(|md5| ("content-md5", md5)));
    }
    let secret = |(name, value)| (name, Secret::new(value));
    match access {
        Access::Signature(query) => {
            let headers = headers.into_iter().map(secret).collect();
            Signed { headers, query: Some(query), time: None }
        }
        Access::Token(token) => {
            headers.push(("authorization", format!("Bearer {}", token.expose())));
            Signed { headers: headers.into_iter().map(secret).collect(), query: None, time: None }
        }
        Access::Key(key) => {
            let date = now.to_zoned(TimeZone::UTC).strftime("%a, %d %b %Y %H:%M:%S GMT");
            headers.push(("x-ms-date", date.to_string()));
            let signature = BASE64.encode(mac(key.expose(), text(request, &headers, account).as_bytes()));
            headers.push(("authorization", format!("SharedKey {account}:{signature}")));
            Signed { headers: headers.into_iter().map(secret).collect(), query: None, time: Some(now) }
        }
    }
}

/// Returns the text to sign.
fn text(request: &Request<'_>, ours: &[(&'static str, String)], account: &str) -> String {
    let mut headers: Vec<(&str, &str)> =
        request.headers.iter().chain(ours).map(|(name, value)| (*name, value.trim())).collect();
    // An empty body is signed as an empty string rather than `0`.
    let length = request.content.map(|content| content.length).filter(|length| *length > 0);
    let length = length.map(|length| length.to_string()).unwrap_or_default();
    headers.push(("content-length", &length));
    headers.sort_unstable();
    let mut text = format!("{}\n", request.method);
    for name in SIGNED {
        let value = headers.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| *value);
        text.push_str(&format!("{value}\n"));
    }
    for (name, value) in headers.iter().filter(|(name, _)| name.starts_with("x-ms-")) {
        text.push_str(&format!("{name}:{value}\n"));
    }
    text.push_str(&format!("/{account}{}", request.path));
    let mut query = request.query.to_vec();
    query.sort_unstable();
    for (name, value) in query {
        text.push_str(&format!("\n{name}:{value}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::request::Content;

    fn base() -> Request<'static> {
        Request { method: "GET", host: "h", path: "/fleet/a", query: &[], headers: &[], content: None }
    }

    fn content(length: u64, md5: &str) -> Content {
        Content { length, sha256: String::new(), md5: Some(md5.to_owned()) }
    }

    fn header<'a>(signed: &'a Signed, name: &str) -> Option<&'a str> {
        signed.headers.iter().find(|(key, _)| *key == name).map(|(_, value)| value.expose().as_str())
    }

    /// Computed with Python's `hmac` from the texts in the documentation "Authorize with Shared Key".
    #[test]
    fn signatures_are_those_of_the_specification() {
        let key = b"between sea and shore there is a harbour";
        let now = "2015-06-26T23:39:12Z".parse().unwrap();
        let kind = |kind: &str| [("content-type", kind.to_owned())];
        let (json, plain) = (kind("application/json"), kind("text/plain"));
        let (two, none) = (content(2, "mZFLkyvTelC5g8XnyQrpOw=="), content(0, "1B2M2Y8AsgTpgAmY7PhCfg=="));
        let listing = listing("a/b c", Some("2!76!x"));
        let put = Request { method: "PUT", ..base() };
        for (request, signature) in [
            (
                Request { path: "/fleet/n%201/%C3%BC.json", headers: &json, content: Some(&two), ..put },
                "koxAhz3ZNVMLV5q1WJn1SEttWPl8SHZkunFPWT5HiOo=",
            ),
            (
                Request { headers: &plain, content: Some(&none), ..put },
                "dKhsxWCvoMAHlC4KyXR8yWxIo/CrHbYM1V61uyWW+jA=",
            ),
            (Request { path: "/harbour/fleet/a", ..base() }, "Q5lFHWBCo1bDz0cjpz9PiTmbaj0GbBIRRs3scMLFlrg="),
            (
                Request { path: "/fleet", query: &listing, ..base() },
                "Gb4RmJPJ4Co01T2AgLsx8qi4iJUj5aVcM951MbI6N2s=",
            ),
        ] {
            let signed = sign(&request, Access::Key(Secret::new(key.to_vec())), "harbour", now);
            let expected = format!("SharedKey harbour:{signature}");
            assert_eq!(header(&signed, "authorization"), Some(expected.as_str()), "{request:?}");
            assert_eq!(header(&signed, "x-ms-date"), Some("Fri, 26 Jun 2015 23:39:12 GMT"));
            assert_eq!((signed.time, signed.query.is_none()), (Some(now), true));
        }
    }

    #[test]
    fn a_signature_of_somebody_else_goes_into_the_query_alone() {
        let access = Access::Signature(Secret::new("sv=1&sig=canary".to_owned()));
        let two = content(2, "mZFLkyvTelC5g8XnyQrpOw==");
        let request = Request { method: "PUT", content: Some(&two), ..base() };
        let signed = sign(&request, access, "harbour", Timestamp::now());
        assert_eq!(signed.query.as_ref().map(|query| query.expose().as_str()), Some("sv=1&sig=canary"));
        assert_eq!(header(&signed, "content-md5"), Some("mZFLkyvTelC5g8XnyQrpOw=="));
        assert!(header(&signed, "authorization").is_none() && signed.time.is_none());
        assert!(signed.headers.iter().all(|(_, value)| !value.expose().contains("canary")));
    }
}
