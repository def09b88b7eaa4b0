//! The names under which Tectonic installed the bootstrapper and its hook.
//!
//! Started under one of them, the binary behaves like that program: same flags, same defaults, same meaning, and the
//! old name in its usage.

use std::ffi::OsString;
use std::path::Path;

use clap::Command;
use clap::error::ErrorKind;

/// One of the old programs.
#[derive(Debug)]
pub(crate) struct Program {
    name: &'static str,
    /// The subcommands it stands for, followed by their first argument.
    words: [&'static str; 3],
    /// Flags with another default value: name and value.
    defaults: &'static [(&'static str, &'static str)],
}

const PROGRAMS: [Program; 2] = [
    Program {
        name: "tectonic-torcx-bootstrap",
        words: ["node", "prepare", "--reboot=systemd"],
        defaults: &[],
    },
    Program {
        name: "tectonic-torcx-hook-pre",
        words: ["node", "hook", "before-reboot"],
        defaults: &[("--version-manifest", "/etc/runtime-mappings.yaml")],
    },
];

/// The levels of the original, with the corresponding number of `-v`.
const LEVELS: [(&str, Option<&str>); 8] = [
    ("panic", None),
    ("fatal", None),
    ("error", None),
    ("warn", None),
    ("warning", None),
    ("info", Some("-v")),
    ("debug", Some("-vv")),
    ("trace", Some("-vvv")),
];

/// Returns the arguments for the command line, and the old program, if the name is one.
pub(crate) fn arguments(
    arguments: impl Iterator<Item = OsString>,
    command: impl FnOnce() -> Command,
) -> Result<(Vec<OsString>, Option<&'static Program>), clap::Error> {
    let mut arguments = arguments;
    let Some(called) = arguments.next() else { return Ok((Vec::new(), None)) };
    let name = Path::new(&called).file_name().map(|name| name.to_string_lossy().into_owned());
    let Some(program) = PROGRAMS.iter().find(|known| name.as_deref() == Some(known.name)) else {
        return Ok((std::iter::once(called).chain(arguments).collect(), None));
    };
    let mut all: Vec<OsString> = vec![called];
    all.extend(program.words.iter().map(OsString::from));
    let mut level = "info".to_owned();
    let mut given: Vec<OsString> = Vec::new();
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            // The old flag has a level as its value; the new one counts.
            Some("--verbose") => level = arguments.next().unwrap_or_default().to_string_lossy().into_owned(),
            Some(text) => match text.strip_prefix("--verbose=") {
                Some(named) => named.clone_into(&mut level),
                None => given.push(argument),
            },
            None => given.push(argument),
        }
    }
    let Some((_, flag)) = LEVELS.iter().find(|(name, _)| *name == level.to_ascii_lowercase()) else {
        return Err(program.no_level(command(), &level));
    };
    all.extend(flag.map(OsString::from));
    for (flag, value) in program.defaults {
        let is_it =
            |argument: &OsString| argument.to_str().is_some_and(|text| text.split('=').next() == Some(flag));
        if !given.iter().any(is_it) {
            all.push(format!("{flag}={value}").into());
        }
    }
    all.extend(given);
    Ok((all, Some(program)))
}

// === impl Program ===

impl Program {
    /// Returns the command line under this name.
    pub(crate) fn dress(&self, command: Command) -> Command {
        let [first, second, third] = self.words;
        let levels: Vec<&str> = LEVELS.iter().map(|(name, _)| *name).collect();
        let after = format!(
            "This is `landfall {first} {second} {third}` under the name Tectonic gave it; `--verbose LEVEL` takes {}.",
            levels.join(", ")
        );
        let usage = format!("{} [OPTIONS]", self.name);
        command.mut_arg("verbose", |verbose| verbose.hide(true)).mut_subcommand(first, |command| {
            command.mut_subcommand(second, |command| {
                // The old name implies the hook.
                let command =
                    command.mut_args(|arg| if arg.get_id() == "when" { arg.hide(true) } else { arg });
                command.override_usage(usage).after_help(after)
            })
        })
    }

    fn no_level(&self, command: Command, level: &str) -> clap::Error {
        let [first, second, _] = self.words;
        let levels: Vec<&str> = LEVELS.iter().map(|(name, _)| *name).collect();
        let told =
            format!("invalid value '{level}' for '--verbose <LEVEL>': known are {}", levels.join(", "));
        let mut command = self.dress(command);
        command.build();
        let found = command.find_subcommand_mut(first).and_then(|found| found.find_subcommand_mut(second));
        match found {
            Some(found) => found.error(ErrorKind::InvalidValue, told),
            None => clap::Error::raw(ErrorKind::InvalidValue, told),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(words: &[&str]) -> Vec<String> {
        let words = words.iter().map(OsString::from);
        let (words, _) = arguments(words, || Command::new("landfall")).unwrap();
        words.into_iter().map(|word| word.into_string().unwrap()).collect()
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
