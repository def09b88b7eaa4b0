use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cache::{brought, cache_dir, fingerprint};

const MANIFEST: &str = "package.json";
const LOCK: &str = "package-lock.json";

/// A program of Node.js, at the versions a lock file in `testbed/` pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Package {
    Azurite,
}

// === impl Package ===

impl Package {
    pub const ALL: [Self; 1] = [Self::Azurite];

    /// The folder of `testbed/` that pins it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Azurite => "azurite",
        }
    }

    pub fn program(self) -> &'static str {
        match self {
            Self::Azurite => "azurite-blob",
        }
    }

    fn lock(self) -> &'static str {
        match self {
            Self::Azurite => include_str!("../../../testbed/azurite/package-lock.json"),
        }
    }

    /// Where the program is, or would be once installed: in `$LANDFALL_TESTBED_BIN` when that is set, else in the cache,
    /// below a folder that changes with the pinned versions.
    pub fn path(self) -> Result<PathBuf> {
        match brought(self.program()) {
            Some(path) => Ok(path),
            None => Ok(self.folder()?.join("node_modules/.bin").join(self.program())),
        }
    }

    fn folder(self) -> Result<PathBuf> {
        Ok(cache_dir()?.join(format!("{}-{}", self.name(), fingerprint(&[self.lock()]))))
    }

    /// Installs the program unless it is there. `testbed` is the repository's folder of that name.
    pub fn install(self, testbed: &Path) -> Result<()> {
        if self.path()?.is_file() {
            return Ok(());
        }
        ensure!(
            brought(self.program()).is_none(),
            "`{}` is not in $LANDFALL_TESTBED_BIN; hint: unset the variable to have it installed",
            self.program()
        );
        // Installed beside its final name and renamed, so that an interrupted download leaves nothing that looks ready.
        let (folder, pinned) = (self.folder()?, testbed.join(self.name()));
        let partial = folder.with_file_name(format!(".{}.{}", self.name(), std::process::id()));
        std::fs::create_dir_all(&partial).with_context(|| format!("create `{}`", partial.display()))?;
        for name in [MANIFEST, LOCK] {
            let copied = std::fs::copy(pinned.join(name), partial.join(name));
            copied.with_context(|| format!("copy `{name}` of `{}`", pinned.display()))?;
        }
        // What is fetched is what the lock file has the hashes of, and nothing of it is run before a test does.
        let status = Command::new("npm")
            .current_dir(&partial)
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
            .stdout(std::process::Stdio::null())
            .status()
            .context("run `npm`; hint: it comes with Node.js")?;
        ensure!(status.success(), "`npm ci` of `{}` failed", self.name());
        // What another run put there meanwhile is the same.
        match std::fs::rename(&partial, &folder) {
            Err(_) if self.path()?.is_file() => std::fs::remove_dir_all(&partial),
            renamed => renamed,
        }
        .with_context(|| format!("put `{}` in place", folder.display()))
    }
}
