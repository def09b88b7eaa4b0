//! Lists of addon images for one version of the operating system.
//!
//! `torcx-package-list-v0` is the original format. `landfall-package-index-v1` is the same list with its target
//! system and expiry.
//!
//! A signature proves the author of a list, but not its purpose: a signed list for another board, another version or
//! of last year verifies as well. The second format includes target and expiry in the signed content.

use serde::Deserialize;

use super::digest::Digest;
use super::version::{OsVersion, is_tame};

/// Existing manifests have a few kilobytes.
pub const MAX_BYTES: u64 = 1024 * 1024;
/// Limit above the number of packages, versions or locations of any manifest.
const MAX_ENTRIES: usize = 1024;

const KIND: &str = "torcx-package-list-v0";
const BOUND_KIND: &str = "landfall-package-index-v1";
/// The clock of a machine may be slow at its first boot.
const CLOCK_TOLERANCE: u64 = 24 * 60 * 60;
/// Directory of images that ship with the operating system.
const VENDOR_STORE: &str = "/usr/share/torcx/store/";

/// A parsed manifest. It contains only usable entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    packages: Vec<Package>,
    binding: Option<Binding>,
}

/// The target system of a list, and its expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Binding {
    board: String,
    system: String,
    issued: u64,
    expires: u64,
}

/// Whether lists without target and expiry are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unbound {
    Taken,
    Refused,
}

/// The reason why a list is not the requested one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotForThis {
    #[error("it does not say what it is for, and only lists that do are wanted")]
    Unbound,
    #[error("it is for board `{theirs}`, not `{ours}`")]
    Board { theirs: String, ours: String },
    #[error("it is for {theirs}, not {ours}")]
    System { theirs: String, ours: String },
    #[error("it has expired")]
    Expired,
    #[error("it was issued in the future: is this machine's clock right?")]
    Future,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Package {
    name: String,
    versions: Vec<Version>,
}

/// One version of an addon image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub version: String,
    pub digest: Digest,
    pub location: Location,
}

/// Location of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// The image is part of that operating system.
    Vendor { path: String },
    /// The last URL is the primary one, as in the original; the others are its mirrors.
    Remote { urls: Vec<String> },
}

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("the manifest is not JSON of the kind `{KIND}`: {reason}")]
    Syntax { reason: String },
    #[error("the manifest is a `{kind}`; a `{KIND}` is expected")]
    Kind { kind: String },
    #[error("the manifest has more than {MAX_ENTRIES} {what}")]
    TooMany { what: &'static str },
    #[error("the manifest's `{package}` {version} cannot be used: {reason}")]
    Version { package: String, version: String, reason: String },
}

#[derive(Deserialize)]
struct Document {
    kind: String,
    value: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Value {
    board: Option<String>,
    os_version: Option<String>,
    issued: Option<jiff::Timestamp>,
    expires: Option<jiff::Timestamp>,
    packages: Vec<PackageEntry>,
}

#[derive(Deserialize)]
struct PackageEntry {
    name: String,
    #[serde(default)]
    versions: Vec<VersionEntry>,
}

#[derive(Deserialize)]
struct VersionEntry {
    version: String,
    hash: String,
    #[serde(default)]
    locations: Vec<LocationEntry>,
}

#[derive(Deserialize)]
struct LocationEntry {
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    url: Option<String>,
}

#[derive(Deserialize)]
struct Kind {
    kind: String,
}

// === impl Manifest ===

impl Manifest {
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        let syntax = |error: serde_json::Error| ManifestError::Syntax { reason: error.to_string() };
        // The kind is checked first: for another kind, every other error would mislead.
        let Kind { kind } = serde_json::from_slice(bytes).map_err(syntax)?;
        if kind != KIND && kind != BOUND_KIND {
            return Err(ManifestError::Kind { kind: kind.chars().take(64).collect() });
        }
        let document: Document = serde_json::from_slice(bytes).map_err(syntax)?;
        let Value { board, os_version, issued, expires, packages } = document.value;
        let binding = match (document.kind.as_str(), board, os_version, issued, expires) {
            (BOUND_KIND, Some(board), Some(system), Some(issued), Some(expires)) => {
                let seconds = |time: jiff::Timestamp| u64::try_from(time.as_second()).unwrap_or(0);
                Some(Binding { board, system, issued: seconds(issued), expires: seconds(expires) })
            }
            (BOUND_KIND, ..) => {
                let reason = "`board`, `osVersion`, `issued` and `expires` are needed".to_owned();
                return Err(ManifestError::Syntax { reason });
            }
            _ => None,
        };
        if packages.len() > MAX_ENTRIES {
            return Err(ManifestError::TooMany { what: "packages" });
        }
        let packages: Result<Vec<Package>, ManifestError> = packages.into_iter().map(package).collect();
        Ok(Self { packages: packages?, binding })
    }

