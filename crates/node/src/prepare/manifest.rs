//! The list of addon images for one version of the operating system: `torcx-package-list-v0`.

use serde::Deserialize;

use super::digest::Digest;
use super::version::is_tame;

/// The manifests of the field have a few kilobytes.
pub const MAX_BYTES: u64 = 1024 * 1024;
/// More packages, versions or places than any manifest has.
const MAX_ENTRIES: usize = 1024;

const KIND: &str = "torcx-package-list-v0";
/// What lies here came with the operating system.
const VENDOR_STORE: &str = "/usr/share/torcx/store/";

/// A parsed manifest: only what can be used is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    packages: Vec<Package>,
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

/// Where the image comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// It is part of that operating system.
    Vendor { path: String },
    /// The last URL counts, as it always has; the others are its mirrors.
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
struct Value {
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
        // The kind first: of another kind, every other complaint would mislead.
        let Kind { kind } = serde_json::from_slice(bytes).map_err(syntax)?;
        if kind != KIND {
            return Err(ManifestError::Kind { kind: kind.chars().take(64).collect() });
        }
        let document: Document = serde_json::from_slice(bytes).map_err(syntax)?;
        debug_assert_eq!(document.kind, KIND);
        let packages = document.value.packages;
        if packages.len() > MAX_ENTRIES {
            return Err(ManifestError::TooMany { what: "packages" });
        }
        let packages: Result<Vec<Package>, ManifestError> = packages.into_iter().map(package).collect();
        Ok(Self { packages: packages? })
    }

    /// A version of a package, if the manifest has it.
    pub fn find(&self, package: &str, version: &str) -> Option<&Version> {
        let package = self.packages.iter().find(|entry| entry.name == package)?;
        package.versions.iter().find(|entry| entry.version == version)
    }

    /// All versions of a package, for people.
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
    // Both become a file name.
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
    let location = match vendor {
        Some(path) => Location::Vendor { path: path.to_owned() },
        None => {
            let urls = locations.iter().rev().filter_map(|location| location.url.clone());
            let usable = |url: &String| url.starts_with("https://") || url.starts_with("http://");
            let urls: Vec<String> = urls.filter(usable).collect();
            if urls.is_empty() {
                return Err(unusable("it has no place it could come from".to_owned()));
            }
            Location::Remote { urls }
        }
    };
    Ok(Version { version, digest, location })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The SHA-512 of `test` and a line end.
    pub(crate) const TEST_HASH: &str = "sha512-0e3e75234abc68f4378a86b3f4b32a198ba301845b0cd6e50106e874345700cc6663a86c1ea125dc5e92be17c98f9a0f85ca9d5f595db2012f7cc3571945c123";

    /// A manifest with these versions of `docker`, all to be fetched.
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
        // A path outside the vendor's store is nothing that image could ship.
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
