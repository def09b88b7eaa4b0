//! `cargo xtask dist`: what a release holds, below `target/dist/`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use sha2::{Digest as _, Sha256};

use crate::shell;

const TARGET: &str = "x86_64-unknown-linux-gnu";

pub(crate) fn run() -> Result<()> {
    let root = shell::root();
    let dist = root.join("target/dist");
    if dist.exists() {
        fs::remove_dir_all(&dist).context("clear `target/dist`")?;
    }
    fs::create_dir_all(dist.join("completions")).context("make `target/dist`")?;

    eprintln!("dist: static binary");
    // A target of its own keeps the flags away from build scripts and procedural macros, which cannot be static.
    shell::run(
        shell::cargo()
            .args(["build", "--profile", "dist", "--locked", "--package", "landfall", "--target", TARGET])
            .env("RUSTFLAGS", "-C target-feature=+crt-static"),
    )?;
    let binary = dist.join("landfall");
    fs::copy(root.join("target").join(TARGET).join("dist/landfall"), &binary).context("take the binary")?;
    ensure!(is_static(&fs::read(&binary)?), "the binary needs a dynamic loader; it must be static");

    let landfall = || std::process::Command::new(&binary);
    for shell_name in ["bash", "zsh", "fish"] {
        let script = shell::output(landfall().args(["completions", shell_name]))?;
        fs::write(dist.join("completions").join(format!("landfall.{shell_name}")), script)?;
    }
    shell::run(landfall().arg("man").arg("--directory").arg(dist.join("man")))?;
    copy_tree(&root.join("dist"), &dist)?;
    for document in ["LICENSE", "README.md", "CHANGELOG.md"] {
        fs::copy(root.join(document), dist.join(document)).with_context(|| format!("take `{document}`"))?;
    }
    let sums = checksums(&dist)?;
    fs::write(dist.join("SHA256SUMS"), &sums)?;
    print!("{sums}");
    eprintln!("dist: {} MB static binary", fs::metadata(&binary)?.len() / 1_000_000);
    Ok(())
}

/// A dynamic executable names its loader in a program header of type `PT_INTERP`.
fn is_static(elf: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    let number = |at: usize, length: usize| {
        let bytes = elf.get(at..at + length)?;
        Some(bytes.iter().rev().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte)))
    };
    let (Some(table), Some(size), Some(count)) = (number(32, 8), number(54, 2), number(56, 2)) else {
        return false;
    };
    (0..count).all(|index| number(table + index * size, 4) != Some(PT_INTERP as usize))
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("read `{}`", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            fs::create_dir_all(&target)?;
            copy_tree(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

fn checksums(directory: &Path) -> Result<String> {
    let mut files = Vec::new();
    collect_files(directory, &mut files)?;
    files.sort();
    let mut sums = String::new();
    for file in files {
        let digest = Sha256::digest(fs::read(&file)?);
        for byte in digest {
            write!(sums, "{byte:02x}")?;
        }
        writeln!(sums, "  {}", file.strip_prefix(directory)?.display())?;
    }
    Ok(sums)
}

fn collect_files(directory: &Path, files: &mut Vec<std::path::PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect_files(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
