//! IPv4 and IPv6 neighbors, read over netlink: `/proc` contains only IPv4.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// The kernel responds immediately.
const PATIENCE: Duration = Duration::from_secs(2);

/// Size of one response; the kernel fills buffers of at most 32 KiB.
const MAX_ANSWER: usize = 64 << 10;

/// Maximum number of neighbors reported; a node in a large flat network has some thousand.
const MAX_NEIGHBOURS: usize = 4_096;

/// Maximum number of responses read; each has about a hundred neighbors.
const MAX_ANSWERS: usize = 256;

const HEADER: usize = 16;
/// Family, padding, link, state, flags, kind.
const BODY: usize = 12;

const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// State names of the kernel's bits, as in `ip neigh`.
const STATES: [(u16, &str); 8] = [
    (0x01, "INCOMPLETE"),
    (0x02, "REACHABLE"),
    (0x04, "STALE"),
    (0x08, "DELAY"),
    (0x10, "PROBE"),
    (0x20, "FAILED"),
    (0x40, "NOARP"),
    (0x80, "PERMANENT"),
];

#[derive(Debug, PartialEq, Eq)]
struct Neighbour {
    address: IpAddr,
    link: u32,
    hardware: Option<Vec<u8>>,
    state: u16,
}

#[derive(Debug, PartialEq, Eq)]
enum More {
    May,
    No,
}

/// Formats the neighbors of this process's network namespace, one per line.
///
/// `name_of` maps a link number to its name.
pub(super) fn told(name_of: impl Fn(u32) -> Option<String>) -> io::Result<String> {
    let mut text = String::new();
    for neighbour in ask()? {
        let link = name_of(neighbour.link).unwrap_or_else(|| neighbour.link.to_string());
        let _ = write!(text, "{} dev {link}", neighbour.address);
        if let Some(hardware) = &neighbour.hardware {
            let pairs: Vec<String> = hardware.iter().map(|byte| format!("{byte:02x}")).collect();
            let _ = write!(text, " lladdr {}", pairs.join(":"));
        }
        let state = STATES.iter().find(|(bit, _)| neighbour.state & bit != 0);
        let _ = writeln!(text, " {}", state.map_or("NONE", |(_, name)| name));
    }
    Ok(text)
}

fn ask() -> io::Result<Vec<Neighbour>> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // Protocol 0, the default, is the one for routes and neighbors.
        None,
    )?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    let mut request = Vec::with_capacity(HEADER + BODY);
    request.extend(u32::try_from(HEADER + BODY).unwrap_or_default().to_ne_bytes());
    request.extend(RTM_GETNEIGH.to_ne_bytes());
    request.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    request.extend([0; 8 + BODY]);
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut neighbours = Vec::new();
    let mut buffer = vec![0; MAX_ANSWER];
    for _ in 0..MAX_ANSWERS {
        let (count, _) = rustix::net::recv(&socket, buffer.as_mut_slice(), RecvFlags::empty())?;
        if parse(&buffer[..count], &mut neighbours)? == More::No || neighbours.len() >= MAX_NEIGHBOURS {
            break;
        }
    }
    neighbours.truncate(MAX_NEIGHBOURS);
    Ok(neighbours)
}

/// Parses the messages of one response.
fn parse(mut bytes: &[u8], neighbours: &mut Vec<Neighbour>) -> io::Result<More> {
    while let Some(header) = bytes.get(..HEADER) {
        let length = usize::try_from(u32_at(header, 0)).unwrap_or(usize::MAX);
        let Some(message) = bytes.get(HEADER..length) else { break };
        match u16_at(header, 4) {
            NLMSG_DONE => return Ok(More::No),
            NLMSG_ERROR => return Err(io::Error::other("the kernel refused to list its neighbors")),
            RTM_NEWNEIGH => neighbours.extend(neighbour(message)),
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(More::May)
}

fn neighbour(message: &[u8]) -> Option<Neighbour> {
    let body = message.get(..BODY)?;
    let (family, link, state) = (body[0], u32_at(body, 4), u16_at(body, 8));
    let (mut address, mut hardware) = (None, None);
    let mut attributes = &message[BODY..];
    while let Some(head) = attributes.get(..4) {
        let length = usize::from(u16_at(head, 0));
        let Some(value) = attributes.get(4..length) else { break };
        match (u16_at(head, 2), family) {
            (NDA_DST, AF_INET) => {
                address = <[u8; 4]>::try_from(value).ok().map(|bytes| Ipv4Addr::from(bytes).into());
            }
            (NDA_DST, AF_INET6) => {
                address = <[u8; 16]>::try_from(value).ok().map(|bytes| Ipv6Addr::from(bytes).into());
            }
            (NDA_LLADDR, _) => hardware = Some(value.to_vec()),
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(Neighbour { address: address?, link, hardware, state })
}

/// Reads a number in native byte order; zero if it is missing.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(kind: u16, rest: &[u8]) -> Vec<u8> {
        let mut message = u32::try_from(HEADER + rest.len()).unwrap().to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend([0; 10]);
        message.extend(rest);
        message.resize(message.len().next_multiple_of(4), 0);
        message
    }

    #[test]
    fn neighbours_of_both_families_are_read() {
        let attribute = |kind: u16, value: &[u8]| {
            let mut bytes = u16::try_from(4 + value.len()).unwrap().to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let body = |family: u8, state: u16| {
            let mut body = vec![family, 0, 0, 0];
            body.extend(7_u32.to_ne_bytes());
            body.extend(state.to_ne_bytes());
            body.extend([0; 2]);
            body
        };
        let hardware = [0x52, 0x54, 0, 1, 2, 3];
        let four = [body(AF_INET, 0x20), attribute(NDA_DST, &[10, 0, 0, 1])].concat();
        let six = [
            body(AF_INET6, 0x02),
            attribute(NDA_DST, &Ipv6Addr::LOCALHOST.octets()),
            attribute(NDA_LLADDR, &hardware),
        ]
        .concat();
        let answer =
            [message(RTM_NEWNEIGH, &four), message(RTM_NEWNEIGH, &six), message(NLMSG_DONE, &[0; 4])]
                .concat();
        let mut neighbours = Vec::new();
        assert_eq!(parse(&answer, &mut neighbours).unwrap(), More::No);
        let expected = [
            Neighbour { address: Ipv4Addr::new(10, 0, 0, 1).into(), link: 7, hardware: None, state: 0x20 },
            Neighbour {
                address: Ipv6Addr::LOCALHOST.into(),
                link: 7,
                hardware: Some(hardware.to_vec()),
                state: 0x02,
            },
        ];
        assert_eq!(neighbours, expected);
        assert!(parse(&message(NLMSG_ERROR, &[0; 20]), &mut Vec::new()).is_err());
    }

    #[test]
    fn the_kernel_of_this_machine_answers() {
        told(|_| None).unwrap();
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes, &mut Vec::new());
        }
    }
}
