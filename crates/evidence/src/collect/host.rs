//! The machine under examination, by its root directory: `/`, a mounted disk, a container's `/host`, or a
//! test directory.
//!
//! A [`Host`] never opens a file outside its root, whatever links a hostile disk contains. It opens only
//! regular files for reading: opening a FIFO can block, and opening a device can have side effects.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use jiff::Timestamp;
use landfall_model::identity::NodeIdentity;
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, StatVfs};
use rustix::io::Errno;

use super::identity::Identities;
use super::{provider, walk};

/// File with the name of the cluster. It distinguishes nodes with equal names when one hub serves several
/// clusters.
const CLUSTER: &str = "/etc/landfall/cluster";
/// Maximum length of a DNS label.
const MAX_CLUSTER: usize = 63;

/// Maximum number of names per directory. More are a mistake or an attack; they are not read.
const MAX_NAMES: usize = 20_000;

/// Maximum number of files that match one pattern.
const MAX_FOUND: usize = 4_000;

/// Maximum number of attempts to resolve a path while other processes rename its components.
const MAX_TRIES: usize = 32;

/// Maximum number of directory levels that `**` matches.
const MAX_DEPTH: usize = 8;

/// `/proc/stat` has a line for each processor and one for all interrupts.
const MAX_STAT: u64 = 1 << 20;

/// Changes at each boot of the kernel.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Maximum length of a fact, such as a host name or a state.
const MAX_FACT: u64 = 64 << 10;
/// Longest host name in DNS.
const MAX_HOST_NAME: usize = 253;
/// Length of a machine or boot ID with hyphens.
const MAX_ID: usize = 36;
const MAX_OS_NAME: usize = 128;

/// A machine, identified by its root directory.
#[derive(Debug)]
pub struct Host {
    root: OwnedFd,
    path: PathBuf,
    /// Real path of the root, with all links in `path` resolved.
    real: PathBuf,
    /// Identities of the files that are never collected.
    identities: RwLock<Option<Arc<Identities>>>,
}

/// A search for the files of one pattern.
struct Search {
    found: Vec<PathBuf>,
    deadline: Instant,
}

// === impl Host ===

