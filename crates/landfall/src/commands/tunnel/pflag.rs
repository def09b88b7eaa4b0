//! Arguments in the notation of Go programs: `--flag=value`, `--flag value`, `--bool`, `--bool=false`, `1h30m`, and
//! `_` for `-` in names.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

/// The names under which the binary is the tunnel only, so that it can replace upstream's in an image.
const NAMES: [(&str, &str); 4] = [
    ("proxy-server", "server"),
    ("konnectivity-server", "server"),
    ("proxy-agent", "agent"),
    ("konnectivity-agent", "agent"),
];

/// Converts the command line for clap. Only arguments of the tunnel's server and agent are changed.
pub(crate) fn as_upstream_writes(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let name = arguments.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    if let Some((_, role)) = NAMES.iter().find(|(known, _)| name == *known) {
        arguments.splice(..1, ["landfall", "tunnel", *role].map(OsString::from));
    }
    let is_flag = |argument: &OsString| argument.as_encoded_bytes().starts_with(b"-");
    let command = arguments.iter().skip(1).position(|argument| !is_flag(argument)).map(|at| at + 1);
    let role = command.filter(|at| arguments[*at] == "tunnel").map(|at| at + 1);
    let Some(flags) = role
        .filter(|at| arguments.get(*at).is_some_and(|role| role == "server" || role == "agent"))
        .map(|at| at + 1)
    else {
        return arguments;
    };
    let rest = arguments.split_off(flags);
    let mut rest = rest.into_iter().peekable();
    while let Some(argument) = rest.next() {
        let Some(text) = argument.to_str() else {
            arguments.push(argument);
            continue;
        };
        let level = match text {
            "-v" | "--v" => rest.next_if(is_number),
            _ => text
                .strip_prefix("-v")
                .map(|level| OsString::from(level.trim_start_matches('=')))
                .filter(is_number),
        };
        arguments.push(match (level, text.strip_prefix("--")) {
            (Some(level), _) => [OsStr::new("--v="), &level].into_iter().collect(),
            (None, Some(flag)) => {
                let (name, value) = flag.split_at(flag.find('=').unwrap_or(flag.len()));
                format!("--{}{value}", name.replace('_', "-")).into()
            }
            (None, None) => argument,
        });
    }
    arguments
}

fn is_number(text: &OsString) -> bool {
    !text.is_empty() && text.as_encoded_bytes().iter().all(u8::is_ascii_digit)
}

/// Parses the values of Go's `strconv.ParseBool`.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err("hint: `true` or `false`".to_owned()),
    }
}

/// Parses the values of Go's `time.ParseDuration`, except negative ones.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "hint: a number and a unit, such as `500ms`, `10s`, `1m30s`, `1h`".to_owned();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let number_ends = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, after) = rest.split_at(number_ends);
        let unit_ends = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_ends);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" | "μs" => 1e-6,
            "ns" => 1e-9,
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = after;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(arguments: &str) -> String {
        let arguments = arguments.split(' ').map(OsString::from);
        as_upstream_writes(arguments).join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn arguments_of_upstream_become_ours() {
        for (given, expected) in [
            ("/usr/bin/proxy-server --mode=grpc", "landfall tunnel server --mode=grpc"),
            ("konnectivity-agent", "landfall tunnel agent"),
            (
                "landfall tunnel server --server_port=0 --uds_name a_b",
                "landfall tunnel server --server-port=0 --uds-name a_b",
            ),
            ("landfall tunnel agent --ca-cert=/a_b", "landfall tunnel agent --ca-cert=/a_b"),
            ("proxy-agent -v=4", "landfall tunnel agent --v=4"),
            ("proxy-agent -v 4 --sync-forever", "landfall tunnel agent --v=4 --sync-forever"),
            ("proxy-agent -v4 --v 2 --v=3", "landfall tunnel agent --v=4 --v=2 --v=3"),
            // Commands other than these are unchanged.
            ("landfall -v tunnel agent -v -vv", "landfall -v tunnel agent -v -vv"),
            ("landfall diagnose --a_b -v 4", "landfall diagnose --a_b -v 4"),
            ("landfall tunnel status --a_b", "landfall tunnel status --a_b"),
        ] {
            assert_eq!(seen(given), expected, "{given}");
        }
    }

    #[test]
    fn durations_and_booleans_are_gos() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1h0m0s", Some(3_600_000)),
            ("1.5s", Some(1500)),
            ("300ms", Some(300)),
            ("1m30s", Some(90_000)),
            ("", None),
            ("10", None),
            ("-1s", None),
            ("1d", None),
            ("s", None),
            ("1..2s", None),
            ("99999999999999999999h", None),
        ] {
            assert_eq!(duration(text).ok(), expected.map(Duration::from_millis), "{text}");
        }
        assert_eq!(boolean("T"), Ok(true));
        assert_eq!(boolean("False"), Ok(false));
        assert!(boolean("yes").is_err());
    }
}
