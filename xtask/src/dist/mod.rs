//! `cargo xtask dist`: creates the release artifacts in `target/dist/`.

mod deb;
mod package;
mod rpm;
mod sbom;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sha2::{Digest as _, Sha256};

use crate::shell;

use self::package::About;
use self::sbom::PLATFORM as TARGET;

/// The binary is copied to failed machines over slow links.
const MAX_BINARY: u64 = 60_000_000;

pub(crate) fn run() -> Result<()> {
    let root = shell::root();
    let dist = shell::target().join("dist");
    if dist.exists() {
        fs::remove_dir_all(&dist).context("clear the folder of the last release")?;
    }
    fs::create_dir_all(dist.join("completions")).context("make the folder of the release")?;

    let binary = dist.join("landfall");
    build(&root, &binary)?;
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
    accompany(&dist)?;
    let sums = checksums(&dist)?;
    fs::write(dist.join("SHA256SUMS"), &sums)?;
    print!("{sums}");
    Ok(())
}

/// Builds the release profile as a static binary.
fn build(root: &Path, binary: &Path) -> Result<()> {
    eprintln!("dist: static binary");
    // A separate target keeps the flags away from build scripts and procedural macros, which cannot be
    // static.
    let arguments = ["build", "--release", "--locked", "--package", "landfall", "--target", TARGET];
    shell::run(shell::cargo().env("CARGO_ENCODED_RUSTFLAGS", flags(root)).args(arguments))?;
    let linked = shell::target().join(TARGET).join("release/landfall");
    fs::copy(linked, binary).context("copy the binary")?;
    let size = fs::metadata(binary)?.len();
    check_size(size)?;
    eprintln!("dist: static binary of {}.{} MB", size / 1_000_000, size / 100_000 % 10);
    Ok(())
}

fn check_size(bytes: u64) -> Result<()> {
    ensure!(bytes <= MAX_BINARY, "the binary has {bytes} bytes; the limit is {MAX_BINARY}");
    Ok(())
}

/// Returns compiler flags for a static binary without paths of the build machine.
fn flags(root: &Path) -> String {
    let mut flags = vec![
        "-Ctarget-feature=+crt-static".to_owned(),
        // Position-independent code has a table of pointers: one bit per pointer instead of 24 bytes saves
        // 1.9 MB.
        "-Clink-arg=-Wl,-z,pack-relative-relocs".to_owned(),
        format!("--remap-path-prefix={}=/landfall", root.display()),
    ];
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    if let Some(home) = home {
        flags.push(format!("--remap-path-prefix={}=/cargo", home.display()));
    }
    flags.join("\x1f")
}

/// Creates packages and the SBOM from the files in the directory.
fn accompany(dist: &Path) -> Result<()> {
    // kubectl finds plugins by file name.
    std::os::unix::fs::symlink("landfall", dist.join("kubectl-landfall"))
        .context("name the plugin of kubectl")?;
    let about = about()?;
    eprintln!("dist: list of parts");
    let metadata = shell::output(shell::cargo().args([
        "metadata",
        "--format-version=1",
        "--locked",
        "--filter-platform",
        TARGET,
    ]))?;
    fs::write(dist.join("landfall.cdx.json"), sbom::cyclonedx(&about, &metadata)?)?;
    eprintln!("dist: packages");
    let entries = package::entries(dist)?;
    fs::write(dist.join(deb::name(&about)), deb::build(&about, &entries)?)?;
    fs::write(dist.join(rpm::name(&about)), rpm::build(&about, &entries)?)?;
    Ok(())
}

fn about() -> Result<About> {
    let time = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(time) => time,
        Err(_) => String::from_utf8(shell::output(
            std::process::Command::new("git").current_dir(shell::root()).args(["log", "-1", "--format=%ct"]),
        )?)?,
    };
    Ok(About {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        summary: "The bootstrap plane of a Kubernetes cluster",
        description: "Takes a machine from first boot to a Ready node, carries traffic into and out of a\n\
                      bootstrapping cluster, and names the root cause when a node does not join.",
        licence: env!("CARGO_PKG_LICENSE").to_owned(),
        time: time.trim().parse().context("read the time of the source")?,
    })
}

/// Returns whether the binary is static: a dynamic executable names its loader in a program header of type
/// `PT_INTERP`.
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
        let digest = hex::encode(Sha256::digest(fs::read(&file)?));
        writeln!(sums, "{digest}  {}", file.strip_prefix(directory)?.display())?;
    }
    Ok(sums)
}