impl Host {
    /// Opens the machine with this root directory. `/` is the local machine.
    pub fn at(root: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, root, flags, Mode::empty())?;
        let real = std::fs::read_link(descriptor_path(&fd)).unwrap_or_else(|_| root.to_owned());
        Ok(Self { root: fd, path: root.to_owned(), real, identities: RwLock::default() })
    }

    pub fn root(&self) -> &Path {
        &self.path
    }

    /// Returns whether network and service queries reach this machine, which is true only for `/`.
    pub fn is_this_machine(&self) -> bool {
        self.path == Path::new("/")
    }

    /// Returns whether the local kernel's state describes this machine: true for `/`, and for a host root
    /// mounted into a container together with the host's mounts.
    pub fn is_of_this_kernel(&self) -> bool {
        let own = || std::fs::read_to_string(BOOT_ID).ok();
        self.is_this_machine()
            || self.fact(BOOT_ID).is_some_and(|id| own().is_some_and(|own| own.trim() == id))
    }

    /// Returns the kernel's start time, by the current clock setting.
    pub fn kernel_started(&self) -> Option<Timestamp> {
        started(&self.read("/proc/stat", MAX_STAT).unwrap_or_default())
    }

    /// Opens a regular file for reading.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let path = path.as_ref();
        // Checked before opening and again afterwards, in case the file was replaced in between.
        regular(&self.resolve(path, OFlags::PATH)?)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = match self.resolve(path, flags | OFlags::NOATIME) {
            // Only the owner may open a file without updating its access time.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => self.resolve(path, flags)?,
            other => other?,
        };
        regular(&fd)?;
        Ok(fd.into())
    }

    /// Returns the real path of an open file relative to the root, with all links resolved.
    pub(super) fn real_path(&self, file: &File) -> io::Result<PathBuf> {
        let path = std::fs::read_link(descriptor_path(file))?;
        Ok(path.strip_prefix(&self.real).map_or_else(|_| path.clone(), |inside| Path::new("/").join(inside)))
    }

    /// Returns the identities of files that are never collected, from the first call or the last
    /// [`Host::refresh`].
    pub(super) fn identities(&self) -> Arc<Identities> {
        let known = self.identities.read().unwrap_or_else(PoisonError::into_inner).clone();
        known.unwrap_or_else(|| self.refresh())
    }

    /// Reads the identities again.
    pub(super) fn refresh(&self) -> Arc<Identities> {
        let identities = Arc::new(Identities::gather(self));
        *self.identities.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&identities));
        identities
    }

    /// Forces the next check to read the identities again.
    #[cfg(test)]
    pub(super) fn expire(&self) {
        *self.identities.write().unwrap() = Some(Arc::new(Identities::gather(self).expired()));
    }

    /// Opens a directory for reading.
    pub(super) fn directory(&self, path: impl AsRef<Path>) -> io::Result<OwnedFd> {
        self.resolve(path.as_ref(), OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Reads the first `max` bytes of a file.
    pub fn read(&self, path: impl AsRef<Path>, max: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(path)?.take(max).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads a small file as trimmed text; `None` if it cannot be read.
    pub fn fact(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = self.read(path, MAX_FACT).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.resolve(path.as_ref(), OFlags::PATH).is_ok()
    }

    /// Returns the sorted names in a directory.
    pub fn list(&self, folder: impl AsRef<Path>) -> io::Result<Vec<OsString>> {
        let fd = self.directory(folder)?;
        let mut names = Vec::new();
        for entry in Dir::new(fd)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
            if names.len() == MAX_NAMES {
                break;
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Finds the regular files that match a pattern, sorted.
    ///
    /// `*` matches any part of a name except a leading dot; a component `**` matches up to eight directory
    /// levels.
    ///
    /// A disk may contain directories that link to themselves under a thousand names. The search fails at the
    /// deadline.
    pub fn find(&self, pattern: &str, deadline: Instant) -> io::Result<Vec<PathBuf>> {
        let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty()).collect();
        let mut search = Search { found: Vec::new(), deadline };
        self.find_in(PathBuf::from("/"), &parts, 0, &mut search)?;
        let mut found = search.found;
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    pub fn stat(&self, path: impl AsRef<Path>) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(self.resolve(path.as_ref(), OFlags::PATH)?)?)
    }

    /// Returns the usage of the file system at a path.
    pub fn space(&self, path: impl AsRef<Path>) -> io::Result<StatVfs> {
        Ok(rustix::fs::fstatvfs(self.resolve(path.as_ref(), OFlags::PATH)?)?)
    }

    /// Connects to a socket inside the root.
    pub fn connect(&self, path: impl AsRef<Path>) -> io::Result<UnixStream> {
        let fd = self.resolve(path.as_ref(), OFlags::PATH)?;
        match file_type(&fd)? {
            // The descriptor path names the opened file even if the original path was changed.
            FileType::Socket => UnixStream::connect(descriptor_path(&fd)),
            other => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("it is {}, not a socket", kind(other)),
            )),
        }
    }

    /// Returns the configured cluster name, for hubs that serve several clusters.
    ///
    /// It contains no dot: in a node name, the cluster precedes the first dot.
    pub fn cluster(&self) -> Option<String> {
        self.fact(CLUSTER).and_then(|name| plausible(name, MAX_CLUSTER, "-_"))
    }

    /// Returns the machine's self-reported identity.
    pub fn identity(&self) -> NodeIdentity {
        let live = |path: &str| self.fact(path).filter(|text| !text.is_empty());
        let release = live("/etc/os-release").or_else(|| live("/usr/lib/os-release")).unwrap_or_default();
        let pretty = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        let hostname = live("/proc/sys/kernel/hostname").filter(|_| self.is_this_machine());
        let hostname = hostname
            .or_else(|| live("/etc/hostname"))
            .and_then(|name| plausible(name, MAX_HOST_NAME, ".-_"))
            .unwrap_or_else(|| "unknown".to_owned());
        NodeIdentity {
            hostname: self.cluster().map_or(hostname.clone(), |cluster| format!("{cluster}.{hostname}")),
            machine_id: live("/etc/machine-id").and_then(|id| plausible(id, MAX_ID, "-")),
            boot_id: live(BOOT_ID).and_then(|id| plausible(id, MAX_ID, "-")),
            os: pretty.and_then(|name| plausible(name.trim_matches('"').to_owned(), MAX_OS_NAME, " .-_()/+")),
            architecture: self.is_this_machine().then(|| std::env::consts::ARCH.to_owned()),
            provider_id: provider::id(self),
        }
    }

    fn find_in(&self, base: PathBuf, parts: &[&str], depth: usize, search: &mut Search) -> io::Result<()> {
        if Instant::now() >= search.deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let Some((part, rest)) = parts.split_first() else {
            if search.found.len() < MAX_FOUND
                && self.resolve(&base, OFlags::PATH).and_then(|fd| regular(&fd)).is_ok()
            {
                search.found.push(base);
            }
            return Ok(());
        };
        if !part.contains('*') {
            return self.find_in(base.join(part), rest, depth, search);
        }
        let names = match self.list(&base) {
            Ok(names) => names,
            // A missing directory, or a file in its place, has no entries. Above the pattern's first star
            // other failures are reported; below it the search continues.
            Err(error) if is_absent(&error) || depth > 0 => return Ok(()),
            Err(error) => return Err(error),
        };
        if *part == "**" {
            self.find_in(base.clone(), rest, depth + 1, search)?;
        }
        for name in names {
            let wanted = matches(part.as_bytes(), name.as_encoded_bytes());
            if search.found.len() >= MAX_FOUND || !wanted {
                continue;
            }
            let path = base.join(&name);
            if *part != "**" {
                self.find_in(path, rest, depth + 1, search)?;
            } else if depth < MAX_DEPTH && self.is_real_folder(&path) {
                self.find_in(path, parts, depth + 1, search)?;
            }
        }
        Ok(())
    }

    /// Returns whether this is a directory and not a link: links could form cycles.
    fn is_real_folder(&self, path: &Path) -> bool {
        let fd = self.resolve(path, OFlags::PATH | OFlags::NOFOLLOW);
        fd.and_then(|fd| file_type(&fd)).is_ok_and(|kind| kind == FileType::Directory)
    }

    fn resolve(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        let inside = path.strip_prefix("/").unwrap_or(path);
        let inside = if inside.as_os_str().is_empty() { Path::new(".") } else { inside };
        let contained = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let mut tries = 0;
        let opened = loop {
            tries += 1;
            match rustix::fs::openat2(&self.root, inside, flags, Mode::empty(), contained) {
                // A component of the path was renamed during the lookup.
                Err(Errno::AGAIN) if tries < MAX_TRIES => {}
                other => break other,
            }
        };
        match opened {
            // Kernels before 5.6 and old sandboxes lack the system call.
            Err(Errno::NOSYS) => walk::open(&self.root, inside, flags),
            other => Ok(other?),
        }
    }
}

