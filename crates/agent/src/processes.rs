//! Process exits as reported by the kernel.
//!
//! A script may swallow an exit code, and a pipe may delay the last output; the kernel's events are complete.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, TrySendError};

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

/// Programs whose exit decides a bootstrap, by their kernel names.
const WATCHED: [&str; 2] = ["kubeadm", "nodeadm"];
/// Limit of running processes. More indicates a runaway loop, and the first ones are enough to report it.
const MAX_RUNNING: usize = 256;
/// One event has 76 bytes.
const BUFFER: usize = 1024;

// From the kernel's `linux/connector.h` and `linux/cn_proc.h`.
const CN_IDX_PROC: u32 = 1;
const CN_VAL_PROC: u32 = 1;
const PROC_CN_MCAST_LISTEN: u32 = 1;
const NLMSG_DONE: u16 = 3;
const NETLINK_HEAD: usize = 16;
const CONNECTOR_HEAD: usize = 20;
const EVENT_HEAD: usize = 16;
const EXEC: u32 = 0x2;
const EXIT: u32 = 0x8000_0000;

/// The exit of a watched program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) name: &'static str,
    pub(crate) pid: u32,
    pub(crate) end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Code(u32),
    Signal(u32),
}

/// The kernel's process events, limited to this machine's own processes.
#[derive(Debug)]
pub(crate) struct Processes {
    socket: OwnedFd,
    /// The PID namespace of this machine's processes: a host also receives the events of its containers.
    namespace: Option<PathBuf>,
    running: HashMap<u32, &'static str>,
}

#[derive(Debug, PartialEq, Eq)]
enum Event {
    Exec { pid: u32 },
    Exit { pid: u32, end: End },
}

// === impl Processes ===

impl Processes {
    /// Subscribes to the kernel's events. Requires `CAP_NET_ADMIN`; not available inside a container.
    pub(crate) fn listen() -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            Some(netlink::CONNECTOR),
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, CN_IDX_PROC))?;
        send(&socket, &request(), SendFlags::empty())?;
        Ok(Self { socket, namespace: fs::read_link("/proc/self/ns/pid").ok(), running: HashMap::new() })
    }

    /// Sends every exit to the channel until its receiver is dropped.
    pub(crate) fn follow(mut self, tell: &SyncSender<Ended>) {
        let mut buffer = [0; BUFFER];
        loop {
            let received = match recv(&self.socket, &mut buffer, RecvFlags::empty()) {
                Ok((length, _)) => length,
                // The kernel dropped some events under load; later events still arrive.
                Err(Errno::NOBUFS | Errno::INTR) => continue,
                Err(error) => {
                    tracing::warn!(%error, "process events from the kernel ended");
                    return;
                }
            };
            let ended = match parse(&buffer[..received]) {
                Some(Event::Exec { pid }) => {
                    self.began(pid);
                    continue;
                }
                Some(Event::Exit { pid, end }) => {
                    self.running.remove(&pid).map(|name| Ended { name, pid, end })
                }
                None => continue,
            };
            // Events beyond the queue's capacity are dropped: one is enough to trigger reading the logs.
            if let Some(ended) = ended
                && let Err(TrySendError::Disconnected(_)) = tell.try_send(ended)
            {
                return;
            }
        }
    }

    fn began(&mut self, pid: u32) {
        // The process may now execute another program.
        self.running.remove(&pid);
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let Some(name) = WATCHED.into_iter().find(|watched| *watched == name.trim_end()) else { return };
        let namespace = fs::read_link(format!("/proc/{pid}/ns/pid"));
        let elsewhere = namespace.is_ok_and(|namespace| self.namespace.as_ref() != Some(&namespace));
        // Any user may give a program this name.
        let is_of_root =
            fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| is_of_root(&status));
        if !elsewhere && is_of_root && self.running.len() < MAX_RUNNING {
            self.running.insert(pid, name);
        }
    }
}

/// Whether all user IDs in a `/proc/PID/status` are root's.
fn is_of_root(status: &str) -> bool {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.is_some_and(|ids| ids.split_ascii_whitespace().all(|id| id == "0"))
}

/// Returns the subscription message.
fn request() -> Vec<u8> {
    let operation = PROC_CN_MCAST_LISTEN.to_ne_bytes();
    let length = NETLINK_HEAD + CONNECTOR_HEAD + operation.len();
    let mut message = Vec::with_capacity(length);
    message.extend(u32::try_from(length).unwrap_or_default().to_ne_bytes());
    message.extend(NLMSG_DONE.to_ne_bytes());
    // No flags, no sequence number, and port 0 so that the kernel chooses one.
    message.extend([0; 10]);
    message.extend(CN_IDX_PROC.to_ne_bytes());
    message.extend(CN_VAL_PROC.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(u16::try_from(operation.len()).unwrap_or_default().to_ne_bytes());
    message.extend([0; 2]);
    message.extend(operation);
    message
}

/// Parses an event of a process; thread events are ignored.
fn parse(datagram: &[u8]) -> Option<Event> {
    let number = |at: usize| Some(u32::from_ne_bytes(datagram.get(at..at + 4)?.try_into().ok()?));
    let event = NETLINK_HEAD + CONNECTOR_HEAD;
    if (number(NETLINK_HEAD)?, number(NETLINK_HEAD + 4)?) != (CN_IDX_PROC, CN_VAL_PROC) {
        return None;
    }
    let data = event + EVENT_HEAD;
    let (thread, pid) = (number(data)?, number(data + 4)?);
    match number(event)? {
        EXEC if thread == pid => Some(Event::Exec { pid }),
        EXIT if thread == pid => {
            let status = number(data + 8)?;
            // The encoding of `wait`: a signal in the low seven bits, else the exit code in the next eight.
            let end = match status & 0x7f {
                0 => End::Code(status >> 8 & 0xff),
                signal => End::Signal(signal),
            };
            Some(Event::Exit { pid, end })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn datagram(what: u32, data: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0; NETLINK_HEAD];
        bytes.extend(CN_IDX_PROC.to_ne_bytes());
        bytes.extend(CN_VAL_PROC.to_ne_bytes());
        bytes.extend([0; 12]);
        bytes.extend(what.to_ne_bytes());
        bytes.extend([0; 12]);
        bytes.extend(data.iter().flat_map(|number| number.to_ne_bytes()));
        bytes
    }

    #[test]
    fn processes_of_users_are_not_of_root() {
        assert!(is_of_root("Name:\tkubeadm\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n"));
        for status in ["Uid:\t1000\t1000\t1000\t1000\n", "Uid:\t1000\t0\t0\t0\n", "Name:\tkubeadm\n", ""] {
            assert!(!is_of_root(status), "{status}");
        }
    }

    #[test]
    fn events_of_processes_are_read_and_those_of_threads_are_not() {
        assert_eq!(parse(&datagram(EXEC, &[7, 7])), Some(Event::Exec { pid: 7 }));
        let exit = |status| parse(&datagram(EXIT, &[7, 7, status, 17, 1, 1]));
        assert_eq!(exit(1 << 8), Some(Event::Exit { pid: 7, end: End::Code(1) }));
        assert_eq!(exit(9), Some(Event::Exit { pid: 7, end: End::Signal(9) }));
        assert_eq!(parse(&datagram(EXIT, &[8, 7, 0, 17, 1, 1])), None);
        assert_eq!(parse(&datagram(0x1, &[7, 7])), None);
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_parser(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = parse(&bytes);
        }
    }
}
