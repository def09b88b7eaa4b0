//! Compatibility of an extension with an operating system: `extension-release` against `os-release`, by the rules of
//! systemd.

use serde::{Deserialize, Serialize};

use crate::prepare::os_release::{Architecture, assignments};

const ANY: &str = "_any";

/// The operating system that an extension is built for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtensionRelease {
    pub id: Option<String>,
    pub version: Option<String>,
    pub sysext_level: Option<String>,
    pub architecture: Option<String>,
}

/// The operating system to check against.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct System {
    pub id: String,
    pub version: String,
    pub sysext_level: Option<String>,
    pub architecture: Architecture,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    #[error("its `extension-release` has no `ID`")]
    NoId,
    #[error("it is made for `ID={theirs}`, and {system} is `{ours}`")]
    Id { theirs: String, ours: String, system: String },
    #[error("it is made for `SYSEXT_LEVEL={theirs}`, and {system} has `{ours}`")]
    Level { theirs: String, ours: String, system: String },
    #[error("it is made for `VERSION_ID={theirs}`, and {system} is another")]
    Version { theirs: String, system: String },
    #[error("it says neither `SYSEXT_LEVEL` nor `VERSION_ID`")]
    NoVersion,
    #[error("it is made for `{theirs}`, and this processor is `{ours}`")]
    Architecture { theirs: String, ours: &'static str },
}

// === impl ExtensionRelease ===

impl ExtensionRelease {
    pub fn parse(text: &str) -> Self {
        let mut fields = assignments(text);
        let mut take = |key: &str| fields.remove(key).filter(|value| !value.is_empty());
        Self {
            id: take("ID"),
            version: take("VERSION_ID"),
            sysext_level: take("SYSEXT_LEVEL"),
            architecture: take("ARCHITECTURE"),
        }
    }

    /// Returns whether systemd would merge it there.
    pub fn fits(&self, system: &System) -> Result<(), Misfit> {
        let name = || format!("{} {}", system.id, system.version);
        let id = self.id.as_deref().ok_or(Misfit::NoId)?;
        if let Some(theirs) = self.architecture.as_deref().filter(|theirs| *theirs != ANY)
            && theirs != system.architecture.name()
        {
            return Err(Misfit::Architecture { theirs: theirs.to_owned(), ours: system.architecture.name() });
        }
        if id == ANY {
            return Ok(());
        }
        if id != system.id {
            return Err(Misfit::Id { theirs: id.to_owned(), ours: system.id.clone(), system: name() });
        }
        // A level that both files state decides alone; versions count only without one.
        if let (Some(theirs), Some(ours)) = (&self.sysext_level, &system.sysext_level) {
            return if theirs == ours {
                Ok(())
            } else {
                Err(Misfit::Level { theirs: theirs.clone(), ours: ours.clone(), system: name() })
            };
        }
        match &self.version {
            Some(theirs) if *theirs == system.version => Ok(()),
            Some(theirs) => Err(Misfit::Version { theirs: theirs.clone(), system: name() }),
            None => Err(Misfit::NoVersion),
        }
    }
}

#[cfg(test)]
mod tests {
    use landfall_testkit::{Need, have};

    use super::*;

    /// Observed behavior of systemd 252 on `ID=flatcar VERSION_ID=4152.2.0 SYSEXT_LEVEL=1.0`.
    const MATRIX: [(&str, bool); 11] = [
        ("ID=_any\n", true),
        ("ID=flatcar\nSYSEXT_LEVEL=1.0\n", true),
        ("ID=flatcar\nVERSION_ID=4152.2.0\n", true),
        ("ID=_any\nARCHITECTURE=x86-64\n", true),
        ("ID=flatcar\nSYSEXT_LEVEL=2.0\n", false),
        ("ID=flatcar\nVERSION_ID=4230.2.0\n", false),
        ("ID=debian\n", false),
        ("ID=debian\nVERSION_ID=4152.2.0\n", false),
        ("ID=_any\nARCHITECTURE=arm64\n", false),
        ("ID=flatcar\n", false),
        ("", false),
    ];

    const HOST: &str = "ID=flatcar\nVERSION_ID=4152.2.0\nSYSEXT_LEVEL=1.0\n";

    #[test]
    fn extensions_fit_as_systemd_has_it() {
        let system = System {
            id: "flatcar".to_owned(),
            version: "4152.2.0".to_owned(),
            sysext_level: Some("1.0".to_owned()),
            architecture: Architecture::Amd64,
        };
        for (text, fits) in MATRIX {
            assert_eq!(ExtensionRelease::parse(text).fits(&system).is_ok(), fits, "{text:?}");
        }
    }

    /// Checks the same table against systemd itself: what it merges is compatible. Its exit code does not show that.
    #[test]
    fn systemd_itself_merges_what_fits_and_nothing_else() {
        if !have(&[Need::Root, Need::Program("systemd-sysext"), Need::Program("unshare")]) {
            return;
        }
        if Architecture::here() != Some(Architecture::Amd64) {
            return;
        }
        for (text, fits) in MATRIX {
            let folder = tempfile::tempdir().unwrap();
            let put = |path: &str, content: &str| {
                let path = folder.path().join("tree").join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, content).unwrap();
            };
            put("usr/lib/os-release", HOST);
            put("opt/there", "");
            put("var/lib/extensions/x/usr/lib/extension-release.d/extension-release.x", text);
            put("var/lib/extensions/x/usr/bin/brought", "");
            // Private to the host, shared inside: otherwise the merge succeeds without a visible effect.
            let script = "mount --make-rprivate / && mount --make-rshared / && mount --bind /run /run && \
                systemd-sysext --root=\"$PWD/tree\" merge >&2; code=$?; test -e tree/usr/bin/brought && echo merged; exit $code";
            let output = std::process::Command::new("unshare")
                .args(["--mount", "sh", "-c", script])
                .current_dir(folder.path())
                .output()
                .unwrap();
            let merged = String::from_utf8_lossy(&output.stdout).contains("merged");
            assert_eq!(merged, fits, "{text:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
