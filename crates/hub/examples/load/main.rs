//! What `cargo xtask bench hub` measures with: a hub without the rest of the program, a fleet that reports to it, and a
//! look into its store that does not go through the hub.

#![expect(clippy::print_stdout, reason = "a tool for measurements")]

mod fleet;
mod node;
mod stored;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use landfall_hub::{Config, ObjectPlace, Server, StorePlace};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        // A hub has all cores, as `landfall hub` does.
        ["serve", address, store, folder] => {
            tokio::runtime::Runtime::new()?.block_on(serve(address, store, folder))
        }
        // The load has one thread, so that it takes little from what it measures.
        ["fleet", addresses, nodes, every_ms, seconds, list] => one_thread()?.block_on(fleet::run(
            &parse(addresses)?,
            nodes.parse()?,
            Duration::from_millis(every_ms.parse()?),
            Duration::from_secs(seconds.parse()?),
            Path::new(list),
        )),
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

async fn serve(address: &str, store: &str, folder: &str) -> Result<()> {
    let month = Duration::from_secs(30 * 86_400);
    let server = Server::bind(Config {
        listen: address.parse()?,
        store: StorePlace::parse(store)?,
        objects: ObjectPlace::Folder(folder.into()),
        tls: None,
        token_key: None,
        proxy: None,
        keep: month,
        keep_bundles: month,
        max_bundle: 1 << 20,
        watch: Vec::new(),
        watch_authority: None,
        pull: None,
    })
    .await?;
    let mut terminate = signal(SignalKind::terminate())?;
    server
        .serve(async {
            terminate.recv().await;
        })
        .await;
    Ok(())
}
