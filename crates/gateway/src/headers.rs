//! Rules for the request and response headers that may pass to the next hop.

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::config::FrontProxy;

/// kube-apiserver's default prefix of identity headers, whatever names are configured.
const REMOTE: &str = "x-remote-";
/// Impersonation headers. Removing one would execute the request as another user.
const IMPERSONATE: &str = "impersonate-";
const WEBSOCKET_TOKEN: &str = "base64url.bearer.authorization.k8s.io.";
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Hop-by-hop headers. `Trailer` stays: it announces the fields that follow the body.
const HOP: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Header names by which this API server accepts identities from a front proxy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Believed {
    names: Vec<String>,
    prefixes: Vec<String>,
}

/// Reason for not forwarding a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadError {
    #[error("the Connection header names a header that says who makes the request")]
    ConnectionNamesIdentity,
    #[error("the request gives two lengths")]
    TwoLengths,
}

/// Prepares the headers of a client for forwarding: removes hop-by-hop headers and all that only a front proxy may
/// send. Identity headers are added after this, and no header is removed after that.
pub(crate) fn clean_request(headers: &mut HeaderMap, believed: &Believed) -> Result<(), HeadError> {
    if headers.contains_key(header::TRANSFER_ENCODING) && headers.contains_key(header::CONTENT_LENGTH) {
        return Err(HeadError::TwoLengths);
    }
    for name in named_by_connection(headers) {
        if name == header::AUTHORIZATION || name.as_str().starts_with(IMPERSONATE) {
            return Err(HeadError::ConnectionNamesIdentity);
        }
        if !matches!(name, header::HOST | header::CONTENT_LENGTH | header::TE) {
            headers.remove(name);
        }
    }
    remove_hop(headers);
    if headers.get_all(header::TE).iter().any(|value| value.as_bytes() != b"trailers") {
        headers.remove(header::TE);
    }
    if !headers.is_empty() {
        let claimed: Vec<HeaderName> = headers.keys().filter(|name| believed.claims(name)).cloned().collect();
        for name in claimed {
            headers.remove(name);
        }
    }
    Ok(())
}

/// Prepares the headers of a response for the client.
pub(crate) fn clean_answer(headers: &mut HeaderMap) {
    for name in named_by_connection(headers) {
        headers.remove(name);
    }
    remove_hop(headers);
}

/// Returns whether the client sends identity headers of a front proxy.
pub(crate) fn speaks_for_others(headers: &HeaderMap, believed: &Believed) -> bool {
    headers.keys().any(|name| believed.claims(name))
}

/// Returns whether the request has a token, valid or not.
pub(crate) fn carries_token(headers: &HeaderMap) -> bool {
    let websocket = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    bearer(headers).is_some()
        || websocket
            .filter_map(|value| value.to_str().ok())
            .flat_map(|list| list.split(','))
            .any(|protocol| protocol.trim().starts_with(WEBSOCKET_TOKEN))
}

/// Returns the bearer token, parsed as in kube-apiserver.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Returns whether the client requests another protocol on this connection.
pub(crate) fn asks_for_upgrade(headers: &HeaderMap) -> bool {
    let upgrade = HeaderName::from_static("upgrade");
    headers.contains_key(&upgrade) && named_by_connection(headers).any(|name| name == upgrade)
}

/// Appends the client's address to the forwarding header.
pub(crate) fn forwarded_for(headers: &mut HeaderMap, client: std::net::IpAddr) {
    let mut list: Vec<u8> = Vec::new();
    for value in headers.get_all(FORWARDED_FOR) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(client.to_string().as_bytes());
    if let Ok(value) = HeaderValue::from_bytes(&list) {
        headers.insert(FORWARDED_FOR, value);
    }
}

fn remove_hop(headers: &mut HeaderMap) {
    for name in &HOP {
        headers.remove(name);
    }
}

