//! Execution of other programs in the repository's root.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Returns the repository's root, derived from this crate's location at compile time.
pub(crate) fn root() -> PathBuf {
    let crate_directory = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    crate_directory.parent().map_or_else(|| crate_directory.clone(), PathBuf::from)
}

/// Returns cargo's target directory.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Returns the cargo that runs this task, so that a selected toolchain stays in use.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("start `{}`", shown(command)))?;
    ensure!(status.success(), "`{}` failed", shown(command));
    Ok(())
}

/// Returns a program's output; its standard error is passed through.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("start `{}`", shown(command)))?;
    ensure!(output.status.success(), "`{}` failed", shown(command));
    Ok(output.stdout)
}

fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}
