//! `cargo xtask test`: prepares the test bed, runs every test, and says at the end which ones were skipped and why.

use anyhow::{Context, Result};

use crate::{shell, testbed};

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    testbed::run()?;
    let skipped = tempfile::NamedTempFile::new().context("make the list of skipped tests")?;
    let result = shell::run(
        shell::cargo()
            .args(["test", "--workspace", "--locked", "--no-fail-fast"])
            .args(arguments)
            .env("LANDFALL_SKIPPED_TESTS", skipped.path())
            .env("INSTA_UPDATE", "no")
            // The same cases in every run, so that a failure is one that can be looked at; soak with another seed.
            .env("PROPTEST_RNG_SEED", std::env::var("PROPTEST_RNG_SEED").unwrap_or_else(|_| "1".to_owned())),
    );
    report_skipped(&std::fs::read_to_string(skipped.path()).context("read the list of skipped tests")?);
    result
}

fn report_skipped(list: &str) {
    let mut lines: Vec<&str> = list.lines().collect();
    lines.sort_unstable();
    println!("\nskipped for want of a component: {}", lines.len());
    for line in lines {
        println!("  SKIPPED {line}");
    }
}
