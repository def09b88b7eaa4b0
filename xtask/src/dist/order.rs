//! Which functions lie next to each other in the program.
//!
//! The kernel brings a program's file into a process in pieces of 64 KiB around each page that is used. An agent runs a tenth
//! of the program, and that tenth lies all over it: most of its memory was pages it never looked at. So the functions it
//! runs are put side by side. Which ones they are is seen by watching one.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::first_boot::FirstBoot;

/// Watched, the agent is slow; what it does with a line it does with all of them.
const LOG: usize = 256 << 10;
const LIMIT: Duration = Duration::from_mins(5);
/// Fewer would mean that something else was watched.
const MIN_FUNCTIONS: usize = 1000;

/// The functions an agent runs, by the names the linker knows them by, a line each.
pub(super) fn learn(program: &Path) -> Result<String> {
    let boot = FirstBoot::new(program, LOG)?;
    let calls = boot.path("calls");
    let words = format!("--tool=callgrind --demangle=no --callgrind-out-file={}", calls.display());
    let words: Vec<&OsStr> = words.split(' ').map(OsStr::new).chain([program.as_os_str()]).collect();
    let mut agent = boot.agent(Path::new("valgrind"), &words)?;
    boot.until_told(&mut agent, LIMIT)
        .context("watch an agent with `valgrind`, which has to be installed")?;
    agent.signal(Signal::TERM)?;
    agent.wait(LIMIT)?;
    let record = fs::read_to_string(&calls).context("read what valgrind saw")?;
    let functions = functions(&record);
    ensure!(
        functions.len() >= MIN_FUNCTIONS,
        "valgrind saw {} functions; are there symbols?",
        functions.len()
    );
    Ok(functions.into_iter().map(|name| format!("{name}\n")).collect())
}

/// Of callgrind's record, where `fn=(7) NAME` is a function's first mention, and `'2` after the name one within itself.
fn functions(record: &str) -> BTreeSet<&str> {
    let mentions = record.lines().filter_map(|line| {
        let (_, named) =
            line.strip_prefix("fn=(").or_else(|| line.strip_prefix("cfn=("))?.split_once(") ")?;
        named.split('\'').next()
    });
    mentions.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_is_named_once() {
        let record =
            "fl=(1) a.rs\nfn=(1) _ZN1a1bE\n+3 4\ncfn=(2) memcpy\ncalls=1 0\nfn=(2)\nfn=(3) _ZN1a1bE'2\n";
        assert_eq!(functions(record).into_iter().collect::<Vec<_>>(), ["_ZN1a1bE", "memcpy"]);
    }
}
