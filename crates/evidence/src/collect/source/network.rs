//! Addresses, routes and sockets from `/proc` and `/sys`.

use std::fmt::Write as _;
use std::io::Read as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use super::{Source, neighbours};
use crate::collect::forbidden;
use crate::collect::host::Host;
use crate::collect::piece::Trouble;
use crate::collect::sink::{Sink, shown};

/// Limits for links and sockets. A busy node has thousands of connections; the count shows that.
const MAX_LINKS: usize = 500;
const MAX_SOCKETS: usize = 2_000;

/// The kernel's tables grow with the node; at most this much of each is read.
const MAX_TABLE: u64 = 4 << 20;

pub(super) struct Network {
    pub(super) to: String,
}

// === impl Network ===

impl Source for Network {
    fn collect(&self, host: &Host, sink: &mut Sink) -> Result<(), Trouble> {
        if host.list("/sys/class/net").is_err() && table(host, "dev").is_none() {
            return Err(Trouble::Absent);
        }
        sink.text(&format!("{}ip-addr.txt", self.to), "/sys/class/net", &links(host));
        sink.text(&format!("{}ip-route.txt", self.to), "/proc/net/route", &routes(host));
        sink.text(&format!("{}netstat.txt", self.to), "/proc/net/tcp", &sockets(host));
        // Interface errors and drops, protocol counters, and neighbors.
        for (name, to) in
            [("dev", "links"), ("snmp", "counters"), ("netstat", "more-counters"), ("arp", "neighbours")]
        {
            if let Some(text) = table(host, name) {
                sink.text(&format!("{}{to}.txt", self.to), &format!("/proc/net/{name}"), &text);
            }
        }
        // The kernel returns data of its own network namespace, which in a container is not the machine's.
        if host.is_this_machine() {
            let to = format!("{}ip-neigh.txt", self.to);
            match neighbours::told(|number| link_name(host, number)) {
                Ok(text) => sink.text(&to, "netlink", &text),
                Err(error) => sink.note(&to, "netlink", &error.into()),
            }
        }
        Ok(())
    }
}

fn link_name(host: &Host, number: u32) -> Option<String> {
    let links = host.list("/sys/class/net").unwrap_or_default().into_iter().take(MAX_LINKS);
    let mut names = links.map(|name| name.to_string_lossy().into_owned());
    let number = number.to_string();
    names.find(|name| {
        forbidden::fact(host, format!("/sys/class/net/{name}/ifindex")).as_ref() == Some(&number)
    })
}

/// Reads a table of the machine's network namespace: that of process 1, which in a container is not ours.
fn table(host: &Host, name: &str) -> Option<String> {
    let read = |path: String| {
        let (_, file) = forbidden::open(host, Path::new(&path)).ok()?;
        let mut bytes = Vec::new();
        file.take(MAX_TABLE).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    };
    let bytes = read(format!("/proc/1/net/{name}")).or_else(|| read(format!("/proc/net/{name}")))?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn links(host: &Host) -> String {
    let mut text = String::new();
    for link in host.list("/sys/class/net").unwrap_or_default().into_iter().take(MAX_LINKS) {
        let link = link.to_string_lossy();
        let fact = |name: &str| {
            forbidden::fact(host, format!("/sys/class/net/{link}/{name}")).unwrap_or_else(|| "-".to_owned())
        };
        let fact = |name: &str| shown(&fact(name));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{}: state {} carrier {} mtu {} link {}",
            shown(&link),
            fact("operstate"),
            fact("carrier"),
            fact("mtu"),
            fact("address")
        );
        for line in table(host, "if_inet6").unwrap_or_default().lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [address, _, prefix, _, _, name] = words[..]
                && name == link
                && let Ok(address) = u128::from_str_radix(address, 16)
            {
                let prefix = u8::from_str_radix(prefix, 16).unwrap_or(0);
                let _ = writeln!(text, "    inet6 {}/{prefix}", Ipv6Addr::from(address));
            }
        }
    }
    let mut addresses = local_addresses(&table(host, "fib_trie").unwrap_or_default());
    addresses.sort_unstable();
    addresses.dedup();
    for address in addresses {
        let _ = writeln!(text, "local inet {address}");
    }
    text
}

/// Finds this machine's own addresses: `/32 host LOCAL` below an address in the kernel's routing trie.
fn local_addresses(trie: &str) -> Vec<Ipv4Addr> {
    let mut addresses = Vec::new();
    let mut last: Option<Ipv4Addr> = None;
    for line in trie.lines() {
        if let Some(address) = line.trim().strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line.contains("/32 host LOCAL") {
            addresses.extend(last);
        }
    }
    addresses
}