fn collect_files(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    use landfall_testkit::{Need, have};
    use serde_json::{Value, json};

    /// Creates a `dist` directory with a placeholder for the binary.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let dist = folder.path();
        for name in ["completions", "man"] {
            fs::create_dir_all(dist.join(name)).unwrap();
        }
        copy_tree(&shell::root().join("dist"), dist).unwrap();
        for name in ["LICENSE", "README.md", "CHANGELOG.md"] {
            fs::copy(shell::root().join(name), dist.join(name)).unwrap();
        }
        fs::write(dist.join("landfall"), "#!/bin/sh\necho stand-in\n").unwrap();
        fs::write(dist.join("man/landfall.1"), ".TH landfall 1\n").unwrap();
        for shell_name in ["bash", "zsh", "fish"] {
            fs::write(dist.join(format!("completions/landfall.{shell_name}")), "# completion\n").unwrap();
        }
        folder
    }

    fn about() -> About {
        About {
            version: "0.1.0".to_owned(),
            summary: "A summary",
            description: "Two lines\nof description.",
            licence: "Apache-2.0".to_owned(),
            time: 1_700_000_000,
        }
    }

    fn output(command: &mut Command) -> String {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    const INSTALLED: [&str; 5] = [
        "/usr/bin/landfall",
        "/usr/bin/kubectl-landfall",
        "/usr/lib/systemd/system/landfall-agent.service",
        "/usr/share/man/man1/landfall.1.gz",
        "/usr/share/bash-completion/completions/landfall",
    ];

    #[test]
    fn dpkg_takes_the_package() {
        if !have(&[Need::Program("dpkg-deb")]) {
            return;
        }
        let folder = folder();
        let entries = package::entries(folder.path()).unwrap();
        let path = folder.path().join(deb::name(&about()));
        fs::write(&path, deb::build(&about(), &entries).unwrap()).unwrap();
        let information = output(Command::new("dpkg-deb").arg("--info").arg(&path));
        assert!(information.contains("Version: 0.1.0") && information.contains("A summary"), "{information}");
        let contents = output(Command::new("dpkg-deb").arg("--contents").arg(&path));
        for name in INSTALLED {
            assert!(contents.contains(&name[1..]), "{name} is missing in {contents}");
        }
        let root = folder.path().join("root");
        output(Command::new("dpkg-deb").arg("--extract").arg(&path).arg(&root));
        assert_eq!(output(&mut Command::new(root.join("usr/bin/kubectl-landfall"))), "stand-in\n");
        let unit = fs::read_to_string(root.join("usr/lib/systemd/system/landfall-agent.service")).unwrap();
        assert!(unit.contains("ExecStart=/usr/bin/landfall agent"), "{unit}");
    }

    /// Returns all files in a directory except the package manager's own database.
    fn lying_in(root: &Path) -> Vec<String> {
        let mut files = Vec::new();
        collect_files(root, &mut files).unwrap();
        let names = files.iter().map(|file| file.strip_prefix(root).unwrap().display().to_string());
        let mut names: Vec<String> = names
            .filter(|name| !["var/lib/", "var/log/"].iter().any(|book| name.starts_with(book)))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn dpkg_installs_the_package_and_takes_all_of_it_away_again() {
        if !have(&[Need::Root, Need::Program("dpkg")]) {
            return;
        }
        let folder = folder();
        let entries = package::entries(folder.path()).unwrap();
        let package = folder.path().join(deb::name(&about()));
        fs::write(&package, deb::build(&about(), &entries).unwrap()).unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("var/lib/dpkg/info")).unwrap();
        fs::create_dir_all(root.join("var/lib/dpkg/updates")).unwrap();
        fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
        let dpkg = |words: &[&str]| {
            output(Command::new("dpkg").arg(format!("--root={}", root.display())).args(words))
        };
        dpkg(&["--install", &package.display().to_string()]);
        let installed = lying_in(&root);
        assert_eq!(installed.len(), entries.len(), "{installed:?}");
        for name in INSTALLED {
            assert!(installed.iter().any(|there| there == &name[1..]), "{name} is missing in {installed:?}");
        }
        assert_eq!(output(&mut Command::new(root.join("usr/bin/kubectl-landfall"))), "stand-in\n");
        let page = root.join("usr/share/man/man1/landfall.1.gz");
        assert_eq!(output(Command::new("gzip").arg("-dc").arg(page)), ".TH landfall 1\n");
        dpkg(&["--purge", "landfall"]);
        assert_eq!(lying_in(&root), [""; 0]);
        assert!(!root.join("usr").exists(), "empty folders are left");
    }

    #[test]
    fn rpm_takes_the_package() {
        if !have(&[Need::Program("rpm")]) {
            return;
        }
        let folder = folder();
        let entries = package::entries(folder.path()).unwrap();
        let path = folder.path().join(rpm::name(&about()));
        fs::write(&path, rpm::build(&about(), &entries).unwrap()).unwrap();
        let database = format!("--dbpath={}", folder.path().join("db").display());
        let rpm = |arguments: &[&str]| output(Command::new("rpm").arg(&database).args(arguments).arg(&path));
        let checked = rpm(&["-Kv", "--nosignature"]);
        assert!(checked.contains("digest: OK") && !checked.contains("BAD"), "{checked}");
        let information = rpm(&["-qip"]);
        assert!(information.contains("0.1.0") && information.contains("A summary"), "{information}");
        let contents = rpm(&["-qlp"]);
        for name in INSTALLED {
            assert!(contents.lines().any(|line| line == name), "{name} is missing in {contents}");
        }
        let root = folder.path().join("root").display().to_string();
        rpm(&["-i", "--nodeps", "--ignorearch", "--noscripts", "--root", &root]);
        assert_eq!(output(&mut Command::new(format!("{root}/usr/bin/kubectl-landfall"))), "stand-in\n");
        output(Command::new("rpm").arg(&database).args(["-e", "--noscripts", "--root", &root, "landfall"]));
        let book = format!("{}/", folder.path().join("db").strip_prefix("/").unwrap().display());
        let left: Vec<String> =
            lying_in(Path::new(&root)).into_iter().filter(|name| !name.starts_with(&book)).collect();
        assert_eq!(left, [""; 0]);
    }

    #[test]
    fn binaries_above_the_limit_are_rejected() {
        assert!(check_size(MAX_BINARY).is_ok());
        let error = check_size(MAX_BINARY + 1).unwrap_err().to_string();
        assert_eq!(error, "the binary has 60000001 bytes; the limit is 60000000");
    }

    #[test]
    fn packages_are_the_same_each_time() {
        let folder = folder();
        let build = || {
            let entries = package::entries(folder.path()).unwrap();
            (deb::build(&about(), &entries).unwrap(), rpm::build(&about(), &entries).unwrap())
        };
        assert!(build() == build());
    }

    #[test]
    fn the_list_of_parts_has_what_is_linked_and_nothing_else() {
        let metadata = br#"{
            "packages": [
                {"id": "a", "name": "landfall", "version": "1.0.0", "license": "Apache-2.0"},
                {"id": "b", "name": "linked", "version": "2.0.0", "license": "MIT/Apache-2.0"},
                {"id": "c", "name": "only-for-tests", "version": "3.0.0", "license": "MIT"}
            ],
            "resolve": {"nodes": [
                {"id": "a", "deps": [
                    {"pkg": "b", "dep_kinds": [{"kind": null}]},
                    {"pkg": "c", "dep_kinds": [{"kind": "dev"}]}
                ]},
                {"id": "b", "deps": []},
                {"id": "c", "deps": []}
            ]}
        }"#;
        let sbom: Value = serde_json::from_str(&sbom::cyclonedx(&about(), metadata).unwrap()).unwrap();
        let linked = json!([{
            "type": "library", "bom-ref": "pkg:cargo/linked@2.0.0", "name": "linked", "version": "2.0.0",
            "purl": "pkg:cargo/linked@2.0.0", "licenses": [{"expression": "MIT OR Apache-2.0"}],
        }]);
        assert_eq!(sbom["components"], linked);
        assert_eq!(sbom["metadata"]["component"]["purl"], "pkg:cargo/landfall@1.0.0");
    }

    /// Checks CycloneDX 1.5's requirements for the used elements, with the real dependencies.
    #[test]
    fn the_list_of_parts_is_what_readers_of_cyclonedx_expect() {
        let metadata = ["metadata", "--format-version=1", "--locked", "--filter-platform", TARGET];
        let metadata = shell::output(shell::cargo().args(metadata)).unwrap();
        let sbom: Value = serde_json::from_str(&sbom::cyclonedx(&about(), &metadata).unwrap()).unwrap();
        assert_eq!((&sbom["bomFormat"], &sbom["specVersion"]), (&json!("CycloneDX"), &json!("1.5")));
        assert!(sbom["version"].as_u64().is_some_and(|version| version >= 1), "{}", sbom["version"]);
        let components = sbom["components"].as_array().unwrap();
        assert!(components.len() > 100, "{}", components.len());
        let mut references = Vec::new();
        for component in components.iter().chain([&sbom["metadata"]["component"]]) {
            let text = |key: &str| component[key].as_str().filter(|text| !text.is_empty()).unwrap();
            assert!(["library", "application"].contains(&text("type")), "{component}");
            assert_eq!(text("purl"), format!("pkg:cargo/{}@{}", text("name"), text("version")));
            references.push(text("bom-ref"));
            // In the array, an SPDX expression must be the only element.
            let licences = component["licenses"].as_array().unwrap();
            let [licence] = licences.as_slice() else { panic!("{component}") };
            let expression = licence["expression"].as_str().unwrap().replace(['(', ')'], " ");
            let known = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || "-.+".contains(c));
            assert!(expression.split_whitespace().all(known), "{component}");
        }
        let all = references.len();
        references.sort_unstable();
        references.dedup();
        assert_eq!(references.len(), all, "references are unique");
    }
}
