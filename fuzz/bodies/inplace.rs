//! Bodies of the `inplace_*` targets: all untrusted input of an in-place bootstrap.

use landfall_model::Secret;
use landfall_model::in_place::Told;
use landfall_node::in_place::credentials::Credentials;
use landfall_node::in_place::flavour::Flavour;
use landfall_node::in_place::ignition::Ignition;
use landfall_node::in_place::machine_config::{self, Host};
use landfall_node::in_place::mirrors::{self, Variables};
use landfall_node::in_place::oci::{AuthFile, Challenge, Manifest, Reference, extract, places};
use landfall_node::in_place::payload;

/// The response of an Ignition server, and the MachineConfig in it.
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

/// An image manifest or index.
pub(crate) fn manifest(bytes: &[u8]) {
    let hex = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match Manifest::parse(bytes) {
        // Digests become parts of URLs and of file names.
        Ok(Manifest::Image(layers)) => assert!(layers.iter().all(|layer| hex(layer.digest.hex()))),
        Ok(Manifest::Index(children)) => assert!(children.iter().all(|(_, digest)| hex(digest.hex()))),
        Err(error) => drop(error.to_string()),
    }
}

/// `registries.conf`, a registry's challenge, `config.json`, an image name, a `.repo` file.
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

/// The Secret of a node, and the node's own status.
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

/// A payload and an image layer.
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
