//! The proxy of the environment for a host: `HTTPS_PROXY` and `NO_PROXY` with the rules of curl and Go.

use std::net::IpAddr;

use landfall_net::{ConnectProxy, ProxyPlace};

use crate::Error;

/// Returns the proxy for this host: the explicit one, or that of the environment.
pub(crate) fn choose(
    explicit: Option<&str>,
    host: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<ConnectProxy>, Error> {
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

/// Returns whether a host needs no proxy. Loopback is never proxied. An entry is `*`, a name including its subdomains,
/// an address, or a network.
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

fn parse(text: &str) -> Result<ConnectProxy, Error> {
    let proxy = ConnectProxy::parse(text)
        .map_err(|error| Error::Proxy { proxy: error.shown, why: error.why.to_owned() })?;
    match proxy.place {
        ProxyPlace::Tcp { .. } => Ok(proxy),
        _ => Err(Error::Proxy {
            proxy: proxy.to_string(),
            why: "only http:// proxies are supported".to_owned(),
        }),
    }
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
    fn what_is_spoken_to_is_told_and_no_password() {
        assert!(parse("http://me:p%40ss@proxy:8080/").is_ok());
        for bad in ["socks5://me:hush@proxy:1080", "https://me:hush@proxy", "http://me:hush@proxy:port"] {
            assert!(!parse(bad).err().unwrap().to_string().contains("hush"));
        }
    }
}