    /// Checks that this list is for this board and system, and valid now.
    pub fn check_binding(
        &self,
        board: &str,
        system: &OsVersion,
        now: u64,
        unbound: Unbound,
    ) -> Result<(), NotForThis> {
        let Some(binding) = &self.binding else {
            return if unbound == Unbound::Taken { Ok(()) } else { Err(NotForThis::Unbound) };
        };
        if binding.board != board {
            return Err(NotForThis::Board { theirs: binding.board.clone(), ours: board.to_owned() });
        }
        if binding.system != system.as_str() {
            return Err(NotForThis::System { theirs: binding.system.clone(), ours: system.to_string() });
        }
        if binding.expires <= now {
            return Err(NotForThis::Expired);
        }
        if binding.issued > now.saturating_add(CLOCK_TOLERANCE) {
            return Err(NotForThis::Future);
        }
        Ok(())
    }

    /// Returns a version of a package, if the manifest has it.
    pub fn find(&self, package: &str, version: &str) -> Option<&Version> {
        let package = self.packages.iter().find(|entry| entry.name == package)?;
        package.versions.iter().find(|entry| entry.version == version)
    }

    /// Returns all versions of a package, for messages.
    pub fn versions(&self, package: &str) -> Vec<&str> {
        let packages = self.packages.iter().filter(|entry| entry.name == package);
        packages.flat_map(|entry| &entry.versions).map(|entry| entry.version.as_str()).collect()
    }
}

fn package(entry: PackageEntry) -> Result<Package, ManifestError> {
    if entry.versions.len() > MAX_ENTRIES {
        return Err(ManifestError::TooMany { what: "versions of one package" });
    }
    let PackageEntry { name, versions } = entry;
    let versions: Result<Vec<Version>, ManifestError> =
        versions.into_iter().map(|entry| version(&name, entry)).collect();
    Ok(Package { versions: versions?, name })
}

