//! Opens a path below a directory component by component, for kernels before 5.6 and sandboxes without
//! `openat2`.
//!
//! A path has the same meaning as for a process with this root directory. All directories on the path stay
//! open, so that renaming one does not redirect the lookup. Links are only read, never followed by the
//! kernel.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// The kernel's limit.
const MAX_LINKS: usize = 40;

/// Maximum directory depth. Each level is an open file; paths of logs and settings are much shorter.
const MAX_DEPTH: usize = 128;

/// The rest of a path, next component last.
struct Way(Vec<OsString>);

/// Opens the path below the directory with these flags, resolving links and `..` inside it.
pub(super) fn open(root: &OwnedFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let mut way = Way(Vec::new());
    way.begin(path);
    let mut folders: Vec<OwnedFd> = Vec::new();
    let mut links = 0;
    while let Some(name) = way.0.pop() {
        if name == "." {
            continue;
        }
        if name == ".." {
            folders.pop();
            continue;
        }
        let here = folders.last().unwrap_or(root);
        let fd = rustix::fs::openat(
            here,
            &*name,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let is_last = way.0.is_empty();
        match super::host::file_type(&fd)? {
            FileType::Symlink if !(is_last && flags.contains(OFlags::NOFOLLOW)) => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP.into());
                }
                let target = OsString::from_vec(rustix::fs::readlinkat(&fd, "", Vec::new())?.into_bytes());
                if way.begin(Path::new(&target)) {
                    folders.clear();
                }
            }
            FileType::Directory if folders.len() == MAX_DEPTH => return Err(Errno::NAMETOOLONG.into()),
            FileType::Directory => folders.push(fd),
            _ if !is_last => return Err(Errno::NOTDIR.into()),
            _ if flags.contains(OFlags::PATH) && !flags.contains(OFlags::DIRECTORY) => return Ok(fd),
            // The file type was checked before; if the file was since replaced by a link, this fails.
            _ => return Ok(rustix::fs::openat(here, &*name, flags | OFlags::NOFOLLOW, Mode::empty())?),
        }
    }
    let here = folders.last().unwrap_or(root);
    Ok(rustix::fs::openat(here.as_fd(), ".", flags, Mode::empty())?)
}

// === impl Way ===

impl Way {
    /// Prepends this path. Returns whether it is absolute.
    fn begin(&mut self, path: &Path) -> bool {
        // Not `Path::components`: a path that ends with `.` or `/` must lead to a directory and follows
        // links.
        let names = path.as_os_str().as_bytes().split(|byte| *byte == b'/');
        let names = names.rev().enumerate().filter(|(from_end, name)| *from_end == 0 || !name.is_empty());
        self.0.extend(
            names.map(|(_, name)| OsStr::from_bytes(if name.is_empty() { b"." } else { name }).to_owned()),
        );
        path.is_absolute()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;
    use rustix::fs::{CWD, ResolveFlags};

    use super::*;

    /// Generates paths of existing names, with links to files, directories, missing files, outside files and
    /// themselves.
    fn way() -> impl Strategy<Value = String> {
        let name = prop::sample::select(vec!["a", "b", "l0", "l1", "l2", "..", ".", "none"]);
        (any::<(bool, bool)>(), prop::collection::vec(name, 1..6)).prop_map(|((absolute, folder), names)| {
            let slash = |wanted| if wanted { "/" } else { "" };
            format!("{}{}{}", slash(absolute), names.join("/"), slash(folder))
        })
    }

    fn root(folder: &Path) -> OwnedFd {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, folder, flags, Mode::empty()).unwrap()
    }

    /// Returns the identity of the opened file, or the error number.
    fn told(opened: io::Result<OwnedFd>) -> Result<(u64, u64), Option<i32>> {
        let stat = rustix::fs::fstat(opened.map_err(|error| error.raw_os_error())?).unwrap();
        Ok((stat.st_dev, stat.st_ino))
    }

    proptest! {
        #[test]
        fn a_path_leads_where_the_kernel_says(links in prop::collection::vec(way(), 6), path in way()) {
            let folder = tempfile::tempdir().unwrap();
            let top = folder.path().join("root");
            for inner in ["", "a", "a/b", "b"] {
                fs::create_dir(top.join(inner)).unwrap();
            }
            fs::write(top.join("b/a"), "a file").unwrap();
            fs::write(folder.path().join("a"), "outside").unwrap();
            for (number, to) in links.iter().enumerate() {
                symlink(to, top.join(["", "a"][number / 3]).join(format!("l{}", number % 3))).unwrap();
            }
            let root = root(&top);
            let inside = Path::new(&path);
            let inside = inside.strip_prefix("/").unwrap_or(inside);
            let inside = if inside.as_os_str().is_empty() { Path::new(".") } else { inside };
            for flags in [
                OFlags::PATH,
                OFlags::PATH | OFlags::NOFOLLOW,
                OFlags::RDONLY,
                OFlags::RDONLY | OFlags::DIRECTORY,
            ] {
                let flags = flags | OFlags::CLOEXEC;
                let kernel =
                    rustix::fs::openat2(&root, inside, flags, Mode::empty(), ResolveFlags::IN_ROOT);
                let ours = open(&root, inside, flags);
                prop_assert_eq!(told(ours), told(kernel.map_err(Into::into)), "{} {:?}", path, flags);
            }
        }
    }

    #[test]
    fn a_way_that_has_no_end_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        symlink("round", folder.path().join("round")).unwrap();
        let mut deep = folder.path().join("deep");
        for _ in 0..=MAX_DEPTH {
            fs::create_dir(&deep).unwrap();
            deep.push("d");
        }
        let root = root(folder.path());
        let errno = |path: &str| told(open(&root, Path::new(path), OFlags::PATH)).unwrap_err();
        assert_eq!(errno("round"), Some(Errno::LOOP.raw_os_error()));
        let below = |count: usize| format!("deep{}", "/d".repeat(count));
        assert_eq!(errno(&below(MAX_DEPTH)), Some(Errno::NAMETOOLONG.raw_os_error()));
        assert!(open(&root, Path::new(&below(MAX_DEPTH - 1)), OFlags::PATH).is_ok());
    }
}
