//! Checks of the store, directly in the database.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::json;

/// Counts acknowledged reports that the store does not contain.
pub(crate) async fn missing(store: &str, list: &Path) -> Result<()> {
    let bytes = std::fs::read(list).context("read the list")?;
    let mut wanted: HashSet<&[u8]> = bytes.chunks_exact(16).collect();
    let (acknowledged, mut stored) = (wanted.len(), 0_u64);
    match store.split_once(':') {
        Some(("sqlite", path)) => {
            let connection = rusqlite::Connection::open(path)?;
            let mut statement = connection.prepare("SELECT id FROM reports")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                stored += 1;
                wanted.remove(row.get_ref(0)?.as_blob()?);
            }
        }
        Some(("postgres", _)) => {
            let (client, connection) = tokio_postgres::connect(store, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            let mut last = 0_i64;
            loop {
                let text = "SELECT number, id FROM reports WHERE number > $1 ORDER BY number LIMIT 50000";
                let rows = client.query(text, &[&last]).await?;
                for row in &rows {
                    stored += 1;
                    wanted.remove(row.try_get::<_, &[u8]>(1)?);
                }
                let Some(row) = rows.last() else { break };
                last = row.try_get(0)?;
            }
        }
        _ => bail!("`{store}` is no store"),
    }
    println!("{}", json!({"acknowledged": acknowledged, "stored": stored, "missing": wanted.len()}));
    Ok(())
}
