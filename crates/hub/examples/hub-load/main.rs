//! The load generator of `cargo xtask bench hub`.
//!
//! It simulates a fleet that reports to a hub, and checks the store without the hub.

#![expect(clippy::print_stdout, reason = "a tool for measurements")]

mod fleet;
mod line;
mod node;
mod stored;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::line::Way;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        // The load generator has one thread, to leave the other cores to the hub.
        ["fleet", addresses, nodes, every_ms, seconds, list] => one_thread()?.block_on(fleet::run(
            &parse(addresses)?,
            Way::Kept,
            nodes.parse()?,
            0,
            Duration::from_millis(every_ms.parse()?),
            Duration::from_secs(seconds.parse()?),
            Path::new(list),
        )),
        // As agents do: TLS, a token, and one connection per report. Each node makes few reports, so failing nodes
        // fail from the start.
        ["agents", addresses, authority, token, nodes, every_ms, seconds, list] => {
            one_thread()?.block_on(fleet::run(
                &parse(addresses)?,
                Way::anew(Path::new(authority), Path::new(token))?,
                nodes.parse()?,
                node::UNCHANGED,
                Duration::from_millis(every_ms.parse()?),
                Duration::from_secs(seconds.parse()?),
                Path::new(list),
            ))
        }
        ["flood", addresses, connections, nodes, reports, list] => one_thread()?.block_on(fleet::flood(
            &parse(addresses)?,
            connections.parse()?,
            nodes.parse()?,
            reports.parse()?,
            Path::new(list),
        )),
        ["page", address, path, times] => {
            one_thread()?.block_on(fleet::pages(address.parse()?, path, times.parse()?))
        }
        ["missing", store, list] => one_thread()?.block_on(stored::missing(store, Path::new(list))),
        _ => bail!("see the source for what to ask for"),
    }
}

fn one_thread() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

fn parse(addresses: &str) -> Result<Vec<std::net::SocketAddr>> {
    addresses.split(',').map(|address| address.parse().context("read an address")).collect()
}
