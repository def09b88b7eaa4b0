//! Validation of names, addresses and hashes.
//!
//! Invalid values are rejected before any file is written.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;

use crate::RenderError;

/// The maximum length of a Kubernetes or DNS label.
const MAX_LABEL: usize = 63;
/// The maximum length of an object name or DNS name.
const MAX_NAME: usize = 253;
const SHA256_DIGITS: usize = 64;
/// The group of unauthenticated clients. The gateway rejects them, regardless of their permissions.
pub(crate) const EVERYBODY: &str = "system:unauthenticated";
/// Limits of registries.
const MAX_IMAGE: usize = 255;
const MAX_TAG: usize = 128;
/// Default namespaces of roles that outlive a bootstrap, including the hub with its data.
const ROLES: [&str; 4] = ["landfall", "landfall-agent", "landfall-capi", "landfall-hub"];

pub(crate) fn namespace(text: &str) -> Result<(), RenderError> {
    is_label(text).then_some(()).ok_or_else(|| RenderError::Namespace { namespace: text.to_owned() })
}

/// Checks that a namespace may be deleted together with its only role.
pub(crate) fn own_namespace(text: &str) -> Result<(), RenderError> {
    namespace(text)?;
    if is_shared(text) || ROLES.contains(&text) {
        Err(RenderError::SharedNamespace { namespace: text.to_owned() })
    } else {
        Ok(())
    }
}

/// Whether other components created and use this namespace.
pub(crate) fn is_shared(namespace: &str) -> bool {
    namespace == "default" || namespace.starts_with("kube-") || namespace.starts_with("openshift-")
}

/// Checks `[REGISTRY/]NAME[:TAG][@sha256:HASH]`.
pub(crate) fn image(text: &str) -> Result<(), RenderError> {
    let good = || {
        let (text, hash) = text.split_once('@').map_or((text, None), |(text, hash)| (text, Some(hash)));
        let (folder, last) =
            text.rsplit_once('/').map_or((None, text), |(folder, last)| (Some(folder), last));
        let (name, tag) = last.split_once(':').map_or((last, None), |(name, tag)| (name, Some(tag)));
        let part = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
                && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c))
        };
        let registry = |place: &str| {
            let (host, port) = split_port(place).map_or((place, None), |(host, port)| (host, Some(port)));
            // The text before the first slash may also be a path of the default registry.
            (is_host(&host.to_ascii_lowercase()) || port.is_none() && part(host))
                && port.is_none_or(|port| port.parse::<u16>().is_ok())
        };
        let folders = folder.is_none_or(|folder| {
            let mut parts = folder.split('/');
            parts.next().is_some_and(registry) && parts.all(part)
        });
        let tag = tag.is_none_or(|tag| {
            tag.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                && tag.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
                && tag.len() <= MAX_TAG
        });
        let hash =
            hash.is_none_or(|hash| hash.strip_prefix("sha256:").is_some_and(|hash| sha256(hash).is_ok()));
        text.len() <= MAX_IMAGE && folders && part(name) && tag && hash
    };
    good().then_some(()).ok_or_else(|| RenderError::Image { image: text.to_owned() })
}

/// Checks an address or host name of a server.
pub(crate) fn host(text: &str) -> Result<(), RenderError> {
    let good = match text.parse::<IpAddr>() {
        Ok(address) => !address.is_unspecified() && !address.is_multicast(),
        Err(_) => is_host_name(text),
    };
    good.then_some(()).ok_or_else(|| RenderError::Address { address: text.to_owned() })
}

/// Checks a node's name that, with this prefix, becomes part of object names.
pub(crate) fn node(text: &str, prefix: &str) -> Result<(), RenderError> {
    let good = is_name(text) && prefix.len() + text.len() <= MAX_NAME;
    good.then_some(()).ok_or_else(|| RenderError::Node { node: text.to_owned() })
}

/// Checks the name of an object.
pub fn object_name(text: &str) -> Result<(), RenderError> {
    is_name(text).then_some(()).ok_or_else(|| RenderError::Object { name: text.to_owned() })
}

/// Checks a label selector in the format of `kubectl -l`.
///
/// Its terms are `a`, `!a`, `a=b`, `a==b`, `a!=b`, `a in (b, c)` and `a notin (b, c)`, separated by commas.
pub fn selector(text: &str) -> Result<(), RenderError> {
    let mut depth = 0_i32;
    let apart = |c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    };
    let good = text.is_empty() || text.split(apart).all(|part| is_requirement(part.trim()));
    good.then_some(()).ok_or_else(|| RenderError::Selector { selector: text.to_owned() })
}