/// Parses the kernel's start time from `/proc/stat`.
fn started(stat: &[u8]) -> Option<Timestamp> {
    let stat = String::from_utf8_lossy(stat);
    let seconds = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Timestamp::from_second(seconds).ok()
}

/// Returns the path of an open file in `/proc/self/fd`.
pub(super) fn descriptor_path(fd: &impl std::os::fd::AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

/// Returns whether the error means that the file does not exist, rather than that it cannot be read.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn regular(fd: &OwnedFd) -> io::Result<()> {
    match file_type(fd)? {
        FileType::RegularFile => Ok(()),
        other => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {}, not a file", kind(other))))
        }
    }
}

pub(super) fn file_type(fd: &OwnedFd) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode))
}

fn kind(file_type: FileType) -> &'static str {
    match file_type {
        FileType::RegularFile => "a file",
        FileType::Directory => "a folder",
        FileType::Symlink => "a link",
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "of an unknown kind",
    }
}

/// Returns whether a name matches a pattern with stars. A leading dot must match literally.
pub(super) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    if name.starts_with(b".") && !pattern.starts_with(b".") {
        return false;
    }
    let (mut p, mut n) = (0, 0);
    // Where to resume when the last star has to match one more byte.
    let mut again: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            again = Some((p + 1, n + 1));
            p += 1;
        } else if pattern.get(p) == Some(&name[n]) {
            (p, n) = (p + 1, n + 1);
        } else if let Some((star, next)) = again {
            (p, n) = (star, next);
            again = Some((star, next + 1));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Returns a fact for the manifest, which is not redacted: only letters, digits and the given signs are
/// allowed. On a hostile disk these files may be links to keys.
fn plausible(text: String, most: usize, signs: &str) -> Option<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || signs.contains(c);
    (!text.is_empty() && text.len() <= most && text.chars().all(fits)).then_some(text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use super::*;

    fn find(host: &Host, pattern: &str) -> Vec<PathBuf> {
        host.find(pattern, Instant::now() + Duration::from_secs(60)).unwrap()
    }

    #[test]
    fn a_machine_is_named_with_its_cluster_where_that_is_told() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("etc/landfall")).unwrap();
        fs::write(folder.path().join("etc/hostname"), "worker-0\n").unwrap();
        let name = || Host::at(folder.path()).unwrap().identity().hostname;
        assert_eq!(name(), "worker-0");
        for (cluster, expected) in
            [("prod\n", "prod.worker-0"), ("", "worker-0"), ("a/b", "worker-0"), ("a.b", "worker-0")]
        {
            fs::write(folder.path().join("etc/landfall/cluster"), cluster).unwrap();
            assert_eq!(name(), expected, "{cluster:?}");
        }
    }

    #[test]
    fn a_folder_that_leads_to_itself_by_many_names_is_given_up_in_time() {
        let root = tempfile::tempdir().unwrap();
        for number in 0..100 {
            symlink(".", root.path().join(format!("again-{number}"))).unwrap();
        }
        let host = Host::at(root.path()).unwrap();
        let started = Instant::now();
        // Exponentially many paths match, and none of them ends at a file.
        let result = host.find("/*/*/*/*/*/*/*/x", started + Duration::from_millis(200));
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    }

    #[test]
    fn parses_the_start_of_the_kernel() {
        let time = started(b"cpu 1 2\nbtime 1700000000\nprocesses 7\n");
        assert_eq!(time, Some(Timestamp::from_second(1_700_000_000).unwrap()));
        for odd in [&b""[..], b"btime x\n", b"btime 99999999999999999999\n", b"btime 18446744073709551615\n"]
        {
            assert_eq!(started(odd), None);
        }
    }

    #[test]
    fn a_folder_is_of_this_kernel_when_its_proc_is() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::at(root.path()).unwrap();
        assert!(Host::at(Path::new("/")).unwrap().is_of_this_kernel() && !host.is_of_this_kernel());
        let path = root.path().join(&BOOT_ID[1..]);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "01890a5d-ac96-474b-bcce-b302099a8057\n").unwrap();
        assert!(!host.is_of_this_kernel());
        fs::write(&path, fs::read(BOOT_ID).unwrap()).unwrap();
        assert!(host.is_of_this_kernel());
    }

    #[test]
    fn links_do_not_lead_out_of_the_root() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "outside").unwrap();
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("var/log")).unwrap();
        let link = |to: &Path, from: &str| symlink(to, root.path().join(from)).unwrap();
        link(&outside.path().join("secret"), "var/log/absolute");
        link(Path::new("../../../../../../../../../../../../etc/passwd"), "var/log/climbing");
        link(outside.path(), "var/folder");
        link(Path::new("/var/log/inside-target"), "var/log/inside");
        fs::write(root.path().join("var/log/inside-target"), "inside").unwrap();
        let host = Host::at(root.path()).unwrap();
        for path in ["/var/log/absolute", "/var/log/climbing", "/var/folder/secret", "/../../etc/passwd"] {
            assert!(is_absent(&host.open(path).unwrap_err()), "{path}");
        }
        assert_eq!(host.read("/var/log/inside", 100).unwrap(), b"inside", "links are those of the root");
        assert_eq!(find(&host, "/var/log/*").len(), 2, "links to nothing are not found");
    }

    #[test]
    fn pipes_and_devices_are_not_opened() {
        let root = tempfile::tempdir().unwrap();
        let pipe = root.path().join("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let host = Host::at(root.path()).unwrap();
        assert_eq!(host.open("/pipe").unwrap_err().to_string(), "it is a named pipe, not a file");
        assert!(find(&host, "/*").is_empty());
        let machine = Host::at(Path::new("/")).unwrap();
        assert_eq!(machine.open("/dev/null").unwrap_err().to_string(), "it is a device, not a file");
        assert_eq!(machine.open("/proc").unwrap_err().to_string(), "it is a folder, not a file");
    }

    #[test]
    fn patterns_find_files_at_any_depth_and_circles_end() {
        let root = tempfile::tempdir().unwrap();
        for path in ["pki/ca.crt", "pki/etcd/ca.crt", "pki/.hidden/x.crt", "pki/etcd/ca.key"] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        symlink("..", root.path().join("pki/etcd/up")).unwrap();
        let host = Host::at(root.path()).unwrap();
        let found = find(&host, "/pki/**/*.crt");
        assert_eq!(found, [Path::new("/pki/ca.crt"), Path::new("/pki/etcd/ca.crt")]);
        assert!(find(&host, "/nowhere/*/x").is_empty());
    }

    #[test]
    fn stars_match_like_a_shell() {
        for (pattern, name, expected) in [
            ("*", "a", true),
            ("*", ".a", false),
            (".*", ".a", true),
            ("*.log", "a.log", true),
            ("*.log", "a.log.1", false),
            ("*.log*", "a.log.1", true),
            ("a*b*c", "axxbxbxc", true),
            ("a*b*c", "axxbxbx", false),
            ("", "", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }
}
