use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cache::{brought, cache_dir, fingerprint};

const MANIFEST: &str = "package.json";
const LOCK: &str = "package-lock.json";

/// A Node.js program at the versions pinned by a lock file in `testbed/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Package {
    Azurite,
}

// === impl Package ===

impl Package {
    pub const ALL: [Self; 1] = [Self::Azurite];

    /// Returns the directory of `testbed/` that pins it.
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

    /// Returns the path of the program, installed or not: in `$LANDFALL_TESTBED_BIN` if set, else in the
    /// cache, in a directory that depends on the pinned versions.
    pub fn path(self) -> Result<PathBuf> {
        match brought(self.program()) {
            Some(path) => Ok(path),
            None => Ok(self.folder()?.join("node_modules/.bin").join(self.program())),
        }
    }

    fn folder(self) -> Result<PathBuf> {
        Ok(cache_dir()?.join(format!("{}-{}", self.name(), fingerprint(&[self.lock()]))))
    }

    /// Installs the program if it does not exist. `testbed` is the repository's directory of that name.
    pub fn install(self, testbed: &Path) -> Result<()> {
        if self.path()?.is_file() {
            return Ok(());
        }
        ensure!(
            brought(self.program()).is_none(),
            "`{}` is not in $LANDFALL_TESTBED_BIN; hint: unset the variable to have it installed",
            self.program()
        );
        // Installed under a temporary name and renamed, so that an interrupted download leaves no incomplete
        // program.
        let (folder, pinned) = (self.folder()?, testbed.join(self.name()));
        let partial = folder.with_file_name(format!(".{}.{}", self.name(), std::process::id()));
        std::fs::create_dir_all(&partial).with_context(|| format!("create `{}`", partial.display()))?;
        for name in [MANIFEST, LOCK] {
            let copied = std::fs::copy(pinned.join(name), partial.join(name));
            copied.with_context(|| format!("copy `{name}` of `{}`", pinned.display()))?;
        }
        // npm verifies the hashes of the lock file and runs no package scripts.
        let status = Command::new("npm")
            .current_dir(&partial)
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
            .stdout(std::process::Stdio::null())
            .status()
            .context("run `npm`; hint: it comes with Node.js")?;
        ensure!(status.success(), "`npm ci` of `{}` failed", self.name());
        // The result of a concurrent run is identical.
        match std::fs::rename(&partial, &folder) {
            Err(_) if self.path()?.is_file() => std::fs::remove_dir_all(&partial),
            renamed => renamed,
        }
        .with_context(|| format!("put `{}` in place", folder.display()))
    }
}
