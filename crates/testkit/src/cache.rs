use std::path::PathBuf;

use anyhow::{Context, Result};
use sha2::{Digest as _, Sha256};

/// Returns the cache directory for built binaries and root images: `$XDG_CACHE_HOME/landfall/testbed`, by
/// default below `~/.cache`.
pub fn cache_dir() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => {
            std::env::home_dir().context("find the home directory for the test bed's cache")?.join(".cache")
        }
    };
    Ok(base.join("landfall/testbed"))
}

/// Returns the path of a binary in `$LANDFALL_TESTBED_BIN`, if that is set.
pub(crate) fn brought(program: &str) -> Option<PathBuf> {
    let directory = std::env::var_os("LANDFALL_TESTBED_BIN").filter(|value| !value.is_empty())?;
    Some(PathBuf::from(directory).join(program))
}

/// Returns a hash of the parts, so that stale cache entries are not used.
pub(crate) fn fingerprint(parts: &[&str]) -> String {
    let digest = parts.iter().fold(Sha256::new(), Sha256::chain_update).finalize();
    // Twelve hexadecimal digits are sufficient to distinguish a few builds.
    let number = digest.iter().take(6).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    format!("{number:012x}")
}
