//! A network that only an agent inside it can reach.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context as _, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// An address inside every such network, without a route from outside. API servers accept it as a proxy target.
pub const INSIDE: Ipv4Addr = Ipv4Addr::new(198, 18, 77, 1);

/// Number of namespaces in this process.
static COUNT: AtomicU8 = AtomicU8::new(0);

/// A namespace connected to the host by a veth pair, over which agents reach servers.
pub struct Namespace {
    name: String,
    host: Ipv4Addr,
}

impl Namespace {
    pub fn new() -> Result<Self> {
        let (process, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let name = format!("lft{process}x{number}");
        let [.., low] = process.to_be_bytes();
        let host = Ipv4Addr::new(10, 201, low, number * 4 + 1);
        let agent = Ipv4Addr::new(10, 201, low, number * 4 + 2);
        ip(&["netns", "add", &name])?;
        let namespace = Self { name, host };
        let name = namespace.name.as_str();
        ip(&["link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name])?;
        ip(&["addr", "add", &format!("{host}/30"), "dev", name])?;
        ip(&["link", "set", name, "up"])?;
        ip(&["-n", name, "addr", "add", &format!("{agent}/30"), "dev", "eth0"])?;
        ip(&["-n", name, "addr", "add", &format!("{INSIDE}/32"), "dev", "lo"])?;
        ip(&["-n", name, "link", "set", "lo", "up"])?;
        ip(&["-n", name, "link", "set", "eth0", "up"])?;
        Ok(namespace)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the host's address from inside.
    pub fn host(&self) -> IpAddr {
        IpAddr::V4(self.host)
    }

    /// Runs inside the namespace: sockets created there stay there.
    pub fn inside<T: Send>(&self, run: impl FnOnce() -> T + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let running = scope.spawn(|| enter(&self.name).map(|()| run()));
            running.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread inside panicked")))
        })
    }
}

/// Moves the calling thread into the namespace permanently.
pub fn enter(name: &str) -> Result<()> {
    let path = PathBuf::from("/run/netns").join(name);
    let namespace = File::open(&path).with_context(|| format!("open `{}`", path.display()))?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .context("enter the namespace")
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The veth pair is deleted with the namespace.
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(arguments).output().context("start `ip`")?;
    ensure!(
        output.status.success(),
        "`ip {}`: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
