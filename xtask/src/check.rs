//! `cargo xtask check`: everything that can be wrong without running a test. All parts run; all failures are named.

use anyhow::{Result, bail};

use crate::{generated, layers, licences, shell};

/// A named part of the check.
type Part = (&'static str, fn() -> Result<()>);

pub(crate) fn run() -> Result<()> {
    let parts: [Part; 5] = [
        ("format", || shell::run(shell::cargo().args(["fmt", "--all", "--check"]))),
        ("layers", layers::check),
        ("licences", licences::check),
        ("lints", || {
            let lint =
                ["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"];
            shell::run(shell::cargo().args(lint))
        }),
        ("generated files", generated::check),
    ];
    let mut failed = Vec::new();
    for (name, part) in parts {
        eprintln!("check: {name}");
        if let Err(error) = part() {
            eprintln!("check: {name} failed: {error:#}");
            failed.push(name);
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("failed: {}", failed.join(", ")) }
}
