//! Moving a whole folder where a rename cannot: on a file system that is laid over another, and from one to another.

use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::path::Path;

/// Folders in folders, far beyond what a kubelet keeps.
const MAX_DEPTH: usize = 64;

/// Moves by copying. Whole under its new name before anything of the old one goes.
pub(super) fn move_by_copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut name = to.file_name().unwrap_or_default().to_owned();
    name.push(".draft");
    let draft = to.with_file_name(name);
    remove(&draft)?;
    copy(from, &draft, MAX_DEPTH)?;
    std::fs::rename(&draft, to)?;
    if let Some(parent) = to.parent() {
        File::open(parent)?.sync_all()?;
    }
    remove(from)
}

/// Removes a file, or a folder with everything in it. What is not there is gone.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(())
        }
        removed => removed,
    }
}

/// Sockets and pipes are not copied: who made them makes them anew.
fn copy(from: &Path, to: &Path, depth: usize) -> io::Result<()> {
    let found = from.symlink_metadata()?;
    if found.is_symlink() {
        symlink(std::fs::read_link(from)?, to)?;
        return lchown(to, Some(found.uid()), Some(found.gid()));
    }
    if found.is_file() {
        let mut file = File::create_new(to)?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        io::copy(&mut File::open(from)?, &mut file)?;
        grant(to, &found)?;
        return file.sync_all();
    }
    if found.is_dir() {
        let deeper = depth.checked_sub(1).ok_or(io::ErrorKind::InvalidInput)?;
        std::fs::create_dir(to)?;
        for entry in std::fs::read_dir(from)? {
            let name = entry?.file_name();
            copy(&from.join(&name), &to.join(&name), deeper)?;
        }
        grant(to, &found)?;
        return File::open(to)?.sync_all();
    }
    Ok(())
}

/// Owner first, because a change of owner takes mode bits away.
fn grant(path: &Path, like: &Metadata) -> io::Result<()> {
    chown(path, Some(like.uid()), Some(like.gid()))?;
    std::fs::set_permissions(path, Permissions::from_mode(like.mode() & 0o7777))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_moved_with_modes_and_links() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::create_dir_all(from.join("deep")).unwrap();
        std::fs::write(from.join("deep/key"), "k").unwrap();
        std::fs::set_permissions(from.join("deep/key"), Permissions::from_mode(0o400)).unwrap();
        symlink("deep/key", from.join("link")).unwrap();
        // An earlier try was cut off.
        std::fs::create_dir(folder.path().join("b.draft")).unwrap();
        move_by_copy(&from, &to).unwrap();
        assert!(!from.exists() && !folder.path().join("b.draft").exists());
        assert_eq!(std::fs::read_to_string(to.join("link")).unwrap(), "k");
        assert_eq!(to.join("deep/key").metadata().unwrap().mode() & 0o7777, 0o400);
    }
}
