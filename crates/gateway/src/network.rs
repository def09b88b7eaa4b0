use std::net::IpAddr;

/// Returns whether tunnels to an address are ever allowed. Loopback, link-local (cloud metadata), multicast and
/// broadcast addresses are not.
pub(crate) fn is_ordinary(address: IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast() || address.octets()[0] == 0,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(local || address.is_loopback() || address.is_multicast() || address.is_unspecified())
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