fn routes(host: &Host) -> String {
    let mut text = String::new();
    let mut has_default = false;
    for line in table(host, "route").unwrap_or_default().lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [link, destination, gateway, _, _, _, metric, mask, ..] = words[..] else { continue };
        let (Some(destination), Some(gateway), Some(mask)) = (ipv4(destination), ipv4(gateway), ipv4(mask))
        else {
            continue;
        };
        let prefix = u32::from(mask).count_ones();
        has_default |= prefix == 0;
        let to = if prefix == 0 { "default".to_owned() } else { format!("{destination}/{prefix}") };
        let via = if gateway.is_unspecified() { String::new() } else { format!(" via {gateway}") };
        let _ = writeln!(text, "{to}{via} dev {link} metric {metric}");
    }
    for line in table(host, "ipv6_route").unwrap_or_default().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [destination, prefix, _, _, gateway, metric, _, _, _, link] = words[..] else { continue };
        let (Ok(destination), Ok(gateway)) =
            (u128::from_str_radix(destination, 16), u128::from_str_radix(gateway, 16))
        else {
            continue;
        };
        let prefix = u8::from_str_radix(prefix, 16).unwrap_or(0);
        has_default |= prefix == 0 && link != "lo";
        let via = if gateway == 0 { String::new() } else { format!(" via {}", Ipv6Addr::from(gateway)) };
        let _ = writeln!(text, "{}/{prefix}{via} dev {link} metric {metric}", Ipv6Addr::from(destination));
    }
    if !has_default {
        text += "no default route\n";
    }
    text
}

/// Parses an address in the kernel's format: hexadecimal in native byte order.
fn ipv4(hex: &str) -> Option<Ipv4Addr> {
    u32::from_str_radix(hex, 16).ok().map(|number| Ipv4Addr::from(number.to_ne_bytes()))
}

fn ipv6(hex: &str) -> Option<Ipv6Addr> {
    let mut bytes = [0; 16];
    for (word, at) in bytes.chunks_exact_mut(4).zip((0..).step_by(8)) {
        let number = u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?;
        word.copy_from_slice(&number.to_ne_bytes());
    }
    Some(Ipv6Addr::from(bytes))
}

fn sockets(host: &Host) -> String {
    const STATES: [&str; 12] = [
        "UNKNOWN",
        "ESTABLISHED",
        "SYN_SENT",
        "SYN_RECV",
        "FIN_WAIT1",
        "FIN_WAIT2",
        "TIME_WAIT",
        "CLOSE",
        "CLOSE_WAIT",
        "LAST_ACK",
        "LISTEN",
        "CLOSING",
    ];
    let mut text = String::from("Proto Local Address           Foreign Address         State\n");
    let mut count = 0;
    for name in ["tcp", "tcp6", "udp", "udp6"] {
        for line in table(host, name).unwrap_or_default().lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, local, remote, state, ..] = words[..] else { continue };
            let state = usize::from_str_radix(state, 16).unwrap_or(0);
            count += 1;
            if count <= MAX_SOCKETS {
                let state = STATES.get(state).unwrap_or(&"UNKNOWN");
                let _ = writeln!(text, "{name:<5} {:<23} {:<23} {state}", endpoint(local), endpoint(remote));
            }
        }
    }
    text += &format!("\n{count} sockets\n");
    text
}

fn endpoint(hex: &str) -> String {
    let Some((address, port)) = hex.split_once(':') else { return hex.to_owned() };
    let port = u16::from_str_radix(port, 16).unwrap_or(0);
    let port = if port == 0 { "*".to_owned() } else { port.to_string() };
    match (ipv4(address).filter(|_| address.len() == 8), ipv6(address)) {
        (Some(address), _) => format!("{address}:{port}"),
        (None, Some(address)) => format!("[{address}]:{port}"),
        _ => hex.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_numbers_are_read() {
        let hex = |bytes: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(bytes));
        assert_eq!(endpoint(&format!("{}:192B", hex([127, 0, 0, 1]))), "127.0.0.1:6443");
        let six = format!("{}{}{}{}", hex([0; 4]), hex([0; 4]), hex([0; 4]), hex([0, 0, 0, 1]));
        assert_eq!(endpoint(&format!("{six}:0000")), "[::1]:*");
        assert_eq!(endpoint("nonsense"), "nonsense");
    }

    #[test]
    fn own_addresses_are_found_in_the_tree() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.0.0.7\n        /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link BROADCAST\n";
        assert_eq!(local_addresses(trie), [Ipv4Addr::new(10, 0, 0, 7)]);
    }
}
