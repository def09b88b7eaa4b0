//! `cargo xtask testbed`: installs the packages in `testbed/packages.txt`, and builds or downloads the
//! components that are not packaged. Existing components are kept.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use landfall_testkit::{Binary, ClusterApi, Node, Package, has_program, node_image};

use crate::shell;

pub(crate) fn run() -> Result<()> {
    install_packages()?;
    build_components()?;
    install_node_packages()?;
    build_node_image()
}

/// Installs missing packages if run as root on a Debian-like system; otherwise prints the command.
///
/// Without a package, the tests that do not need it still run.
fn install_packages() -> Result<()> {
    let missing = missing_packages()?;
    if missing.is_empty() {
        return Ok(());
    }
    let root = shell::output(Command::new("id").arg("-u"))?;
    let have_apt =
        Command::new("apt-get").arg("--version").stdout(Stdio::null()).status().is_ok_and(|s| s.success());
    if root.trim_ascii() != b"0" || !have_apt {
        eprintln!("testbed: some tests need packages that are not installed; install them with\n");
        eprintln!("    sudo apt-get install --no-install-recommends {}\n", missing.join(" "));
        return Ok(());
    }
    eprintln!("testbed: installing {}", missing.join(" "));
    let apt = || {
        let mut command = Command::new("apt-get");
        command.args(["-qq", "-o", "DPkg::Lock::Timeout=300"]).env("DEBIAN_FRONTEND", "noninteractive");
        command.stdout(Stdio::null());
        command
    };
    shell::run(apt().arg("update"))?;
    shell::run(apt().args(["install", "--yes", "--no-install-recommends"]).args(&missing))
}

fn missing_packages() -> Result<Vec<String>> {
    let list = shell::root().join("testbed/packages.txt");
    let text = std::fs::read_to_string(&list).with_context(|| format!("read `{}`", list.display()))?;
    let names = text.lines().filter_map(|line| wanted(line, has_program));
    Ok(names.filter(|name| !is_installed(name)).map(str::to_owned).collect())
}

/// Returns the package of a line, unless the required program exists.
fn wanted(line: &str, have: impl Fn(&str) -> bool) -> Option<&str> {
    let line = line.split('#').next().unwrap_or_default().trim();
    match line.split_once(" unless ") {
        Some((_, program)) if have(program.trim()) => None,
        Some((name, _)) => Some(name.trim()),
        None => (!line.is_empty()).then_some(line),
    }
}

fn is_installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["--show", "--showformat=${Status}", package])
        .stderr(Stdio::null())
        .output()
        .is_ok_and(|output| output.stdout == b"install ok installed")
}

fn build_components() -> Result<()> {
    if Command::new("go").arg("version").stdout(Stdio::null()).status().is_err() {
        eprintln!("testbed: no Go here, so the tests with real Kubernetes components are skipped");
        return Ok(());
    }
    let testbed = shell::root().join("testbed");
    for binary in Binary::ALL {
        if !binary.path()?.is_file() {
            let started = Instant::now();
            eprintln!("testbed: building {} (once; a cold build takes minutes)", binary.name());
            binary.build(&testbed)?;
            eprintln!("testbed: built {} in {} s", binary.name(), started.elapsed().as_secs());
        }
    }
    ClusterApi::ALL.into_iter().try_for_each(ClusterApi::fetch)
}

fn install_node_packages() -> Result<()> {
    let testbed = shell::root().join("testbed");
    for package in Package::ALL {
        if package.path()?.is_file() {
            continue;
        }
        if !has_program("npm") {
            eprintln!("testbed: no npm here, so the tests with {} are skipped", package.name());
            continue;
        }
        let started = Instant::now();
        eprintln!("testbed: installing {} (once)", package.name());
        package.install(&testbed)?;
        eprintln!("testbed: installed {} in {} s", package.name(), started.elapsed().as_secs());
    }
    Ok(())
}

/// Builds the root file system of test nodes, if this machine can boot one.
fn build_node_image() -> Result<()> {
    if Node::NEEDS.iter().any(|need| !need.is_met()) {
        return Ok(());
    }
    let started = Instant::now();
    node_image().context("build the root image of test nodes")?;
    if started.elapsed().as_secs() > 1 {
        eprintln!("testbed: built the node image in {} s", started.elapsed().as_secs());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_wanted_unless_its_program_is_there() {
        for (line, expected) in [
            ("# a remark", None),
            ("", None),
            ("age", Some("age")),
            ("nginx-light  # a server", Some("nginx-light")),
            ("nodejs unless node", None),
            ("npm unless npm", Some("npm")),
        ] {
            assert_eq!(wanted(line, |program| program == "node"), expected, "{line}");
        }
    }
}
