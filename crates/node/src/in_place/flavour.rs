//! The two supported kinds of machine.

use serde::{Deserialize, Serialize};

/// Files that identify the system, in order of preference.
pub const RELEASE_FILES: [&str; 3] = ["/etc/redhat-release", "/etc/os-release", "/usr/lib/os-release"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flavour {
    /// An image-based system that machine-config-daemon configures.
    Rhcos,
    /// A package-based system that a payload of scripts configures.
    Rhel,
}

// === impl Flavour ===

impl Flavour {
    /// Determines the kind from a release file as the original did: any system other than CoreOS is configured by
    /// packages.
    pub fn of(release: &str) -> Self {
        let release = release.to_ascii_lowercase();
        if release.contains("coreos") || release.contains("id=\"rhcos\"") || release.contains("id=rhcos") {
            Self::Rhcos
        } else {
            Self::Rhel
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Rhcos => "rhcos",
            Self::Rhel => "rhel",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_told_apart() {
        assert_eq!(Flavour::of("Red Hat Enterprise Linux CoreOS release 4.14\n"), Flavour::Rhcos);
        assert_eq!(Flavour::of("ID=\"rhcos\"\nVERSION=\"418\""), Flavour::Rhcos);
        assert_eq!(Flavour::of("Red Hat Enterprise Linux Server release 7.9 (Maipo)\n"), Flavour::Rhel);
        assert_eq!(Flavour::of("Red Hat Enterprise Linux release 8.6 (Ootpa)\n"), Flavour::Rhel);
    }
}
