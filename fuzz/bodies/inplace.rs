//! What the `inplace_*` targets do with their input: everything an in-place bootstrap reads that it did not write.

use landfall_inplace::credentials::Credentials;
use landfall_inplace::flavour::Flavour;
use landfall_inplace::ignition::Ignition;
use landfall_inplace::machine_config::{self, Host};
use landfall_inplace::mirrors::{self, Variables};
use landfall_inplace::oci::{AuthFile, Challenge, Manifest, Reference, extract, places};
use landfall_inplace::payload;
use landfall_model::Secret;
use landfall_model::in_place::Told;

/// What an Ignition server answers, and the MachineConfig in it.
pub(crate) fn ignition(bytes: &[u8]) {
    let Ok(ignition) = Ignition::parse(bytes) else { return };
    let _ = ignition.file("/etc/kubernetes/kubeconfig");
    let _ = ignition.registries();
    if let Ok(image) = ignition.daemon_image() {
        let _ = Reference::parse(&image);
    }
    if let Ok(config) = ignition.complete_machine_config() {
        let host = Host { fips: false, ostree: true, current: None };
        let _ = machine_config::obstacles(&config, &host);
        let _ = machine_config::name(&config);
    }
}

/// A manifest or an index of images.
pub(crate) fn manifest(bytes: &[u8]) {
    let hex = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match Manifest::parse(bytes) {
        // Digests become parts of URLs and of file names.
        Ok(Manifest::Image(layers)) => assert!(layers.iter().all(|layer| hex(layer.digest.hex()))),
        Ok(Manifest::Index(children)) => assert!(children.iter().all(|(_, digest)| hex(digest.hex()))),
        Err(error) => drop(error.to_string()),
    }
}

/// `registries.conf`, a registry's challenge, `config.json`, an image's name, a `.repo` file.
pub(crate) fn settings(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let digest = "0".repeat(64);
    if let Ok(image) = Reference::parse(&format!("quay.io/release/image@sha256:{digest}"))
        && let Ok(places) = places(Some(&text), &image)
    {
        for place in places {
            assert!(!place.host.is_empty() && !place.host.contains('/'), "{place:?}");
        }
    }
    let _ = Reference::parse(&text);
    let _ = Challenge::parse(&text);
    let auth = AuthFile::parse(&text);
    let _ = auth.lookup("quay.io", "release/image");
    let variables = Variables { release: "9".to_owned(), architecture: "x86_64".to_owned() };
    let _ = mirrors::repositories(&text, &variables);
}

/// The Secret of a node, and what a node tells of itself.
pub(crate) fn messages(bytes: &[u8]) {
    for flavour in [Flavour::Rhcos, Flavour::Rhel] {
        if let Err(error) = Credentials::parse(&Secret::new(bytes.to_vec()), flavour) {
            drop(error.to_string());
        }
    }
    if let Some(told) = Told::parse(&String::from_utf8_lossy(bytes)) {
        let text = serde_json::to_string(&told).expect("what was read can be written");
        assert_eq!(Told::parse(&text), Some(told));
    }
}

/// A payload, and a layer of an image.
pub(crate) fn archive(bytes: &[u8]) {
    let read = payload::read(bytes, |path, _| {
        assert!(
            path.is_relative() && !path.components().any(|part| part.as_os_str() == ".."),
            "{}",
            path.display()
        );
        Ok(())
    });
    drop(read);
    for kind in ["application/vnd.oci.image.layer.v1.tar", "application/vnd.oci.image.layer.v1.tar+gzip"] {
        let _ = extract(bytes, kind, "usr/bin/machine-config-daemon");
    }
}
