use std::path::PathBuf;

use anyhow::{Context, Result};

/// Where built binaries and root images are kept between runs: `$XDG_CACHE_HOME/landfall/testbed`, by default below
/// `~/.cache`.
pub fn cache_dir() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => {
            std::env::home_dir().context("find the home directory for the test bed's cache")?.join(".cache")
        }
    };
    Ok(base.join("landfall/testbed"))
}
