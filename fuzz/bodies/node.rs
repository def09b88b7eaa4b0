//! Bodies of the `node_*` targets: all untrusted input of `node prepare`.

use std::io::Cursor;

use landfall_node::prepare::kubelet_env;
use landfall_node::prepare::manifest::{Manifest, Unbound};
use landfall_node::prepare::mappings::Mappings;
use landfall_node::prepare::next_os;
use landfall_node::prepare::os_release::{Architecture, OsRelease};
use landfall_node::prepare::profile;
use landfall_node::prepare::request::Trust;
use landfall_node::prepare::sysext::Sums;
use landfall_node::prepare::sysext::release::{ExtensionRelease, System};
use landfall_node::prepare::sysext::squashfs::Squashfs;
use landfall_node::prepare::template;
use landfall_node::prepare::verify::openpgp::OpenPgp;
use landfall_node::prepare::verify::{ManifestVerifier as _, Policy};
use landfall_node::prepare::version::KubeVersion;

/// `/usr/lib/os-release`, `kubelet.env`, `next-profile`, a torcx profile, update_engine's output, a URL
/// template.
pub(crate) fn files(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(release) = OsRelease::parse(&text, Some(Architecture::Amd64)) {
        // Both become part of a URL and of a path.
        for part in [release.version.as_str(), &release.board] {
            assert!(!part.contains('/') && part != "..", "{part:?}");
        }
    }
    if let Some(Ok(version)) = kubelet_env::version(&text).map(|tag| KubeVersion::from_image_tag(&tag)) {
        let rendered = kubelet_env::render(&text, &version);
        assert_eq!(kubelet_env::version(&rendered), Some(version.image_tag()));
        assert_eq!(kubelet_env::render(&rendered, &version), rendered);
    }
    if let Ok(Some(name)) = profile::selected(&text) {
        assert!(!name.contains('/'), "{name:?}");
    }
    let _ = profile::reference(&text, "docker");
    if let Ok(changed) = profile::with_image(Some(&text), "docker", "17.03") {
        assert_eq!(profile::reference(&changed, "docker").ok().flatten().as_deref(), Some("17.03"));
    }
    let _ = next_os::version_in_response(&text);
    let _ = template::fill(&text, &[("Board", "amd64-usr"), ("OSVersion", "1.2.3")]);
}

/// A list of torcx images in either format.
pub(crate) fn manifest(bytes: &[u8]) {
    if let Ok(manifest) = Manifest::parse(bytes) {
        for version in manifest.versions("docker") {
            assert!(!version.contains('/') && version != "..", "{version:?}");
            assert!(manifest.find("docker", version).is_some());
        }
        let Ok(system) = "2000.0.0".parse() else { return };
        let _ = manifest.check_binding("amd64-usr", &system, 1_800_000_000, Unbound::Refused);
    }
}

/// `SHA256SUMS`.
pub(crate) fn sums(bytes: &[u8]) {
    if let Ok(sums) = Sums::parse(&String::from_utf8_lossy(bytes)) {
        for version in sums.versions("kubernetes", "x86-64") {
            let file = format!("kubernetes-{version}-x86-64.raw");
            assert!(sums.find(&file).is_some() && !file.contains('/'), "{file:?}");
        }
    }
}

/// `extension-release`.
pub(crate) fn release(bytes: &[u8]) {
    let system = System {
        id: "flatcar".to_owned(),
        version: "4152.2.0".to_owned(),
        sysext_level: Some("1.0".to_owned()),
        architecture: Architecture::Amd64,
    };
    if let Err(misfit) = ExtensionRelease::parse(&String::from_utf8_lossy(bytes)).fits(&system) {
        let _ = misfit.to_string();
    }
}

/// Runtime mappings, from a ConfigMap or a file.
pub(crate) fn mappings(bytes: &[u8]) {
    if let (Ok(mappings), Ok(version)) =
        (Mappings::parse(&String::from_utf8_lossy(bytes)), "v1.10.3".parse::<KubeVersion>())
    {
        let _ = mappings.preferences(&version, "docker");
        let _ = mappings.wanted(&version);
    }
}

/// An extension image.
pub(crate) fn image(bytes: &[u8]) {
    if let Ok(mut image) = Squashfs::open(Cursor::new(bytes)) {
        let _ = image.top();
        let _ = image.file("/usr/lib/extension-release.d/extension-release.x", 64 * 1024);
    }
}

/// A keyring and, after an empty line, a signature.
pub(crate) fn signature(bytes: &[u8]) {
    let at = bytes.windows(2).position(|pair| pair == b"\n\n").unwrap_or(bytes.len());
    let (keyring, signature) = bytes.split_at(at);
    let Ok(policy) = Policy::new(&Trust::default(), 1_800_000_000) else { return };
    if let Ok(verifier) = OpenPgp::new(bytes, policy.clone()) {
        let _ = verifier.verify(b"content", signature);
    }
    if let Ok(verifier) = OpenPgp::new(keyring, policy) {
        let _ = verifier.verify(b"content", signature);
    }
}
