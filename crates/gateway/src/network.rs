use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::Deserialize;

/// An IP network; a single address is a network of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(with = "String"))]
pub struct Network(IpNet);

#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no network; hint: write it like `10.0.0.0/8` or `fd00::/8`")]
pub struct NetworkError(String);

/// Returns whether tunnels to an address are ever allowed. Loopback, link-local (cloud metadata), multicast and
/// broadcast addresses are not.
pub(crate) fn is_ordinary(address: IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast() || address.octets()[0] == 0,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(local || address.is_loopback() || address.is_multicast() || address.is_unspecified())
}

impl Network {
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let network = text.parse::<IpAddr>().map(IpNet::from).or_else(|_| text.parse());
        network.map(Self).map_err(|_| NetworkError(text.to_owned()))
    }
}

impl TryFrom<String> for Network {
    type Error = NetworkError;

    fn try_from(text: String) -> Result<Self, NetworkError> {
        text.parse()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_addresses_are_nobodys_node() {
        for (address, ordinary) in [
            ("10.0.0.5", true),
            ("fd00::5", true),
            ("127.0.0.1", false),
            ("169.254.169.254", false),
            ("0.0.0.0", false),
            ("::1", false),
            ("fe80::1", false),
            ("255.255.255.255", false),
            ("224.0.0.1", false),
        ] {
            assert_eq!(is_ordinary(address.parse().unwrap()), ordinary, "{address}");
        }
    }
}