fn is_requirement(text: &str) -> bool {
    let listed = [" in ", " notin "].into_iter().find_map(|word| text.split_once(word));
    if let Some((key, list)) = listed {
        let list = list.trim().strip_prefix('(').and_then(|list| list.strip_suffix(')'));
        return is_label_key(key.trim())
            && list.is_some_and(|list| list.split(',').all(|value| is_label_value(value.trim())));
    }
    let equal = ["!=", "==", "="].into_iter().find_map(|sign| text.split_once(sign));
    match equal {
        Some((key, value)) => is_label_key(key.trim()) && is_label_value(value.trim()),
        None => is_label_key(text.strip_prefix('!').unwrap_or(text)),
    }
}

/// Whether the text is `[PREFIX/]NAME`.
fn is_label_key(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_name) && !name.is_empty() && is_label_value(name)
}

fn is_label_value(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= MAX_LABEL
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
        && ends(text.chars().next())
        && ends(text.chars().next_back())
}

/// Whether an object's namespace and name are valid.
pub(crate) fn object(namespace: &str, name: &str) -> bool {
    is_label(namespace) && is_name(name)
}

/// Whether a path on a host is absolute and has no characters that are special to a shell.
pub(crate) fn path(text: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && part != ".."
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
    };
    text.strip_prefix('/').is_some_and(|rest| rest.split('/').all(part))
}

/// Checks a network: an address and a valid prefix length, without host bits.
pub(crate) fn network(text: &str) -> Result<IpAddr, RenderError> {
    let invalid = || RenderError::Network { network: text.to_owned() };
    let network: IpNet = text.parse().map_err(|_| invalid())?;
    let (address, length) = (network.addr(), network.prefix_len().to_string());
    // `nft` accepts no other notation of a number, and does not treat IPv4-mapped IPv6 as IPv4.
    let is_plain = address.to_canonical() == address && text.rsplit('/').next() == Some(&length);
    if is_plain && network.trunc() == network { Ok(address) } else { Err(invalid()) }
}

/// Checks an `http://` or `https://` URL. The server must have no login, and no character may be special to
/// units or YAML.
pub(crate) fn url(text: &str) -> Result<(), RenderError> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let good = rest.is_some_and(|rest| {
        let place = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (host, port) = split_port(place).map_or((place, None), |(host, port)| (host, Some(port)));
        is_plain(rest)
            && is_host(&host.to_ascii_lowercase())
            && port.is_none_or(|port| port.parse::<u16>().is_ok())
    });
    good.then_some(()).ok_or_else(|| RenderError::Url { url: text.to_owned() })
}

/// Checks a URL for requests with secrets: encrypted, or to the local host.
pub fn secure_url(text: &str) -> Result<(), RenderError> {
    url(text)?;
    let local = |rest: &str| {
        let place = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = split_port(place).map_or(place, |(host, _)| host);
        ["localhost", "127.0.0.1", "[::1]"].contains(&host)
    };
    if text.strip_prefix("http://").is_some_and(|rest| !local(rest)) {
        return Err(RenderError::InTheClear { url: text.to_owned() });
    }
    Ok(())
}

/// Checks that a text has no characters that are special to units or YAML.
pub(crate) fn plain(text: &str) -> Result<(), RenderError> {
    is_plain(text).then_some(()).ok_or_else(|| RenderError::Url { url: text.to_owned() })
}

/// Checks `tls://HOST[:PORT]`, or an unencrypted URL of the local host.
pub(crate) fn nats(text: &str) -> Result<(), RenderError> {
    let invalid = || RenderError::Nats { url: text.to_owned() };
    let (scheme, place) = text.split_once("://").ok_or_else(invalid)?;
    let host = match split_port(place) {
        Some((host, port)) => port.parse::<u16>().map(|_| host).map_err(|_| invalid())?,
        None => place,
    };
    let local = ["localhost", "127.0.0.1", "[::1]"].contains(&host);
    let good = is_host(host) && (scheme == "tls" || scheme == "nats" && local);
    good.then_some(()).ok_or_else(invalid)
}

