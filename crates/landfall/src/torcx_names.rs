//! The names under which Tectonic installed the bootstrapper and its hook. Called by one of them, the program is that
//! program: same flags, same meaning.

use std::ffi::OsString;
use std::path::Path;

/// What each name stands for.
const NAMES: [(&str, &[&str]); 2] = [
    ("tectonic-torcx-bootstrap", &["node", "prepare", "--reboot=systemd"]),
    ("tectonic-torcx-hook-pre", &["node", "hook", "before-reboot"]),
];

/// The arguments as the command line has them.
pub(crate) fn arguments(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments;
    let Some(program) = arguments.next() else { return Vec::new() };
    let name = Path::new(&program).file_name().map(|name| name.to_string_lossy().into_owned());
    let meaning = NAMES.iter().find(|(known, _)| name.as_deref() == Some(*known));
    let Some((_, words)) = meaning else { return std::iter::once(program).chain(arguments).collect() };
    let mut all: Vec<OsString> = vec![program];
    all.extend(words.iter().map(OsString::from));
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            // There it named a level; here it counts.
            Some("--verbose") => drop(arguments.next()),
            Some(text) if text.starts_with("--verbose=") => {}
            _ => all.push(argument),
        }
    }
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
            ["node", "prepare", "--reboot=systemd", "--upgrade-os=false", "--keyring=/k"]
        );
        assert_eq!(
            translated(&["tectonic-torcx-hook-pre", "--verbose=info", "--sleep=5"])[1..],
            ["node", "hook", "before-reboot", "--sleep=5"]
        );
        assert_eq!(
            translated(&["/usr/bin/landfall", "man", "--verbose"]),
            ["/usr/bin/landfall", "man", "--verbose"]
        );
        assert_eq!(translated(&[]), [""; 0]);
    }
}
