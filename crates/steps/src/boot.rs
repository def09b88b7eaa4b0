//! The identity of a boot: it distinguishes a reboot from a restart of the process.

use std::fmt;
use std::path::{Path, PathBuf};

use landfall_durable::Disk;

/// The kernel generates it at every boot; all namespaces see the same one.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Enough for a UUID and a newline.
const MAX_BYTES: u64 = 128;

/// The identity of one boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootId(String);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the boot id from `{path}`")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("`{text}` is not a boot id: hexadecimal digits and hyphens are expected")]
    Invalid { text: String },
}

// === impl BootId ===

impl BootId {
    /// Reads the identity of the current boot.
    pub fn read(disk: &dyn Disk) -> Result<Self, Error> {
        let path = Path::new(BOOT_ID);
        let bytes =
            disk.read(path, MAX_BYTES).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::parse(&String::from_utf8_lossy(&bytes))
    }

    pub fn parse(text: &str) -> Result<Self, Error> {
        let id = text.trim();
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') {
            return Err(Error::Invalid { text: id.to_owned() });
        }
        Ok(Self(id.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use landfall_durable::HostDisk;

    #[test]
    fn this_machine_has_one_and_it_stays() {
        let id = BootId::read(&HostDisk).unwrap();
        assert_eq!(id.as_str().len(), 36);
        assert_eq!(id, BootId::read(&HostDisk).unwrap());
    }

    #[test]
    fn what_is_not_an_id_is_refused() {
        for text in ["", "\n", "not an id", "../../etc"] {
            assert!(BootId::parse(text).is_err(), "{text:?}");
        }
    }
}