/// Returns the headers that `Connection` names. Invalid header names are ignored.
fn named_by_connection(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> + use<> {
    let names: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect();
    names.into_iter()
}

// === impl Believed ===

impl Believed {
    pub(crate) fn new(front_proxy: Option<&FrontProxy>) -> Self {
        let Some(front_proxy) = front_proxy else { return Self::default() };
        let lower = |names: &[String]| names.iter().map(|name| name.to_ascii_lowercase()).collect();
        let mut names: Vec<String> = lower(&front_proxy.username_headers);
        names.extend::<Vec<String>>(lower(&front_proxy.group_headers));
        Self { names, prefixes: lower(&front_proxy.extra_header_prefixes) }
    }

    fn claims(&self, name: &HeaderName) -> bool {
        let name = name.as_str();
        // In kube-apiserver, as in Go, `_` and `-` in header names differ; proxies in between may treat them as equal.
        let dashed = name.bytes().map(|byte| if byte == b'_' { b'-' } else { byte });
        dashed.take(REMOTE.len()).eq(REMOTE.bytes())
            || self.names.iter().any(|own| own == name)
            || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        map
    }

    fn cleaned(lines: &[(&str, &str)]) -> Result<Vec<String>, HeadError> {
        let mut headers = map(lines);
        let believed = Believed {
            names: vec!["x-custom-user".to_owned()],
            prefixes: vec!["x-custom-extra-".to_owned()],
        };
        clean_request(&mut headers, &believed)?;
        let mut lines: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        lines.sort_unstable();
        Ok(lines)
    }

    #[test]
    fn what_only_a_front_proxy_may_say_is_taken_away() {
        let lines = [
            ("X-Remote-User", "admin"),
            ("x-REMOTE-group", "system:masters"),
            ("X-Remote-Extra-Scopes", "all"),
            ("X-Remote-Uid", "0"),
            ("X_Remote_User", "admin"),
            ("X-Remote-Anything-New", "x"),
            ("X-Custom-User", "admin"),
            ("X-Custom-Extra-a", "b"),
            ("Accept", "*/*"),
            ("Impersonate-User", "jane"),
        ];
        assert_eq!(cleaned(&lines).unwrap(), ["accept: */*", "impersonate-user: jane"]);
    }

    #[test]
    fn connection_takes_away_this_hop_and_nobodys_identity() {
        let lines = [
            ("Connection", "close, X-Remote-User"),
            ("Connection", "x-mine, host"),
            ("X-Remote-User", "admin"),
            ("X-Mine", "1"),
            ("Host", "api"),
            ("Keep-Alive", "5"),
            ("TE", "gzip"),
            ("Trailer", "Check"),
        ];
        assert_eq!(cleaned(&lines).unwrap(), ["host: api", "trailer: Check"]);
        for name in ["Authorization", "Impersonate-User", "impersonate-uid", "Impersonate-Extra-x"] {
            let lines = [("Connection", name), ("Impersonate-User", "jane")];
            assert_eq!(cleaned(&lines), Err(HeadError::ConnectionNamesIdentity), "{name}");
        }
    }

    #[test]
    fn two_lengths_are_refused() {
        let lines = [("Content-Length", "3"), ("Transfer-Encoding", "chunked")];
        assert_eq!(cleaned(&lines), Err(HeadError::TwoLengths));
    }

    #[test]
    fn tokens_are_seen_where_kube_apiserver_sees_them() {
        for (name, value, token) in [
            ("Authorization", "Bearer abc", Some("abc")),
            ("Authorization", "bearer  abc ", Some("abc")),
            ("Authorization", "Basic abc", None),
            ("Authorization", "Bearer ", None),
            ("X-Authorization", "Bearer abc", None),
        ] {
            assert_eq!(bearer(&map(&[(name, value)])), token, "{value:?}");
        }
        let protocols = "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.YWJj";
        assert!(carries_token(&map(&[("Sec-WebSocket-Protocol", protocols)])));
        assert!(!carries_token(&map(&[("Sec-WebSocket-Protocol", "v4.channel.k8s.io")])));
    }

    #[test]
    fn the_client_is_added_to_those_before_it() {
        let mut headers = map(&[("X-Forwarded-For", "203.0.113.1"), ("X-Forwarded-For", "203.0.113.2")]);
        forwarded_for(&mut headers, "192.0.2.7".parse().unwrap());
        let list: Vec<_> = headers.get_all(FORWARDED_FOR).iter().collect();
        assert_eq!(list, ["203.0.113.1, 203.0.113.2, 192.0.2.7"]);
    }

    #[test]
    fn an_upgrade_is_asked_for_by_both_headers() {
        assert!(asks_for_upgrade(&map(&[("Connection", "keep-alive, Upgrade"), ("Upgrade", "SPDY/3.1")])));
        assert!(!asks_for_upgrade(&map(&[("Upgrade", "SPDY/3.1")])));
        assert!(!asks_for_upgrade(&map(&[("Connection", "Upgrade")])));
    }
}
