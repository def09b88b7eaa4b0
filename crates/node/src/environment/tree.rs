//! Moves and removes complete directories.
//!
//! Moving also works where a rename cannot: on an overlay file system and between file systems.

use std::ffi::CString;
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::path::Path;

use landfall_durable::{self as durable, Disk as _, HostDisk};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxAttributes, StatxFlags, fstat, open, openat, statat,
    statx, unlinkat,
};
use rustix::io::Errno;
use rustix::path::Arg;

/// Nesting limit for directories, far beyond the state of a kubelet.
const MAX_DEPTH: usize = 64;

/// Moves by copying. The copy is complete under its new name before anything of the original is removed.
pub(crate) fn move_by_copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut name = to.file_name().unwrap_or_default().to_owned();
    name.push(".draft");
    let draft = to.with_file_name(name);
    remove(&draft)?;
    if let Err(error) = copy(from, &draft, MAX_DEPTH) {
        // The partial copy may contain keys.
        remove(&draft)?;
        return Err(error);
    }
    durable::rename(&HostDisk, &draft, to).map_err(|error| error.source)?;
    remove(from)?;
    HostDisk.sync_dir(from.parent().ok_or(io::ErrorKind::InvalidInput)?)
}

/// Removes a file, or a directory with its content. A missing path is not an error.
///
/// Pods may have nested directories below these paths to any depth, so one directory is open at a time and there is
/// no recursion. Volumes were mounted there, so another file system is an error: its content is not old state of the
/// node.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => empty(path).and_then(|()| std::fs::remove_dir(path)),
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

/// Returns whether another file system is mounted here.
///
/// A directory bind-mounted on itself, as in some kubelet setups, does not count.
pub(crate) fn is_apart(path: &Path) -> io::Result<bool> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("/"));
    Ok(parent.metadata()?.dev() != path.symlink_metadata()?.dev())
}

/// Kernels before 5.8 do not report mount roots; there only a different device is detected.
fn is_mount_root(folder: &OwnedFd) -> io::Result<bool> {
    is_mounted(folder, "", AtFlags::EMPTY_PATH)
}

fn is_mounted(at: impl AsFd, path: impl Arg, flags: AtFlags) -> io::Result<bool> {
    match statx(at, path, flags, StatxFlags::empty()) {
        Ok(found) => Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
        Err(Errno::NOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Removes the content of a directory.
fn empty(top: &Path) -> io::Result<()> {
    let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut here = open(top, folder, Mode::empty())?;
    let device = fstat(&here)?.st_dev;
    // The entered directories, each with the inode number of its parent: it verifies the way back.
    let mut way: Vec<(CString, u64)> = Vec::new();
    loop {
        if let Some(name) = remove_files(&here)? {
            let below = openat(&here, &name, folder, Mode::empty())?;
            if fstat(&below)?.st_dev != device || is_mount_root(&below)? {
                let name = name.to_string_lossy();
                let text = format!("`{name}` below `{}` is a file system of its own", top.display());
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
            }
            way.push((name, fstat(&here)?.st_ino));
            here = below;
            continue;
        }
        let Some((name, number)) = way.pop() else { return Ok(()) };
        let above = openat(&here, "..", folder, Mode::empty())?;
        if fstat(&above)?.st_ino != number {
            return Err(io::Error::other(format!(
                "another process moves directories below `{}`",
                top.display()
            )));
        }
        unlinkat(&above, &name, AtFlags::REMOVEDIR)?;
        here = above;
    }
}

/// Removes everything except directories, and returns the first directory found.
fn remove_files(folder: &OwnedFd) -> io::Result<Option<CString>> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                FileType::from_raw_mode(statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)
            }
            kind => kind,
        };
        if kind == FileType::Directory {
            return Ok(Some(name.to_owned()));
        }
        unlinkat(folder, name, AtFlags::empty())?;
    }
    Ok(None)
}