fn version(package: &str, entry: VersionEntry) -> Result<Version, ManifestError> {
    let VersionEntry { version, hash, locations } = entry;
    let unusable = |reason: String| ManifestError::Version {
        package: package.chars().take(64).collect(),
        version: version.chars().take(64).collect(),
        reason,
    };
    // Both become part of a file name.
    if !is_tame(package) || !is_tame(&version) {
        return Err(unusable("its name is not a plain one".to_owned()));
    }
    if locations.len() > MAX_ENTRIES {
        return Err(ManifestError::TooMany { what: "places for one image" });
    }
    let digest: Digest = hash.parse().map_err(|error| unusable(format!("{error}")))?;
    let vendor = locations.iter().filter_map(|location| location.path.as_deref());
    let vendor = vendor.into_iter().find(|path| {
        path.strip_prefix(VENDOR_STORE).is_some_and(|name| !name.is_empty() && !name.contains('/'))
    });
    if let Some(path) = vendor {
        return Ok(Version { version, digest, location: Location::Vendor { path: path.to_owned() } });
    }
    let urls = locations.iter().rev().filter_map(|location| location.url.clone());
    let usable = |url: &String| url.starts_with("https://") || url.starts_with("http://");
    let urls: Vec<String> = urls.filter(usable).collect();
    if urls.is_empty() {
        return Err(unusable("it has no place it could come from".to_owned()));
    }
    Ok(Version { version, digest, location: Location::Remote { urls } })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The SHA-512 of `test` and a newline.
    pub(crate) const TEST_HASH: &str = "sha512-0e3e75234abc68f4378a86b3f4b32a198ba301845b0cd6e50106e874345700cc6663a86c1ea125dc5e92be17c98f9a0f85ca9d5f595db2012f7cc3571945c123";

    /// A manifest with these versions of `docker`, all to be downloaded.
    pub(crate) fn manifest(versions: &[&str]) -> Manifest {
        let versions: Vec<serde_json::Value> = versions
            .iter()
            .map(|version| {
                let url = format!("https://bucket.example/pkgs/docker:{version}.torcx.tgz");
                serde_json::json!({"version": version, "hash": TEST_HASH, "locations": [{"url": url}]})
            })
            .collect();
        let document = serde_json::json!({"kind": KIND, "value": {"packages": [{"name": "docker", "versions": versions}]}});
        Manifest::parse(document.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_manifest_of_the_field_is_read() {
        let text = format!(
            r#"{{"kind":"torcx-package-list-v0","value":{{"packages":[{{"name":"docker","defaultVersion":"1.12","versions":[
            {{"version":"1.12","hash":"{TEST_HASH}","casDigest":"x","sourcePackage":"app-emulation/docker-1.12.6-r1",
              "locations":[{{"path":"/usr/share/torcx/store/docker:1.12.torcx.tgz"}},{{"url":"https://b/1"}}]}},
            {{"version":"17.06","hash":"{TEST_HASH}","locations":[{{"url":"https://old/2"}},{{"url":"https://b/2"}}]}}]}}]}}}}"#
        );
        let manifest = Manifest::parse(text.as_bytes()).unwrap();
        assert_eq!(manifest.versions("docker"), ["1.12", "17.06"]);
        let vendor = manifest.find("docker", "1.12").unwrap();
        assert_eq!(
            vendor.location,
            Location::Vendor { path: "/usr/share/torcx/store/docker:1.12.torcx.tgz".to_owned() }
        );
        let remote = manifest.find("docker", "17.06").unwrap();
        assert_eq!(
            remote.location,
            Location::Remote { urls: vec!["https://b/2".to_owned(), "https://old/2".to_owned()] }
        );
        assert_eq!(remote.digest.to_string(), TEST_HASH);
        assert_eq!(manifest.find("docker", "18"), None);
        assert_eq!(manifest.find("rkt", "1.12"), None);
    }

    /// The sixth defect of the original: it accepted a signed list for another board, version or year.
    #[test]
    fn defect_06_a_list_for_something_else_is_refused() {
        let bound = |board: &str, system: &str, issued: &str, expires: &str| {
            let text = format!(
                r#"{{"kind":"{BOUND_KIND}","value":{{"board":"{board}","osVersion":"{system}","issued":"{issued}","expires":"{expires}","packages":[]}}}}"#
            );
            Manifest::parse(text.as_bytes()).unwrap()
        };
        // 2026-06-01
        let now = 1_780_272_000;
        let judge = |manifest: &Manifest| {
            manifest.check_binding("amd64-usr", &"2000.0.0".parse().unwrap(), now, Unbound::Refused)
        };
        let (early, late) = ("2026-05-01T00:00:00Z", "2026-07-01T00:00:00Z");
        assert_eq!(judge(&bound("amd64-usr", "2000.0.0", early, late)), Ok(()));
        assert!(matches!(judge(&bound("arm64-usr", "2000.0.0", early, late)), Err(NotForThis::Board { .. })));
        assert!(matches!(
            judge(&bound("amd64-usr", "1999.0.0", early, late)),
            Err(NotForThis::System { .. })
        ));
        assert_eq!(judge(&bound("amd64-usr", "2000.0.0", early, early)), Err(NotForThis::Expired));
        assert_eq!(
            judge(&bound("amd64-usr", "2000.0.0", late, "2026-08-01T00:00:00Z")),
            Err(NotForThis::Future)
        );
        let old = manifest(&["1.12"]);
        assert_eq!(judge(&old), Err(NotForThis::Unbound));
        assert_eq!(old.check_binding("b", &"1.0".parse().unwrap(), now, Unbound::Taken), Ok(()));
        let partial = format!(r#"{{"kind":"{BOUND_KIND}","value":{{"board":"b","packages":[]}}}}"#);
        assert!(Manifest::parse(partial.as_bytes()).is_err());
    }

    #[test]
    fn what_cannot_be_trusted_to_be_a_file_name_is_refused() {
        let with = |name: &str, version: &str, hash: &str, location: &str| {
            let text = format!(
                r#"{{"kind":"{KIND}","value":{{"packages":[{{"name":"{name}","versions":[
                {{"version":"{version}","hash":"{hash}","locations":[{location}]}}]}}]}}}}"#
            );
            Manifest::parse(text.as_bytes())
        };
        let url = r#"{"url":"https://b/1"}"#;
        assert!(with("docker", "1.12", TEST_HASH, url).is_ok());
        assert!(with("../docker", "1.12", TEST_HASH, url).is_err());
        assert!(with("docker", "../1.12", TEST_HASH, url).is_err());
        assert!(with("docker", "1.12", "sha512-00", url).is_err());
        assert!(with("docker", "1.12", "md5-00", url).is_err());
        assert!(with("docker", "1.12", TEST_HASH, "").is_err());
        assert!(with("docker", "1.12", TEST_HASH, r#"{"url":"file:///etc/shadow"}"#).is_err());
        // An image cannot ship with a path outside the store of the vendor.
        assert!(
            with("docker", "1.12", TEST_HASH, r#"{"path":"/usr/share/torcx/store/../../etc/x"}"#).is_err()
        );
        assert!(matches!(
            Manifest::parse(br#"{"kind":"other","value":{}}"#),
            Err(ManifestError::Kind { .. })
        ));
        assert!(Manifest::parse(b"").is_err());
    }
}