/// Checks a NATS subject without wildcards.
pub(crate) fn subject(text: &str) -> Result<(), RenderError> {
    let part = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    let good = text.len() <= MAX_NAME && text.split('.').all(part);
    good.then_some(()).ok_or_else(|| RenderError::Subject { subject: text.to_owned() })
}

/// Checks `HOST:PORT`.
pub(crate) fn host_and_port(text: &str) -> Result<(), RenderError> {
    let good = split_port(text).is_some_and(|(host, port)| is_host(host) && port.parse::<u16>().is_ok());
    good.then_some(()).ok_or_else(|| RenderError::Neighbour { place: text.to_owned() })
}

/// Returns the port of `[ADDRESS:]PORT`.
pub(crate) fn listen(text: &str) -> Result<u16, RenderError> {
    let port = text.strip_prefix(':').unwrap_or(text).parse::<u16>().ok();
    port.or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.port()))
        .ok_or_else(|| RenderError::Port { address: text.to_owned() })
}

pub(crate) fn sha256(text: &str) -> Result<(), RenderError> {
    let digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    let good = text.len() == SHA256_DIGITS && text.chars().all(digit);
    good.then_some(()).ok_or_else(|| RenderError::Hash { hash: text.to_owned() })
}

/// Quotes a checked word for a shell if needed: none of its characters ends double quotes.
pub(crate) fn shell_word(word: &str) -> String {
    let harmless = word.chars().all(|c| c.is_ascii_alphanumeric() || "-._:/@+,=%".contains(c));
    if harmless { word.to_owned() } else { format!("\"{word}\"") }
}

/// Whether a word is valid in a unit, in YAML and, in double quotes, in a shell.
fn is_plain(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || "-._~:/?#[]@!&+,;=%".contains(c))
}

/// Splits a text at the colon of its port.
fn split_port(text: &str) -> Option<(&str, &str)> {
    text.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'))
}

/// Whether the text is a host name, or an address in the notation of URLs.
fn is_host(text: &str) -> bool {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    match bare {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => text.parse::<Ipv4Addr>().is_ok() || is_host_name(text),
    }
}

/// Whether the text is a host name and not an invalid address. `10.0.0.256`, `127.1` and `0x7f000001` are
/// rejected.
fn is_host_name(text: &str) -> bool {
    let last = text.rsplit('.').next().unwrap_or_default();
    let number = match last.strip_prefix("0x") {
        Some(digits) => digits.chars().all(|c| c.is_ascii_hexdigit()),
        None => last.chars().all(|c| c.is_ascii_digit()),
    };
    is_name(text) && !number
}

fn is_name(text: &str) -> bool {
    text.len() <= MAX_NAME && text.split('.').all(is_label)
}