/// Copies a tree. Sockets and pipes are left out, because their services create them again.
///
/// A mounted file system is refused: it does not belong to the state and could have any size.
fn copy(from: &Path, to: &Path, depth: usize) -> io::Result<()> {
    let found = from.symlink_metadata()?;
    if depth < MAX_DEPTH && is_mounted(CWD, from, AtFlags::SYMLINK_NOFOLLOW)? {
        let text = format!("`{}` is a file system of its own", from.display());
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
    }
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

/// Sets the owner first, because a change of owner clears mode bits.
fn grant(path: &Path, like: &Metadata) -> io::Result<()> {
    chown(path, Some(like.uid()), Some(like.gid()))?;
    std::fs::set_permissions(path, Permissions::from_mode(like.mode() & 0o7777))
}

#[cfg(test)]
mod tests {
    use landfall_testkit::have;
    use landfall_testkit::isolated::{self, in_network, shell};

    use super::*;

    #[test]
    fn a_folder_is_moved_with_modes_and_links() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::create_dir_all(from.join("deep")).unwrap();
        std::fs::write(from.join("deep/key"), "k").unwrap();
        std::fs::set_permissions(from.join("deep/key"), Permissions::from_mode(0o400)).unwrap();
        symlink("deep/key", from.join("link")).unwrap();
        // The remains of an interrupted attempt.
        std::fs::create_dir(folder.path().join("b.draft")).unwrap();
        move_by_copy(&from, &to).unwrap();
        assert!(!from.exists() && !folder.path().join("b.draft").exists());
        assert_eq!(std::fs::read_to_string(to.join("link")).unwrap(), "k");
        assert_eq!(to.join("deep/key").metadata().unwrap().mode() & 0o7777, 0o400);
    }

    /// More levels than a service may have open files, and than calls fit into the stack below.
    const DEEP: usize = 3000;
    const STACK: usize = 128 * 1024;

    #[test]
    fn a_folder_goes_however_deep_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("pods");
        std::fs::create_dir(&top).unwrap();
        let outside = folder.path().join("outside");
        std::fs::write(&outside, "kept").unwrap();
        let mut here = open(&top, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        for level in 0..DEEP {
            rustix::fs::mkdirat(&here, "d", Mode::RWXU).unwrap();
            if level % 500 == 0 {
                rustix::fs::symlinkat(&outside, &here, "link").unwrap();
                rustix::fs::symlinkat(folder.path(), &here, "away").unwrap();
                rustix::fs::mkdirat(&here, "e", Mode::RWXU).unwrap();
            }
            here = openat(&here, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        let gone = top.clone();
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || remove(&gone)).unwrap();
        thread.join().unwrap().unwrap();
        assert!(!top.exists());
        assert_eq!(std::fs::read_to_string(&outside).unwrap(), "kept", "no link was followed");
        remove(&top).unwrap();
    }

    /// Volumes of pods are mounted below these directories, also from the same disk: their content is not old state.
    #[test]
    fn removal_does_not_enter_mounts() {
        if have(isolated::NEEDS) {
            in_network("environment::tree::tests::removal_does_not_enter_mounts", mounts_stay);
        }
    }

    fn mounts_stay() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("data"), "kept").unwrap();
        let (from, file) = (outside.display(), outside.join("data"));
        let mounts = [
            ("another file system", "mount -t tmpfs none $at && echo kept > $at/data".to_owned(), true),
            ("the same file system", format!("mount --bind {from} $at"), true),
            ("a single file", format!("mount --bind {} $at", file.display()), false),
        ];
        for (what, mount, is_folder) in mounts {
            let top = folder.path().join("kubelet");
            let at = top.join("pods/volume");
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            if is_folder {
                std::fs::create_dir(&at).unwrap();
            } else {
                std::fs::write(&at, "").unwrap();
            }
            shell(&format!("at={}; {mount}", at.display()));
            let error = remove(&top).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ResourceBusy, "{what}: {error}");
            assert!(!is_folder || error.to_string().contains("`volume`"), "{what}: {error}");
            // A mounted file system is not moved either.
            let error = move_by_copy(&top, &folder.path().join("aside")).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ResourceBusy, "{what}: {error}");
            assert!(error.to_string().contains("pods/volume"), "{what}: {error}");
            for left in ["aside", "aside.draft"] {
                assert!(!folder.path().join(left).exists(), "{what}: {left}");
            }
            let data = if is_folder { at.join("data") } else { at.clone() };
            assert_eq!(std::fs::read_to_string(data).unwrap().trim(), "kept", "{what}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept", "{what}");
            shell(&format!("umount {}", at.display()));
            remove(&top).unwrap();
            assert!(!top.exists(), "{what}");
        }
    }

    #[test]
    fn what_is_mounted_is_known() {
        assert!(is_apart(Path::new("/proc")).unwrap());
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_apart(folder.path()).unwrap());
    }
}
