use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::Deserialize;

/// An IP network: an address and a prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(with = "String"))]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

#[derive(Debug, thiserror::Error)]
#[error("invalid network `{0}`: must be like `10.0.0.0/8` or `fd00::/8`")]
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

// === impl Network ===

impl Network {
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(address)) => {
                same_start(own.to_bits().into(), address.to_bits().into(), 32, self.bits)
            }
            (IpAddr::V6(own), IpAddr::V6(address)) => {
                same_start(own.to_bits(), address.to_bits(), 128, self.bits)
            }
            _ => false,
        }
    }
}

fn same_start(one: u128, other: u128, width: u32, bits: u8) -> bool {
    let ignored = width - u32::from(bits);
    ignored == 128 || (one ^ other) >> ignored == 0
}

impl FromStr for Network {
    type Err = NetworkError;

    /// A single address is a network of one.
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let failed = || NetworkError(text.to_owned());
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| failed())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(width), str::parse).map_err(|_| failed())?;
        if bits > width { Err(failed()) } else { Ok(Self { address, bits }) }
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
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_their_addresses() {
        for (network, address, inside) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.0.0.1", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.8", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "fd00::1", false),
            ("fd00::/8", "fdab::1", true),
            ("::/0", "fdab::1", true),
        ] {
            let network: Network = network.parse().unwrap();
            assert_eq!(network.contains(address.parse().unwrap()), inside, "{address} in {network}");
        }
        for wrong in ["10.0.0.0/33", "ten", "10.0.0.0/", "fd00::/129", ""] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

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
