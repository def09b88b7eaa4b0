//! A node's network: a separate namespace, connected to this machine by a pair of virtual interfaces.
//!
//! All nodes reach this machine at the same address, so that an API server's certificate can contain it
//! before any node exists. Packets are not forwarded: a node reaches only this machine.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Address of this machine for the nodes, in the range for tests of network devices (RFC 2544).
pub const HOST_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// Address of the first node.
const FIRST_NODE: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
/// A documentation address (RFC 5737) that [`Dns::Dead`] makes a black hole.
const DEAD_SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 53);
/// An unused hardware address: frames sent to it are lost, as on a network whose server is down.
const NOBODY: &str = "02:00:00:00:00:01";

/// A node's DNS configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dns {
    /// No server is configured.
    None,
    Server(IpAddr),
    /// A server is configured but never responds.
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
            // The resolver's default timeout is 10 s per lookup; the failure is the same after one second.
            Self::Dead => format!("nameserver {DEAD_SERVER}\noptions timeout:1 attempts:1\n"),
        }
    }
}

// === impl Network ===

impl Network {
    /// Determines the names without creating the network.
    pub(super) fn of(number: u16) -> Self {
        Self {
            namespace: format!("landfall-node-{number}"),
            // Interface names have at most 15 characters.
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

    /// Removes the network if it exists.
    pub(super) fn remove(&self) -> Result<()> {
        if self.path().exists() {
            ip(&["netns", "del", &self.namespace])?;
        }
        // The kernel removes the pair with the namespace, but only after the last process in it was cleaned
        // up. It may disappear between check and removal, so only its absence counts.
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
