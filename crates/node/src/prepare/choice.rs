//! Chooses the version of an addon, and the operating systems it is installed for.

use super::manifest::Manifest;
use super::version::OsVersion;

/// The first Container Linux that loads its runtime from outside. Earlier ones leave no choice.
const FIRST_REMOTE: &str = "1520.3.0";

/// The chosen version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A system this old contains the only runtime it can have.
    TooOld,
    /// The version, and the systems that get it; the next system comes first.
    Version { version: String, systems: Vec<OsVersion> },
}

/// One operating system and the versions available for it.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    pub system: &'a OsVersion,
    pub manifest: &'a Manifest,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no suitable version of `{package}` is available for {system}: wanted {wanted}, there is {available}"
)]
pub struct NothingSuitable {
    package: String,
    system: String,
    wanted: String,
    available: String,
}

/// Returns whether this system is so old that it needs nothing, before any request is sent.
pub fn is_too_old(system: &OsVersion) -> bool {
    FIRST_REMOTE.parse::<OsVersion>().is_ok_and(|first| *system < first)
}

/// Chooses the first preference that is available for the next system. The running system gets the same, if possible.
pub fn choose(
    package: &str,
    preferences: &[String],
    primary: Offer<'_>,
    secondary: Option<Offer<'_>>,
) -> Result<Choice, NothingSuitable> {
    if is_too_old(primary.system) {
        return Ok(Choice::TooOld);
    }
    let version = preferences.iter().find(|version| primary.manifest.find(package, version).is_some());
    let Some(version) = version else {
        let list = |versions: &[&str]| match versions {
            [] => "none".to_owned(),
            versions => versions.join(", "),
        };
        let wanted: Vec<&str> = preferences.iter().map(String::as_str).collect();
        return Err(NothingSuitable {
            package: package.to_owned(),
            system: primary.system.to_string(),
            wanted: list(&wanted),
            available: list(&primary.manifest.versions(package)),
        });
    };
    let mut systems = vec![primary.system.clone()];
    systems.extend(
        secondary
            .filter(|offer| offer.manifest.find(package, version).is_some())
            .map(|offer| offer.system.clone()),
    );
    Ok(Choice::Version { version: version.clone(), systems })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepare::manifest::tests::manifest;

    fn os(text: &str) -> OsVersion {
        text.parse().unwrap()
    }

    fn texts(list: &[&str]) -> Vec<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    /// (preferences, next, its versions, current, its versions, chosen, for)
    type Vector = (
        &'static [&'static str],
        &'static str,
        &'static [&'static str],
        &'static str,
        &'static [&'static str],
        Option<(&'static str, &'static [&'static str])>,
    );

    #[test]
    fn the_vectors_of_the_original_hold() {
        let vectors: [Vector; 4] = [
            (
                &["1.13"],
                "2001.0.0",
                &["1.13"],
                "2000.0.0",
                &["1.13"],
                Some(("1.13", &["2001.0.0", "2000.0.0"])),
            ),
            (
                &["17.03", "1.13", "1.12"],
                "2001.0.0",
                &["1.12", "1.13"],
                "2000.0.0",
                &["1.12", "1.13"],
                Some(("1.13", &["2001.0.0", "2000.0.0"])),
            ),
            (&["1.13", "1.12"], "2001.0.0", &["1.13"], "2000.0.0", &["1.12"], Some(("1.13", &["2001.0.0"]))),
            (&["1.13"], "1501.0.0", &["1.13"], "1500.0.0", &["1.13"], None),
        ];
        for (preferences, next, has_next, current, has_current, expected) in vectors {
            let (next, current) = (os(next), os(current));
            let (next_manifest, current_manifest) = (manifest(has_next), manifest(has_current));
            let chosen = choose(
                "docker",
                &texts(preferences),
                Offer { system: &next, manifest: &next_manifest },
                Some(Offer { system: &current, manifest: &current_manifest }),
            );
            let expected = expected.map_or(Choice::TooOld, |(version, systems)| Choice::Version {
                version: version.to_owned(),
                systems: systems.iter().map(|text| os(text)).collect(),
            });
            assert_eq!(chosen.unwrap(), expected);
        }
    }

    #[test]
    fn nothing_suitable_says_what_there_was() {
        let current = os("2000.0.0");
        let offered = manifest(&["1.11"]);
        let error = choose(
            "docker",
            &texts(&["17.03", "1.12"]),
            Offer { system: &current, manifest: &offered },
            None,
        );
        assert_eq!(
            error.unwrap_err().to_string(),
            "no suitable version of `docker` is available for 2000.0.0: wanted 17.03, 1.12, there is 1.11"
        );
        assert!(is_too_old(&os("1520.2.9")) && !is_too_old(&os("1520.3.0")));
    }
}
