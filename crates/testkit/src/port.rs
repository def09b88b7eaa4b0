use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Result, bail};

/// Ports are chosen below the kernel's ephemeral range (from 32768), so that no outgoing connection uses one
/// before the component binds it.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// Returns an unused TCP port.
///
/// Processes start their search at different ports, so that concurrent tests do not choose the same one.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(u64::from(std::process::id()) * 97 % u64::from(COUNT))?;
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + (start + step % COUNT) % COUNT;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free TCP port between {FIRST} and {}", FIRST + COUNT)
}
