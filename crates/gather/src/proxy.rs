//! Which proxy the environment wants between here and a host: `HTTPS_PROXY` and `NO_PROXY` as curl and Go read them.

use std::net::IpAddr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;

use crate::Error;

/// A proxy that is asked by CONNECT.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Proxy {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The value of `Proxy-Authorization`.
    pub(crate) authorization: Option<String>,
}

/// The proxy for this host, by what was asked for explicitly, else by the environment.
pub(crate) fn choose(
    explicit: Option<&str>,
    host: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Proxy>, Error> {
    if let Some(explicit) = explicit.filter(|text| !text.is_empty()) {
        return parse(explicit).map(Some);
    }
    let either = |upper: &str, lower: &str| variable(upper).or_else(|| variable(lower));
    let Some(proxy) = either("HTTPS_PROXY", "https_proxy").filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    if either("NO_PROXY", "no_proxy").is_some_and(|list| is_exempt(&list, host)) {
        return Ok(None);
    }
    parse(&proxy).map(Some)
}

/// Loopback is never proxied. An entry is `*`, a name with everything below it, an address, or a network.
fn is_exempt(list: &str, host: &str) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        if entry == "*" {
            return true;
        }
        if let Some(address) = address {
            return match entry.split_once('/') {
                Some((network, bits)) => within(address, network, bits),
                None => entry.trim_matches(['[', ']']).parse() == Ok(address),
            };
        }
        let entry = entry.trim_start_matches('*').trim_start_matches('.').to_ascii_lowercase();
        host == entry || host.strip_suffix(&entry).is_some_and(|rest| rest.ends_with('.'))
    })
}

fn within(address: IpAddr, network: &str, bits: &str) -> bool {
    let (Ok(network), Ok(bits)) = (network.parse::<IpAddr>(), bits.parse::<u32>()) else { return false };
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) if bits <= 32 => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            address.to_bits() & mask == network.to_bits() & mask
        }
        (IpAddr::V6(address), IpAddr::V6(network)) if bits <= 128 => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            address.to_bits() & mask == network.to_bits() & mask
        }
        _ => false,
    }
}

fn parse(text: &str) -> Result<Proxy, Error> {
    // What stands before the `@` is a password and is not repeated.
    let shown = text.rsplit_once('@').map_or(text, |(_, rest)| rest);
    let bad = |why: &str| Error::Proxy { proxy: shown.to_owned(), why: why.to_owned() };
    let rest = match text.split_once("://") {
        Some(("http", rest)) => rest,
        Some(_) => return Err(bad("only http:// proxies are spoken to")),
        None => text,
    };
    let rest = rest.split_once('/').map_or(rest, |(authority, _)| authority);
    let (user, authority) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && !port.contains(']') => {
            (host, port.parse().map_err(|_| bad("its port is no port"))?)
        }
        _ => (authority, 3128),
    };
    if host.is_empty() {
        return Err(bad("it names no host"));
    }
    let authorization = user.map(|user| format!("Basic {}", BASE64.encode(decoded(user))));
    Ok(Proxy { host: host.trim_matches(['[', ']']).to_owned(), port, authorization })
}

/// Percent-escapes resolved, as they stand in a URL's user part.
fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let escaped = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = escaped.and_then(|two| u8::from_str_radix(two, 16).ok()).filter(|_| *first == b'%');
        rest = if byte.is_some() { &tail[2..] } else { tail };
        bytes.push(byte.unwrap_or(*first));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(host: &str, no_proxy: &str) -> bool {
        let variable = |name: &str| match name {
            "https_proxy" => Some("http://proxy.corp:8080".to_owned()),
            "NO_PROXY" => Some(no_proxy.to_owned()),
            _ => None,
        };
        choose(None, host, variable).unwrap().is_some()
    }

    #[test]
    fn exemptions_are_read_as_everybody_reads_them() {
        for (host, no_proxy, proxied) in [
            ("api.corp", "", true),
            ("api.corp", "corp", false),
            ("api.corp", ".corp", false),
            ("api.corp", "*.corp", false),
            ("api.corp.evil", "corp", true),
            ("notcorp", "corp", true),
            ("api.corp", "*", false),
            ("10.1.2.3", "10.0.0.0/8", false),
            ("11.1.2.3", "10.0.0.0/8", true),
            ("10.1.2.3", "10.1.2.3", false),
            ("fd00::7", "fd00::/8", false),
            ("10.1.2.3", "0.0.0.0/0", false),
            ("10.1.2.3", "10.0.0.0/99", true),
            ("localhost", "", false),
            ("127.0.0.1", "", false),
        ] {
            assert_eq!(chosen(host, no_proxy), proxied, "{host} with NO_PROXY={no_proxy}");
        }
    }

    #[test]
    fn a_proxy_may_want_a_password() {
        let proxy = parse("http://me:p%40ss@proxy:8080/").unwrap();
        assert_eq!((proxy.host.as_str(), proxy.port), ("proxy", 8080));
        assert_eq!(proxy.authorization.as_deref(), Some("Basic bWU6cEBzcw=="));
        let refused = |text| parse(text).err().unwrap().to_string();
        assert!(!refused("socks5://me:hush@proxy:1080").contains("hush"));
        assert!(!refused("http://me:hush@proxy:port").contains("hush"));
    }
}
