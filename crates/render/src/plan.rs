use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use landfall_durable::{self as durable, Access, HostDisk};
use landfall_model::Secret;

use crate::RenderError;
use crate::package::HostFile;

/// Mode of files with a private key: readable by their owner only.
const SECRET_MODE: u32 = 0o600;

/// Files to be written below one directory.
#[derive(Default)]
#[expect(missing_debug_implementations, reason = "may hold private keys")]
pub struct Plan {
    pub files: Vec<File>,
}

#[expect(missing_debug_implementations, reason = "may hold a private key")]
pub struct File {
    /// Path below the directory of the plan.
    pub path: PathBuf,
    pub mode: u32,
    pub content: Content,
}

#[expect(missing_debug_implementations, reason = "may hold a private key")]
pub enum Content {
    Open(String),
    Secret(Secret<String>),
}

// === impl Plan ===

impl Plan {
    pub fn add(&mut self, path: impl Into<PathBuf>, mode: u32, text: impl Into<String>) {
        self.files.push(File { path: path.into(), mode, content: Content::Open(text.into()) });
    }

    pub fn add_secret(&mut self, path: impl Into<PathBuf>, text: impl Into<String>) {
        let content = Content::Secret(Secret::new(text.into()));
        self.files.push(File { path: path.into(), mode: SECRET_MODE, content });
    }

    /// Adds a file of a host below a directory.
    pub(crate) fn put(&mut self, folder: &str, file: HostFile) {
        let HostFile { path, mode, content } = file;
        self.files.push(File { path: format!("{folder}{path}").into(), mode, content });
    }

    /// Returns names and modes of all files, then the contents of those that are not secret.
    pub fn show(&self) -> String {
        let mut text = String::new();
        for file in &self.files {
            let note = if matches!(file.content, Content::Secret(_)) { "  (secret)" } else { "" };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{:04o} {}{note}", file.mode, file.path.display());
        }
        for file in &self.files {
            if let Content::Open(content) = &file.content {
                let _ = write!(text, "\n==> {} <==\n{content}", file.path.display());
            }
        }
        text
    }

    /// Checks that all paths are distinct, and that no file is at the path of a directory.
    pub fn check(&self) -> Result<(), RenderError> {
        let mut places = BTreeSet::new();
        let twice = self.files.iter().find(|file| !places.insert(file.path.as_path()));
        let within = |file: &&File| file.path.ancestors().skip(1).any(|above| places.contains(above));
        match twice.or_else(|| self.files.iter().find(within)) {
            Some(file) => Err(RenderError::Collision { path: file.path.clone() }),
            None => Ok(()),
        }
    }

    /// Writes all files below `folder`, each of them atomically. Without `force`, no file is written if any
    /// exists already. No file is written either if the path of any of them cannot be created.
    pub fn write(&self, folder: &Path, force: bool) -> Result<(), RenderError> {
        self.check()?;
        let targets: Vec<_> = self.files.iter().map(|file| (file, folder.join(&file.path))).collect();
        // A dangling symbolic link also counts as an existing file.
        let taken = |(_, path): &&(&File, PathBuf)| {
            if force { path.is_dir() } else { path.symlink_metadata().is_ok() }
        };
        if let Some((_, path)) = targets.iter().find(taken) {
            return Err(RenderError::Exists { path: path.clone() });
        }
        let mut above = targets.iter().flat_map(|(_, path)| path.ancestors().skip(1));
        if let Some(file) = above.find(|above| above.exists() && !above.is_dir()) {
            let source = io::ErrorKind::NotADirectory.into();
            return Err(RenderError::Folder { path: file.to_owned(), source });
        }
        for (file, path) in targets {
            let parent = path.parent().unwrap_or(folder);
            fs::create_dir_all(parent)
                .map_err(|source| RenderError::Folder { path: parent.to_owned(), source })?;
            let access = Access { mode: file.mode, owner: None };
            durable::write(&HostDisk, &path, file.content.text().as_bytes(), access)
                .map_err(RenderError::Write)?;
        }
        Ok(())
    }
}

// === impl Content ===

impl Content {
    /// Returns the text unless it is secret.
    pub fn shown(&self) -> Option<&str> {
        match self {
            Self::Open(text) => Some(text),
            Self::Secret(_) => None,
        }
    }

    /// Returns the text even if it is secret: for writing only.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Open(text) => text,
            Self::Secret(text) => text.expose(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn plan() -> Plan {
        let mut plan = Plan::default();
        plan.add("units/a.service", 0o644, "[Unit]\n");
        plan.add_secret("pki/a.key", "do not show");
        plan
    }

    #[test]
    fn a_plan_is_shown_without_its_secrets() {
        let shown = plan().show();
        assert_eq!(
            shown,
            "0644 units/a.service\n0600 pki/a.key  (secret)\n\n==> units/a.service <==\n[Unit]\n"
        );
    }

    #[test]
    fn nothing_is_overwritten_unless_forced_and_then_whole() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("pki/a.key");
        fs::create_dir(folder.path().join("pki")).unwrap();
        fs::write(&key, "mine").unwrap();
        assert!(
            matches!(plan().write(folder.path(), false), Err(RenderError::Exists { path }) if path == key)
        );
        assert_eq!(fs::read_to_string(&key).unwrap(), "mine");
        assert!(!folder.path().join("units").exists(), "all or nothing");

        plan().write(folder.path(), true).unwrap();
        assert_eq!(fs::read_to_string(&key).unwrap(), "do not show");
        assert_eq!(key.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    }

    #[test]
    fn files_that_are_in_each_others_place_are_not_written() {
        for (path, there) in
            [("pki/a.key", "pki/a.key"), ("pki/a.key/b", "pki/a.key/b"), ("units", "units/a.service")]
        {
            let folder = tempfile::tempdir().unwrap();
            let mut plan = plan();
            plan.add(path, 0o644, "");
            let refused = plan.write(folder.path(), true);
            assert!(
                matches!(&refused, Err(RenderError::Collision { path }) if path == Path::new(there)),
                "{path}"
            );
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(matches!(plan().write(&file, true), Err(RenderError::Folder { path, .. }) if path == file));
        // The error occurs before any file is written.
        fs::write(folder.path().join("pki"), "").unwrap();
        assert!(matches!(plan().write(folder.path(), true), Err(RenderError::Folder { .. })));
        assert!(!folder.path().join("units").exists());
    }
}
