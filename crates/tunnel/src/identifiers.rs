//! The destinations that an agent can reach: upstream's `agentIdentifiers`, `ipv4=…&host=…&cidr=…&default-route=true`.

use std::net::IpAddr;

use ipnet::IpNet;
use percent_encoding::percent_decode_str;

/// Maximum number of identifiers of an agent; the header size limit applies first.
const MAX_IDENTIFIERS: usize = 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identifiers {
    addresses: Vec<IpAddr>,
    hosts: Vec<String>,
    networks: Vec<IpNet>,
    default_route: bool,
    /// The original text, for the wire.
    text: String,
}

/// How specifically an agent matches a destination; more specific is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fit {
    /// A network that contains the destination, by prefix length.
    Network(u8),
    Exact,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentifierError {
    #[error("`{0}` is not an agent identifier; hint: `ipv4`, `ipv6`, `host`, `cidr`, `default-route`")]
    Name(String),
    #[error("`{value}` is not a value of the agent identifier `{name}`")]
    Value { name: String, value: String },
    #[error("more than {MAX_IDENTIFIERS} agent identifiers")]
    TooMany,
}

/// Handling of unknown identifier names: an error on the command line, ignored in the header of an agent newer than its
/// server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    Refused,
    Ignored,
}

// === impl Identifiers ===

impl Identifiers {
    pub fn parse(text: &str, unknown: Unknown) -> Result<Self, IdentifierError> {
        let mut identifiers = Self { text: text.to_owned(), ..Self::default() };
        for (count, pair) in text.split('&').filter(|pair| !pair.is_empty()).enumerate() {
            if count >= MAX_IDENTIFIERS {
                return Err(IdentifierError::TooMany);
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (percent_decoded(name), percent_decoded(value));
            let bad = || IdentifierError::Value { name: name.clone(), value: value.clone() };
            match name.as_str() {
                "ipv4" | "ipv6" => identifiers.addresses.push(value.parse().map_err(|_| bad())?),
                "host" if !value.is_empty() => identifiers.hosts.push(value.to_ascii_lowercase()),
                "cidr" => identifiers.networks.push(value.parse().map_err(|_| bad())?),
                "default-route" => identifiers.default_route = value.parse().map_err(|_| bad())?,
                "host" => return Err(bad()),
                _ if unknown == Unknown::Refused => return Err(IdentifierError::Name(name)),
                _ => {}
            }
        }
        Ok(identifiers)
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn is_default_route(&self) -> bool {
        self.default_route
    }

    /// Returns how this agent matches the host part of a destination. Addresses are compared by value, not as text.
    pub(crate) fn fit(&self, host: &str) -> Option<Fit> {
        let Ok(address) = host.parse::<IpAddr>() else {
            let host = host.to_ascii_lowercase();
            return self.hosts.contains(&host).then_some(Fit::Exact);
        };
        let address = address.to_canonical();
        if self.addresses.iter().any(|own| own.to_canonical() == address)
            || self.hosts.iter().any(|own| own == host)
        {
            return Some(Fit::Exact);
        }
        self.networks
            .iter()
            .filter(|network| network.contains(&address))
            .map(|network| Fit::Network(network.prefix_len()))
            .max()
    }
}

/// Returns the host of `host:port`, without the brackets of an IPv6 address.
pub(crate) fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn percent_decoded(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_compared_as_addresses() {
        let agent =
            Identifiers::parse("ipv4=10.0.0.1&ipv6=0:0:0:0:0:0:0:1&host=Node.Example", Unknown::Refused)
                .unwrap();
        for host in ["10.0.0.1", "::1", "0::1", "node.example", "::ffff:10.0.0.1"] {
            assert_eq!(agent.fit(host), Some(Fit::Exact), "{host}");
        }
        assert_eq!(agent.fit("10.0.0.2"), None);
        assert_eq!(agent.fit("node"), None);
    }

    #[test]
    fn the_longest_network_fits_best() {
        let agent =
            Identifiers::parse("cidr=10.0.0.0%2F8&cidr=10.1.0.0/16&cidr=fd00::/8", Unknown::Refused).unwrap();
        assert_eq!(agent.fit("10.1.2.3"), Some(Fit::Network(16)));
        assert_eq!(agent.fit("10.2.2.3"), Some(Fit::Network(8)));
        assert_eq!(agent.fit("fd12::1"), Some(Fit::Network(8)));
        assert_eq!(agent.fit("11.0.0.1"), None);
        assert!(Fit::Exact > Fit::Network(128));
    }

    #[test]
    fn unknown_names_are_refused_at_the_keyboard_and_ignored_on_the_wire() {
        assert_eq!(
            Identifiers::parse("zone=a", Unknown::Refused),
            Err(IdentifierError::Name("zone".to_owned()))
        );
        assert!(
            Identifiers::parse("zone=a&default-route=true", Unknown::Ignored).unwrap().is_default_route()
        );
        assert!(Identifiers::parse("cidr=10.0.0.0/33", Unknown::Ignored).is_err());
        assert!(Identifiers::parse("host=", Unknown::Ignored).is_err());
    }

    #[test]
    fn the_host_is_found_in_every_address() {
        for (address, host) in
            [("a:1", "a"), ("[::1]:80", "::1"), ("10.0.0.1:443", "10.0.0.1"), ("plain", "plain")]
        {
            assert_eq!(host_of(address), host);
        }
    }
}
