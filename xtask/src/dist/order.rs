//! Which functions lie next to each other in the program.
//!
//! The kernel brings a program's file into a process in pieces of 64 KiB around each page that is used. An agent runs a tenth
//! of the program, and that tenth lies all over it: most of its memory was pages it never looked at. So the functions it
//! runs are put side by side. Which ones they are is seen by watching one.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use landfall_testkit::eventually;
use rustix::process::Signal;

use crate::first_boot::FirstBoot;

/// Watched, the agent is slow; what it does with a line it does with all of them.
const BYTES: usize = 256 << 10;
const LIMIT: Duration = Duration::from_mins(5);
/// Where an agent of a first boot keeps them, and what it says when it has none.
const BUNDLES: &str = "state/bundle";
const NO_BUNDLE: &str = "no bundle was made";
/// Fewer would mean that something else was watched.
const MIN_FUNCTIONS: usize = 1000;

/// The functions an agent runs, by the names the linker knows them by, a line each.
///
/// An agent has its bundles made by a process of its own program, which valgrind is in the way of. So the first bundle is left by
/// an agent that is not watched and has no hub, and of the second one sees how it does not come about.
pub(super) fn learn(program: &Path) -> Result<String> {
    let boot = FirstBoot::new(BYTES)?;
    let mut before = boot.agent(program, &[])?;
    let is_bundle = |name: &OsStr| name.as_encoded_bytes().ends_with(b".tar.gz");
    before.wait_until("it to make a bundle", LIMIT, || {
        let mut made = fs::read_dir(boot.path(BUNDLES)).ok()?.filter_map(Result::ok);
        made.any(|entry| is_bundle(&entry.file_name())).then_some(())
    })?;
    drop(before);

    let _hub = boot.hub(program)?;
    let calls = boot.path("calls");
    let record = format!("--callgrind-out-file={}", calls.display());
    let mut words = ["--tool=callgrind", "--demangle=no", &record].map(OsString::from).to_vec();
    words.push(program.into());
    let mut agent = boot.agent(Path::new("valgrind"), &words)?;
    boot.until_told(&mut agent, LIMIT).context("watch an agent with `valgrind`; is it installed?")?;
    boot.fail_again()?;
    eventually("a bundle to be given up", LIMIT, || agent.log().contains(NO_BUNDLE).then_some(()))?;
    agent.signal(Signal::TERM)?;
    agent.wait(LIMIT)?;

    let calls = fs::read_to_string(calls).context("read what valgrind saw")?;
    let seen: BTreeSet<&str> = functions(&calls).collect();
    ensure!(seen.len() >= MIN_FUNCTIONS, "valgrind saw {} functions; are there symbols?", seen.len());
    let newer = seen.iter().flat_map(|name| newer(name));
    Ok(seen.iter().map(|name| (*name).to_owned()).chain(newer).map(|name| name + "\n").collect())
}

/// What takes the place of the C library's function on processors newer than the one valgrind has.
fn newer(name: &str) -> Vec<String> {
    let Some((function, rest)) = name.strip_prefix("__").and_then(|_| name.split_once("_avx")) else {
        return Vec::new();
    };
    let rest = rest.strip_prefix('2').unwrap_or(rest);
    ["_evex", "_avx512"].map(|form| format!("{function}{form}{rest}")).to_vec()
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

    #[test]
    fn forms_for_newer_processors_are_put_beside() {
        assert_eq!(newer("__strlen_avx2"), ["__strlen_evex", "__strlen_avx512"]);
        assert_eq!(newer("__memcmp_avx2_movbe")[0], "__memcmp_evex_movbe");
        assert_eq!(newer("__memcpy_avx_unaligned_erms")[1], "__memcpy_avx512_unaligned_erms");
        assert_eq!(newer("_ZN6memchr4arch6x86_644avx26memchr3One8find_raw17hc30be1efa28e1d2fE").len(), 0);
        assert_eq!(newer("aws_lc_0_47_0_gcm_init_avx").len(), 0);
    }
}
