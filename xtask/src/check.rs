//! `cargo xtask check`: all checks without tests. All parts run, and all failures are reported.

use anyhow::{Result, bail};

use crate::{deny, generated, layers, shell, unused};

/// A named part of the check.
type Part = (&'static str, fn() -> Result<()>);

pub(crate) fn run() -> Result<()> {
    let parts: [Part; 7] = [
        ("format", || shell::run(shell::cargo().args(["fmt", "--all", "--check"]))),
        ("layers", layers::check),
        ("dependency policy", deny::check),
        ("unused dependencies", unused::check),
        ("lints", || {
            let lint =
                ["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"];
            shell::run(shell::cargo().args(lint))
        }),
        ("documentation", || {
            let document = ["doc", "--workspace", "--no-deps", "--locked", "--quiet"];
            shell::run(shell::cargo().args(document).env("RUSTDOCFLAGS", "-D warnings"))
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
