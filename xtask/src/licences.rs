//! Every crate we link must allow an Apache-2.0 product to carry it.

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::shell;

/// What we ship for; crates of other systems are neither linked nor worth a download.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "OpenSSL",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
}

pub(crate) fn check() -> Result<()> {
    let json = shell::output(shell::cargo().args([
        "metadata",
        "--format-version=1",
        "--locked",
        "--filter-platform",
        PLATFORM,
    ]))?;
    let metadata: Metadata = serde_json::from_slice(&json).context("read `cargo metadata`")?;
    let refused: Vec<String> = metadata
        .packages
        .iter()
        .filter(|package| !package.license.as_deref().is_some_and(allowed))
        .map(|package| {
            format!(
                "{} {}: {}",
                package.name,
                package.version,
                package.license.as_deref().unwrap_or("no licence")
            )
        })
        .collect();
    if refused.is_empty() { Ok(()) } else { bail!("licences not on the list: {}", refused.join("; ")) }
}

/// Whether an SPDX expression can be met from the list: one side of every `OR`, both sides of every `AND`.
fn allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    let mut tokens = expression.replace('(', " ( ").replace(')', " ) ");
    tokens = tokens.replace(" WITH ", "+WITH+");
    let tokens: Vec<&str> = tokens.split_whitespace().collect();
    let mut at = 0;
    let met = alternatives(&tokens, &mut at);
    met && at == tokens.len()
}

fn alternatives(tokens: &[&str], at: &mut usize) -> bool {
    let mut met = conjunction(tokens, at);
    while tokens.get(*at) == Some(&"OR") {
        *at += 1;
        // Not short-circuited: the right side must be consumed as well.
        met |= conjunction(tokens, at);
    }
    met
}

fn conjunction(tokens: &[&str], at: &mut usize) -> bool {
    let mut met = term(tokens, at);
    while tokens.get(*at) == Some(&"AND") {
        *at += 1;
        met &= term(tokens, at);
    }
    met
}

fn term(tokens: &[&str], at: &mut usize) -> bool {
    let Some(token) = tokens.get(*at) else { return false };
    *at += 1;
    if *token != "(" {
        return ALLOWED.contains(&token.replace("+WITH+", " WITH ").as_str());
    }
    let met = alternatives(tokens, at);
    let closed = tokens.get(*at) == Some(&")");
    *at += 1;
    met && closed
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn expressions_are_judged_as_spdx_means_them() {
        for (expression, expected) in [
            ("MIT", true),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0-or-later", false),
            ("GPL-3.0-or-later OR MIT", true),
            ("GPL-3.0-or-later AND MIT", false),
            ("ISC AND (Apache-2.0 OR GPL-2.0)", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("Apache-2.0 WITH LLVM-exception OR GPL-2.0", true),
            ("(MIT", false),
            ("", false),
        ] {
            assert_eq!(allowed(expression), expected, "{expression}");
        }
    }
}
