use std::fmt;
use std::io::Write as _;
use std::path::Path;

use crate::{Binary, ClusterApi, Package};

/// A requirement of a test.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// An installed program; `testbed/packages.txt` names its package.
    Program(&'static str),
    /// A binary built from its Go module by `cargo xtask testbed`.
    Built(Binary),
    /// Definitions copied from Cluster API's Go module by `cargo xtask testbed`.
    Definitions(ClusterApi),
    /// A Node.js program, installed by `cargo xtask testbed`.
    Installed(Package),
    /// Permission to create namespaces, mounts and cgroups.
    Root,
}

/// Returns whether all needs are met.
///
/// Otherwise the test is recorded as skipped and must return; with `LANDFALL_TESTBED=required` it fails
/// instead.
#[track_caller]
pub fn have(needs: &[Need]) -> bool {
    let Some(missing) = needs.iter().find(|need| !need.is_met()) else {
        return true;
    };
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("unnamed test");
    assert!(
        std::env::var_os("LANDFALL_TESTBED").is_none_or(|value| value != "required"),
        "{missing} is missing and LANDFALL_TESTBED=required; hint: run `cargo xtask testbed`"
    );
    record_skip(&format!("{test}: {missing} is missing"));
    false
}

/// Appends to the list that `cargo xtask test` prints at the end of the run.
fn record_skip(line: &str) {
    let mut stderr = std::io::stderr().lock();
    // A failure of this output must not fail the test; the list below is authoritative.
    let _ = writeln!(stderr, "SKIPPED {line}");
    if let Some(list) = std::env::var_os("LANDFALL_SKIPPED_TESTS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&list);
        let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        assert!(written.is_ok(), "cannot record a skipped test in `{}`", Path::new(&list).display());
    }
}

// === impl Need ===

impl Need {
    pub fn is_met(&self) -> bool {
        match self {
            Self::Program(name) => has_program(name),
            Self::Built(binary) => binary.path().is_ok_and(|path| path.is_file()),
            Self::Definitions(cluster_api) => cluster_api.is_there(),
            Self::Installed(package) => package.path().is_ok_and(|path| path.is_file()),
            Self::Root => rustix::process::geteuid().is_root(),
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(name) => write!(f, "program `{name}`"),
            Self::Built(binary) => write!(f, "built program `{}`", binary.name()),
            Self::Definitions(cluster_api) => write!(f, "Cluster API's {}", cluster_api.version()),
            Self::Installed(package) => write!(f, "installed program `{}`", package.program()),
            Self::Root => f.write_str("root"),
        }
    }
}

/// Searches root's default path: some programs are in directories outside an ordinary `PATH`.
pub fn has_program(name: &str) -> bool {
    if name.starts_with('/') {
        return Path::new(name).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(Into::into))
        .any(|directory| directory.join(name).is_file())
}