/// Whether the text is a lower-case RFC 1123 label.
fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=MAX_LABEL).contains(&text.len())
        && text.chars().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_end_where_they_say() {
        for good in ["10.0.0.0/8", "0.0.0.0/0", "192.0.2.1/32", "fd00::/8", "::/0", "::1/128"] {
            assert!(network(good).is_ok(), "{good}");
        }
        for bad in ["10.0.0.0", "10.0.0.1/8", "10.0.0.0/33", "fd00::1/8", "a/8", "10.0.0.0/", "/8", "::/129"]
        {
            assert!(network(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn networks_are_written_as_nft_reads_them() {
        for bad in ["10.0.0.0/08", "10.0.0.0/+8", "::ffff:10.0.0.0/104"] {
            assert!(network(bad).is_err(), "{bad}");
        }
        assert!(network("0.0.0.0/0").is_ok());
    }

    #[test]
    fn selectors_are_what_kubectl_takes() {
        for good in [
            "",
            "pool",
            "!pool",
            "pool=edge",
            "pool==edge,zone!=a",
            "example.org/pool in (a, b),x",
            "a notin (b)",
            "a=",
        ] {
            assert!(selector(good).is_ok(), "{good}");
        }
        for bad in
            ["a b", "=a", ",", "a,", "a=b=c", "a in b", "a in (b", "ü=a", "$(id)", "a='b'", "-a=b", "A/b=c"]
        {
            assert!(selector(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_nearly_an_address_is_no_server() {
        for good in ["10.0.0.5", "fd00::5", "api.corp", "1.example", "node-1", "127.0.0.1"] {
            assert!(host(good).is_ok(), "{good}");
        }
        for bad in [
            "10.0.0.256",
            "127.1",
            "010.0.0.1",
            "2130706433",
            "0x7f000001",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "ff02::1",
        ] {
            assert!(host(bad).is_err(), "{bad}");
        }
        // Node names may look like addresses.
        assert!(node("10.0.0.256", "").is_ok());
    }

    #[test]
    fn images_are_what_a_registry_would_know() {
        let hashed = format!("registry.example/landfall@sha256:{}", "a".repeat(64));
        for good in [
            "landfall",
            "landfall:0.1.0",
            "team/landfall",
            "localhost/landfall:dev",
            "Registry.example:5000/a/b_c/landfall:V1_2-x",
            "10.0.0.5:5000/landfall",
            "[fd00::5]:5000/landfall",
            &hashed,
        ] {
            assert!(image(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "a b",
            "a\"b",
            "$HOME",
            "%n",
            "a/B",
            "Landfall",
            "x:y:z",
            "x:",
            "/x",
            "x/",
            "a//b",
            "r:99999/x",
            "r/l@sha256:abc",
            "r/l@",
            "{{x}}",
            &"n".repeat(300),
        ] {
            assert!(image(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_names_a_server_and_holds_no_login() {
        for good in ["https://Hub.corp:8700/a?b&c", "https://[fd00::1]:1/x", "https://10.0.0.5"] {
            assert!(url(good).is_ok(), "{good}");
        }
        for bad in [
            "https://hub:99999",
            "https://hub:x",
            "https://-",
            "https://user:secret@hub",
            "https://[::1",
            "https://?x",
            "https://10.0.0.256/x",
        ] {
            assert!(url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_a_shell_would_read_is_no_address() {
        for bad in [
            "ftp://a",
            "https://",
            "https:///a",
            "https://a b",
            "https://a'b",
            "https://a$b",
            "https://a\"",
            "a",
        ] {
            assert!(url(bad).is_err(), "{bad}");
        }
        assert!(url("https://releases.example/landfall?x=1&y=2").is_ok());
        assert!(sha256(&"0".repeat(64)).is_ok());
        for bad in ["", "abc", &"G".repeat(64), &"A".repeat(64)] {
            assert!(sha256(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nothing_secret_is_sent_in_the_clear() {
        for good in
            ["https://hub.example:8700", "http://localhost:8700/x", "http://[::1]", "http://127.0.0.1?a"]
        {
            assert!(secure_url(good).is_ok(), "{good}");
        }
        for bad in
            ["http://hub.example", "http://localhost.example", "http://127.0.0.1.example:80", "ftp://a"]
        {
            assert!(secure_url(bad).is_err(), "{bad}");
        }
        for good in
            ["tls://nats.example", "tls://nats.example:4222", "tls://[fd00::1]:4222", "nats://127.0.0.1:1"]
        {
            assert!(nats(good).is_ok(), "{good}");
        }
        for bad in
            ["nats://nats.example", "tls://", "tls://a:b", "nats.example:4222", "tls://a:99999", "tls://a b"]
        {
            assert!(nats(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ports_and_those_who_have_them() {
        for good in ["node-1:8710", "10.0.0.4:8710", "[fd00::4]:8710"] {
            assert!(host_and_port(good).is_ok(), "{good}");
        }
        for bad in ["node-1", "fd00::4", "node-1:", ":8710", "node-1:70000", "https://node-1:8710"] {
            assert!(host_and_port(bad).is_err(), "{bad}");
        }
        for (text, port) in [("8710", 8710), (":8710", 8710), ("10.0.0.4:1", 1), ("[::]:2", 2)] {
            assert_eq!(listen(text).unwrap(), port);
        }
        for bad in ["", ":", "node-1:8710", "70000", "10.0.0.4"] {
            assert!(listen(bad).is_err(), "{bad}");
        }
        assert!(subject("landfall.reports").is_ok());
        for bad in ["", "a..b", "a.*", "a b", ">"] {
            assert!(subject(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nodes_whose_secrets_could_have_no_name_are_refused() {
        assert!(node("worker-1.example", "landfall-in-place-").is_ok());
        let long = ["a".repeat(60), "b".repeat(60), "c".repeat(60), "d".repeat(60)].join(".");
        assert!(node(&long, "").is_ok());
        assert!(node(&long, "landfall-in-place-").is_err());
        assert!(node("Worker", "").is_err());
    }
}
