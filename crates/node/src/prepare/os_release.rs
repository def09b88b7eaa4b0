//! `/usr/lib/os-release`: the identity of the operating system.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::version::{InvalidVersion, OsVersion, is_tame};

pub const PATH: &str = "/usr/lib/os-release";
/// Real files have about 1 KB.
pub const MAX_BYTES: u64 = 64 * 1024;

/// Keys that name the board, on distributions that have boards.
const BOARD_KEYS: [&str; 2] = ["COREOS_BOARD", "FLATCAR_BOARD"];

/// The fields of the file that are needed here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OsRelease {
    pub id: String,
    pub version: OsVersion,
    /// Combination of hardware and image type: `amd64-usr`.
    pub board: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sysext_level: Option<String>,
}

/// The processor architecture, as in image names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Architecture {
    #[serde(rename = "x86-64")]
    Amd64,
    #[serde(rename = "arm64")]
    Arm64,
}

#[derive(Debug, thiserror::Error)]
pub enum OsReleaseError {
    #[error("`{PATH}` has no `{key}`")]
    Missing { key: &'static str },
    #[error("`{PATH}` has a version that cannot be used")]
    Version(#[source] InvalidVersion),
    #[error("`{key}` in `{PATH}` is `{value}`, which cannot be part of a URL")]
    Wild { key: String, value: String },
    #[error("this processor has no board, and `{PATH}` names none")]
    NoBoard,
}

// === impl OsRelease ===

impl OsRelease {
    pub fn parse(text: &str, architecture: Option<Architecture>) -> Result<Self, OsReleaseError> {
        let fields = assignments(text);
        let field = |key: &str| fields.get(key).filter(|value| !value.is_empty());
        let version = field("VERSION_ID").ok_or(OsReleaseError::Missing { key: "VERSION_ID" })?;
        let version = version.parse().map_err(OsReleaseError::Version)?;
        let board = match BOARD_KEYS.iter().find_map(|key| Some((*key, field(key)?))) {
            Some((_, value)) if is_tame(value) => value.clone(),
            Some((key, value)) => {
                return Err(OsReleaseError::Wild { key: key.to_owned(), value: value.clone() });
            }
            None => architecture.ok_or(OsReleaseError::NoBoard)?.board().to_owned(),
        };
        Ok(Self {
            id: field("ID").cloned().unwrap_or_else(|| "linux".to_owned()),
            version,
            board,
            sysext_level: field("SYSEXT_LEVEL").cloned(),
        })
    }
}

// === impl Architecture ===

impl Architecture {
    /// Returns the architecture of this binary.
    pub fn here() -> Option<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Some(Self::Amd64),
            "aarch64" => Some(Self::Arm64),
            _ => None,
        }
    }

    pub fn board(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64-usr",
            Self::Arm64 => "arm64-usr",
        }
    }

    /// Returns the name used in `extension-release` and in the names of extension images.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "x86-64",
            Self::Arm64 => "arm64",
        }
    }
}

/// Parses `KEY=value` lines, with or without quotes; the last of two equal keys counts, as in a shell.
pub(crate) fn assignments(text: &str) -> BTreeMap<String, String> {
    text.lines().filter_map(assignment).map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Parses one line of an environment file.
pub(crate) fn assignment(line: &str) -> Option<(&str, String)> {
    let line = line.trim();
    if line.is_empty() || line.starts_with(['#', ';']) {
        return None;
    }
    let (key, value) = line.split_once('=')?;
    Some((key.trim(), unquoted(value.trim())))
}

fn unquoted(value: &str) -> String {
    for quote in ['"', '\''] {
        if let Some(inner) = value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return match quote {
                '"' => unescaped(inner),
                _ => inner.to_owned(),
            };
        }
    }
    value.to_owned()
}

fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.extend(chars.next()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_linux_and_flatcar_are_read() {
        let text = "NAME=\"Container Linux by CoreOS\"\nID=coreos\nVERSION=1520.8.0\nVERSION_ID=1520.8.0\nCOREOS_BOARD=\"amd64-usr\"\n";
        let release = OsRelease::parse(text, None).unwrap();
        assert_eq!((release.id.as_str(), release.version.as_str()), ("coreos", "1520.8.0"));
        assert_eq!(release.board, "amd64-usr");

        let text =
            "ID=flatcar\nVERSION_ID=\"4152.2.0\"\nSYSEXT_LEVEL='1.0'\nFLATCAR_BOARD=arm64-usr\n# x\n\n";
        let release = OsRelease::parse(text, Some(Architecture::Amd64)).unwrap();
        assert_eq!((release.version.as_str(), release.board.as_str()), ("4152.2.0", "arm64-usr"));
        assert_eq!(release.sysext_level.as_deref(), Some("1.0"));
    }

    #[test]
    fn without_a_board_the_processor_decides() {
        for (architecture, board) in [(Architecture::Amd64, "amd64-usr"), (Architecture::Arm64, "arm64-usr")]
        {
            assert_eq!(OsRelease::parse("VERSION_ID=1.2.3\n", Some(architecture)).unwrap().board, board);
        }
        assert!(matches!(OsRelease::parse("VERSION_ID=1.2.3\n", None), Err(OsReleaseError::NoBoard)));
    }

    #[test]
    fn what_would_lead_elsewhere_is_refused() {
        assert!(matches!(
            OsRelease::parse("ID=coreos\n", Some(Architecture::Amd64)),
            Err(OsReleaseError::Missing { key: "VERSION_ID" })
        ));
        assert!(OsRelease::parse("VERSION_ID=../../x\n", Some(Architecture::Amd64)).is_err());
        assert!(matches!(
            OsRelease::parse("VERSION_ID=1.2.3\nCOREOS_BOARD=../x\n", None),
            Err(OsReleaseError::Wild { .. })
        ));
    }
}
