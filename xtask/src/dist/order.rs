//! Which functions lie next to each other in the program.
//!
//! The kernel brings a program's file into a process in pieces of 64 KiB around each page that is used. An agent runs a tenth
//! of the program, and that tenth lies all over it: most of its memory was pages it never looked at. So the functions it
//! runs are put side by side. Which ones they are is seen by watching one.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::first_boot::{CAUSE, FirstBoot, LOG};

/// Watched, the agent is slow; what it does with a line it does with all of them.
const BYTES: usize = 256 << 10;
const LIMIT: Duration = Duration::from_mins(5);
/// Fewer would mean that something else was watched.
const MIN_FUNCTIONS: usize = 1000;

/// The functions an agent runs, by the names the linker knows them by, a line each.
///
/// Below valgrind the kernel's call that keeps an agent within its `--root` is missing, so the agent is watched in what it says
/// and `diagnose` in how logs are read.
pub(super) fn learn(program: &Path) -> Result<String> {
    let boot = FirstBoot::new(program, BYTES)?;
    let (calls, readings) = (boot.path("calls"), boot.path("readings"));
    let mut agent = boot.agent(Path::new("valgrind"), &watching(&calls, program))?;
    let said = "The logs do not show a cause";
    boot.until_told(&mut agent, said, LIMIT).context("watch an agent with `valgrind`; is it installed?")?;
    agent.signal(Signal::TERM)?;
    agent.wait(LIMIT)?;
    let mut diagnose = Command::new("valgrind");
    diagnose.args(watching(&readings, program)).arg("diagnose").arg(boot.path(LOG));
    let found = diagnose.output().context("watch `diagnose` with `valgrind`")?;
    ensure!(String::from_utf8_lossy(&found.stdout).contains(CAUSE), "`diagnose` found nothing: {found:?}");

    let record = |path| fs::read_to_string(path).context("read what valgrind saw");
    let (calls, readings) = (record(calls)?, record(readings)?);
    let seen: BTreeSet<&str> = functions(&calls).chain(functions(&readings)).collect();
    ensure!(seen.len() >= MIN_FUNCTIONS, "valgrind saw {} functions; are there symbols?", seen.len());
    Ok(seen.into_iter().map(|name| format!("{name}\n")).collect())
}

/// What valgrind is told: where to write, and what to watch.
fn watching(record: &Path, program: &Path) -> Vec<OsString> {
    let record = format!("--callgrind-out-file={}", record.display());
    let words = ["--tool=callgrind", "--demangle=no", &record].map(OsString::from);
    words.into_iter().chain([program.into()]).collect()
}

/// Of callgrind's record, where `fn=(7) NAME` is a function's first mention, and `'2` after the name one within itself.
fn functions(record: &str) -> impl Iterator<Item = &str> {
    record.lines().filter_map(|line| {
        let (_, named) =
            line.strip_prefix("fn=(").or_else(|| line.strip_prefix("cfn=("))?.split_once(") ")?;
        named.split('\'').next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_known_by_their_names() {
        let record =
            "fl=(1) a.rs\nfn=(1) _ZN1a1bE\n+3 4\ncfn=(2) memcpy\ncalls=1 0\nfn=(2)\nfn=(3) _ZN1a1bE'2\n";
        assert_eq!(functions(record).collect::<Vec<_>>(), ["_ZN1a1bE", "memcpy", "_ZN1a1bE"]);
    }
}
