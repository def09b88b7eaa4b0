//! A node's network: a namespace of its own, joined to this machine by one pair of virtual interfaces.
//!
//! Every node finds this machine at the same address, so that the certificate of an API server can name it before any
//! node exists. Nothing is forwarded: a node reaches this machine and nothing else.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// This machine, as seen from the nodes. From the range kept for tests of network devices (RFC 2544).
pub const HOST_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// Nodes count up from here.
const FIRST_NODE: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
/// A documentation address (RFC 5737) that [`Dns::Dead`] makes a black hole.
const DEAD_SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 53);
/// A hardware address nobody has: frames sent to it vanish, as on a network whose server is down.
const NOBODY: &str = "02:00:00:00:00:01";

/// Who answers a node's name lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dns {
    /// No server is configured.
    None,
    Server(IpAddr),
    /// A server is configured, and no question to it is ever answered.
    Dead,
}

#[derive(Debug)]
pub(super) struct Network {
    namespace: String,
    interface: String,
    address: Ipv4Addr,
}

// === impl Dns ===

impl Dns {
    pub(super) fn resolv_conf(self) -> String {
        match self {
            Self::None => String::new(),
            Self::Server(address) => format!("nameserver {address}\n"),
            // The resolver's own patience is 10 seconds for each lookup; the failure is the same after one.
            Self::Dead => format!("nameserver {DEAD_SERVER}\noptions timeout:1 attempts:1\n"),
        }
    }
}

// === impl Network ===

impl Network {
    /// Names only; creates nothing.
    pub(super) fn of(number: u16) -> Self {
        Self {
            namespace: format!("landfall-node-{number}"),
            // Interface names have 15 characters at most.
            interface: format!("landfall{number}"),
            address: Ipv4Addr::from_bits(FIRST_NODE.to_bits() + u32::from(number)),
        }
    }

    pub(super) fn create(&self, dns: Dns) -> Result<()> {
        let (namespace, interface) = (self.namespace.as_str(), self.interface.as_str());
        let (host, node) = (HOST_ADDRESS.to_string(), self.address.to_string());
        ip(&["netns", "add", namespace])?;
        ip(&["link", "add", interface, "type", "veth", "peer", "name", "eth0", "netns", namespace])?;
        ip(&["addr", "add", &format!("{host}/32"), "dev", interface])?;
        ip(&["link", "set", interface, "up"])?;
        ip(&["route", "add", &format!("{node}/32"), "dev", interface])?;
        let inside = |arguments: &[&str]| ip(&[&["-n", namespace], arguments].concat());
        inside(&["link", "set", "lo", "up"])?;
        inside(&["addr", "add", &format!("{node}/32"), "dev", "eth0"])?;
        inside(&["link", "set", "eth0", "up"])?;
        inside(&["route", "add", "default", "via", &host, "dev", "eth0", "onlink"])?;
        if dns == Dns::Dead {
            let dead = DEAD_SERVER.to_string();
            inside(&["route", "add", &dead, "dev", "eth0"])?;
            inside(&["neigh", "add", &dead, "lladdr", NOBODY, "dev", "eth0"])?;
        }
        Ok(())
    }

    /// Removes what there is of it.
    pub(super) fn remove(&self) -> Result<()> {
        if self.path().exists() {
            ip(&["netns", "del", &self.namespace])?;
        }
        // The pair vanishes with the namespace, but only once the kernel has cleaned up behind the last process in it.
        // That may come about between looking and removing: what counts is that it is gone.
        let interface = PathBuf::from("/sys/class/net").join(&self.interface);
        if interface.exists()
            && let Err(error) = ip(&["link", "del", &self.interface])
            && interface.exists()
        {
            return Err(error);
        }
        Ok(())
    }

    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.namespace)
    }

    pub(super) fn address(&self) -> Ipv4Addr {
        self.address
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(arguments).output().context("run `ip`")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {}", arguments.join(" "), errors.trim());
    Ok(())
}
