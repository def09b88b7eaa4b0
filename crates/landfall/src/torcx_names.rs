//! The names under which Tectonic installed the bootstrapper and its hook. Called by one of them, the program is that
//! program: same flags, same defaults, same meaning.

use std::ffi::OsString;
use std::path::Path;

/// One of them.
struct Program {
    name: &'static str,
    /// What it stands for.
    words: &'static [&'static str],
    /// Flags it had another default for: name and value.
    defaults: &'static [(&'static str, &'static str)],
}

const PROGRAMS: [Program; 2] = [
    Program {
        name: "tectonic-torcx-bootstrap",
        words: &["node", "prepare", "--reboot=systemd"],
        defaults: &[],
    },
    Program {
        name: "tectonic-torcx-hook-pre",
        words: &["node", "hook", "before-reboot"],
        defaults: &[("--version-manifest", "/etc/runtime-mappings.yaml")],
    },
];

/// The arguments as the command line has them.
pub(crate) fn arguments(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments;
    let Some(program) = arguments.next() else { return Vec::new() };
    let name = Path::new(&program).file_name().map(|name| name.to_string_lossy().into_owned());
    let meaning = PROGRAMS.iter().find(|known| name.as_deref() == Some(known.name));
    let Some(meaning) = meaning else { return std::iter::once(program).chain(arguments).collect() };
    let mut all: Vec<OsString> = vec![program];
    all.extend(meaning.words.iter().map(OsString::from));
    let mut level = "info".to_owned();
    let mut given: Vec<OsString> = Vec::new();
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            // There it named a level; here it counts.
            Some("--verbose") => level = arguments.next().unwrap_or_default().to_string_lossy().into_owned(),
            Some(text) => match text.strip_prefix("--verbose=") {
                Some(named) => named.clone_into(&mut level),
                None => given.push(argument),
            },
            None => given.push(argument),
        }
    }
    match level.as_str() {
        "error" | "fatal" | "panic" | "warn" | "warning" => {}
        "debug" => all.push("-vv".into()),
        "trace" => all.push("-vvv".into()),
        _ => all.push("-v".into()),
    }
    for (flag, value) in meaning.defaults {
        let is_it =
            |argument: &OsString| argument.to_str().is_some_and(|text| text.split('=').next() == Some(flag));
        if !given.iter().any(is_it) {
            all.push(format!("{flag}={value}").into());
        }
    }
    all.extend(given);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(words: &[&str]) -> Vec<String> {
        let words = words.iter().map(OsString::from);
        arguments(words).into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn old_names_are_kept() {
        let old = ["/tectonic-torcx-bootstrap", "--upgrade-os=false", "--verbose", "debug", "--keyring=/k"];
        assert_eq!(
            translated(&old)[1..],
            ["node", "prepare", "--reboot=systemd", "-vv", "--upgrade-os=false", "--keyring=/k"]
        );
        assert_eq!(
            translated(&["tectonic-torcx-hook-pre", "--verbose=info", "--sleep=5"])[1..],
            [
                "node",
                "hook",
                "before-reboot",
                "-v",
                "--version-manifest=/etc/runtime-mappings.yaml",
                "--sleep=5"
            ]
        );
        assert_eq!(
            translated(&["tectonic-torcx-hook-pre", "--verbose=error", "--version-manifest", "/m"])[1..],
            ["node", "hook", "before-reboot", "--version-manifest", "/m"]
        );
        assert_eq!(
            translated(&["/usr/bin/landfall", "man", "--verbose"]),
            ["/usr/bin/landfall", "man", "--verbose"]
        );
        assert_eq!(translated(&[]), [""; 0]);
    }
}
