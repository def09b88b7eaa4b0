//! `cargo xtask test`: prepares the test bed, runs all tests, and lists the skipped ones with their reasons.
//!
//! Tests with real daemons may fail on a busy machine. A few failures are therefore retried, each alone. A
//! test that then passes is reported as unsteady: it depends on time or order, which is a defect.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{shell, testbed};

/// More failures than this are not considered random.
const MAX_UNSTEADY: usize = 3;
/// A daemon left by a failed test may keep our pipe open.
const REST_OF_OUTPUT: Duration = Duration::from_secs(10);

/// Output of a test run.
#[derive(Default)]
struct Printed {
    ok: bool,
    out: String,
    errors: String,
}

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    testbed::run()?;
    let skipped = tempfile::NamedTempFile::new().context("make the list of skipped tests")?;
    let test = |arguments: &[String]| {
        let mut command = shell::cargo();
        command
            .args(["test", "--workspace", "--locked", "--no-fail-fast"])
            .args(arguments)
            .env("LANDFALL_SKIPPED_TESTS", skipped.path())
            .env("INSTA_UPDATE", "no")
            // The same cases in each run make failures reproducible; use other seeds for soak tests.
            .env("PROPTEST_RNG_SEED", std::env::var("PROPTEST_RNG_SEED").unwrap_or_else(|_| "1".to_owned()));
        print(command)
    };
    let first = test(arguments)?;
    let suspects = suspects(&first);
    let again = if suspects.is_empty() {
        Printed::default()
    } else {
        println!("\nrepeated, one after the other: {}", suspects.join(", "));
        let alone = ["--", "--exact", "--test-threads=1"].map(str::to_owned);
        // The package and target arguments apply again, because other packages may contain a test with the
        // same name.
        let given = arguments.split(|argument| argument == "--").next().unwrap_or_default();
        test(&[given, &alone, &suspects].concat())?
    };
    report_skipped(&std::fs::read_to_string(skipped.path()).context("read the list of skipped tests")?);
    if first.ok {
        return Ok(());
    }
    if !again.ok || passed(&again) < suspects.len() {
        bail!("tests failed; hint: read their names under `failures:` above");
    }
    println!("\nfailed, and passed when run alone: {}", suspects.len());
    for name in suspects {
        println!("  UNSTEADY {name}");
    }
    Ok(())
}

/// Returns the failed tests if they are few and the only failures: a crash or a compiler error has no test
/// name.
fn suspects(printed: &Printed) -> Vec<String> {
    let failed =
        printed.out.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    let names: Vec<String> = failed.map(str::to_owned).collect();
    let told = printed.out.lines().filter(|line| line.starts_with("test result: FAILED")).count();
    let targets = printed.errors.lines().find_map(|line| {
        let count = line.strip_prefix("error: ")?.split_once(" target")?.0;
        count.parse::<usize>().ok()
    });
    if targets == Some(told) && names.len() <= MAX_UNSTEADY { names } else { Vec::new() }
}

/// Returns the number of passed tests, because a run without any matching test also succeeds.
fn passed(printed: &Printed) -> usize {
    let counts = printed.out.lines().filter_map(|line| {
        let (_, counted) = line.strip_prefix("test result: ")?.split_once(". ")?;
        counted.split_once(" passed")?.0.parse::<usize>().ok()
    });
    counts.sum()
}

/// Runs a command and records its output.
fn print(mut command: Command) -> Result<Printed> {
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("start `cargo test`")?;
    let out = child.stdout.take().context("the tests' output")?;
    let errors = child.stderr.take().context("the tests' error output")?;
    let (out, errors) = (copy(out, std::io::stdout()), copy(errors, std::io::stderr()));
    let ok = child.wait().context("wait for `cargo test`")?.success();
    Ok(Printed { ok, out: rest(&out), errors: rest(&errors) })
}

fn copy(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut piece = [0; 8192];
        while let Ok(length @ 1..) = from.read(&mut piece) {
            // The reader of our output may have exited; the result is still needed.
            let _ = to.write_all(&piece[..length]).and_then(|()| to.flush());
            if sender.send(piece[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

fn rest(pieces: &mpsc::Receiver<Vec<u8>>) -> String {
    let mut bytes = Vec::new();
    while let Ok(piece) = pieces.recv_timeout(REST_OF_OUTPUT) {
        bytes.extend(piece);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn report_skipped(list: &str) {
    let mut lines: Vec<&str> = list.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    println!("\nskipped for want of a component: {}", lines.len());
    for line in lines {
        println!("  SKIPPED {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(out: &str, errors: &str) -> Printed {
        Printed { ok: false, out: out.to_owned(), errors: errors.to_owned() }
    }

    const ONE: &str = "test a::good ... ok\ntest a::bad ... FAILED\n\nfailures:\n    a::bad\n\n\
                       test result: FAILED. 1 passed; 1 failed; 0 ignored\n";

    #[test]
    fn a_single_failure_is_tried_again() {
        let errors = "error: test failed, to rerun pass `-p a`\nerror: 1 target failed:\n    `-p a`\n";
        assert_eq!(suspects(&printed(ONE, errors)), ["a::bad"]);
    }

    #[test]
    fn only_what_ran_has_passed() {
        let none = "test result: ok. 0 passed; 0 failed; 7 filtered out\n";
        assert_eq!(passed(&printed(none, "")), 0);
        let two = format!("{none}test result: ok. 2 passed; 0 failed\n{none}");
        assert_eq!(passed(&printed(&two, "")), 2);
    }

    #[test]
    fn what_has_no_name_or_is_no_chance_is_not() {
        let crash = "error: 2 targets failed:\n    `-p a`\n    `-p b`\n";
        assert_eq!(suspects(&printed(ONE, crash)), [] as [&str; 0], "one crashed");
        assert_eq!(suspects(&printed("", "error: could not compile `a`\n")), [] as [&str; 0]);
        let many = format!("{}{ONE}", "test b ... FAILED\n".repeat(MAX_UNSTEADY));
        assert_eq!(suspects(&printed(&many, "error: 1 target failed:\n")), [] as [&str; 0]);
    }
}
