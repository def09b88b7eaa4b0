//! The test vectors of the original, and the exact formats it read and wrote.

use landfall_fetch::{Algorithm, Digest};
use landfall_node::prepare::choice::{Choice, Offer, choose};
use landfall_node::prepare::manifest::{Location, Manifest};
use landfall_node::prepare::mappings::Mappings;
use landfall_node::prepare::os_release::{Architecture, OsRelease};
use landfall_node::prepare::update_engine::Operation;
use landfall_node::prepare::version::{KubeVersion, OsVersion};
use landfall_node::prepare::{hook, kubelet_env, planner, profile, template};
use serde_json::json;

const HASH: &str = "0e3e75234abc68f4378a86b3f4b32a198ba301845b0cd6e50106e874345700cc6663a86c1ea125dc5e92be17c98f9a0f85ca9d5f595db2012f7cc3571945c123";

fn manifest(versions: &[&str]) -> Manifest {
    let versions: Vec<_> = versions
        .iter()
        .map(|version| json!({"version": version, "hash": format!("sha512-{HASH}"), "locations": [{"url": "https://b/x"}]}))
        .collect();
    let document = json!({"kind": "torcx-package-list-v0", "value": {"packages": [{"name": "docker", "versions": versions}]}});
    Manifest::parse(document.to_string().as_bytes()).unwrap()
}

/// Chooses from preferences, the versions for the next system, and the versions for the current system.
fn picked(preferences: &[&str], next: (&str, &[&str]), current: (&str, &[&str])) -> Choice {
    let preferences: Vec<String> = preferences.iter().map(|text| (*text).to_owned()).collect();
    let systems: [OsVersion; 2] = [next.0.parse().unwrap(), current.0.parse().unwrap()];
    let manifests = [manifest(next.1), manifest(current.1)];
    let offer = |at: usize| Offer { system: &systems[at], manifest: &manifests[at] };
    choose("docker", &preferences, offer(0), Some(offer(1))).unwrap()
}

#[test]
fn versions_are_picked_as_they_were() {
    let chosen = |version: &str, systems: &[&str]| Choice::Version {
        version: version.to_owned(),
        systems: systems.iter().map(|text| text.parse().unwrap()).collect(),
    };
    let both = ["2001.0.0", "2000.0.0"];
    assert_eq!(picked(&["1.13"], (both[0], &["1.13"]), (both[1], &["1.13"])), chosen("1.13", &both));
    let has: &[&str] = &["1.12", "1.13"];
    assert_eq!(picked(&["17.03", "1.13", "1.12"], (both[0], has), (both[1], has)), chosen("1.13", &both));
    assert_eq!(
        picked(&["1.13", "1.12"], (both[0], &["1.13"]), (both[1], &["1.12"])),
        chosen("1.13", &both[..1])
    );
    assert_eq!(picked(&["1.13"], ("1501.0.0", &["1.13"]), ("1500.0.0", &["1.13"])), Choice::TooOld);
}

#[test]
fn old_stores_are_cleared_as_they_were() {
    let names = ["101.0.0", "102.0.0", "102.0.1", "102.1.1", "xtra", "a"];
    let gone = hook::outdated(names.into_iter(), &"102.0.1".parse().unwrap());
    let kept: Vec<&str> = names.into_iter().filter(|name| !gone.contains(name)).collect();
    assert_eq!(kept, ["102.0.1", "102.1.1", "xtra", "a"]);
}

#[test]
fn the_hash_of_the_test_image_is_its_hash() {
    assert_eq!(Digest::of(Algorithm::Sha512, b"test\n").hex(), HASH);
    let remote = manifest(&["1.12"]);
    assert_eq!(remote.find("docker", "1.12").unwrap().digest.expected().hex(), HASH);
    // Content that ships with the system is not fetched; otherwise the last location counts.
    let locations = json!([{"url": "https://b/1"}, {"path": "/usr/share/torcx/store/docker:1.12.torcx.tgz"}, {"url": "https://b/2"}]);
    let text = json!({"kind": "torcx-package-list-v0", "value": {"packages": [{"name": "docker", "versions": [
        {"version": "1.12", "hash": format!("sha512-{HASH}"), "locations": locations}]}]}});
    let shipped = Manifest::parse(text.to_string().as_bytes()).unwrap();
    let path = "/usr/share/torcx/store/docker:1.12.torcx.tgz".to_owned();
    assert_eq!(shipped.find("docker", "1.12").unwrap().location, Location::Vendor { path });
}

#[test]
fn files_and_names_are_as_they_were() {
    let version: KubeVersion = "v1.7.5+coreos.1".parse().unwrap();
    let installer = "KUBELET_IMAGE_URL=\"quay.io/coreos/hyperkube\"\nKUBELET_IMAGE_TAG=\"v1.7.5_coreos.1\"\n";
    assert_eq!(
        kubelet_env::render(installer, &version),
        "KUBELET_IMAGE_URL=quay.io/coreos/hyperkube\nKUBELET_IMAGE_TAG=v1.7.5_coreos.1\n"
    );
    let tag = kubelet_env::version(installer).unwrap();
    assert_eq!(KubeVersion::from_image_tag(&tag).unwrap(), version);
    assert_eq!(
        template::fill(template::MANIFEST_URL, &[("Board", "amd64-usr"), ("OSVersion", "1520.8.0")]).unwrap(),
        "https://tectonic-torcx.release.core-os.net/manifests/amd64-usr/1520.8.0/torcx_manifest.json"
    );
    assert_eq!(
        planner::store_path(&"1520.8.0".parse().unwrap(), "docker", "17.03").display().to_string(),
        "/var/lib/torcx/store/1520.8.0/docker:17.03.torcx.tgz"
    );
    assert_eq!(
        profile::with_image(None, "docker", "1.12").unwrap().trim_end(),
        r#"{"kind":"profile-manifest-v0","value":{"images":[{"name":"docker","reference":"1.12"}]}}"#
    );
    assert_eq!(profile::selected("tectonic\n").unwrap().as_deref(), Some("tectonic"));
    for (architecture, board) in [(Architecture::Amd64, "amd64-usr"), (Architecture::Arm64, "arm64-usr")] {
        assert_eq!(OsRelease::parse("VERSION_ID=1\n", Some(architecture)).unwrap().board, board);
    }
}

#[test]
fn the_mappings_are_what_they_were() {
    let table = "kind: VersionManifestV1\nversions:\n  k8s:\n    1.6: { docker: [\"1.12\"] }\n    1.7: { docker: [\"1.12\"] }\n    1.8: { docker: [\"17.03\", \"1.12\"] }\n    1.9: { docker: [\"17.03\", \"1.12\"] }\n";
    for table in [Mappings::parse(table).unwrap(), Mappings::embedded().unwrap()] {
        for (version, wanted) in [
            ("v1.6.13", &["1.12"][..]),
            ("v1.7.5+coreos.1", &["1.12"]),
            ("v1.8.0", &["17.03", "1.12"]),
            ("v1.9.11", &["17.03", "1.12"]),
        ] {
            assert_eq!(table.preferences(&version.parse().unwrap(), "docker").unwrap(), wanted, "{version}");
        }
    }
}

#[test]
fn the_states_of_the_updater_have_their_names() {
    let names = [
        ("IDLE", Operation::Idle),
        ("CHECKING_FOR_UPDATE", Operation::Checking),
        ("UPDATE_AVAILABLE", Operation::Available),
        ("DOWNLOADING", Operation::Downloading),
        ("VERIFYING", Operation::Verifying),
        ("FINALIZING", Operation::Finalizing),
        ("UPDATED_NEED_REBOOT", Operation::NeedReboot),
        ("REPORTING_ERROR_EVENT", Operation::ReportingError),
    ];
    for (name, operation) in names {
        assert_eq!(Operation::parse(&format!("UPDATE_STATUS_{name}")), operation);
    }
    assert_eq!(Operation::parse("unknown status"), Operation::Other);
}

/// The examples of the guide are valid as printed.
#[test]
fn the_examples_of_the_guide_can_be_used() {
    const GUIDE: &str = include_str!("../../../../docs/guides/node-prepare.md");
    let example = |language: &str| {
        let (_, rest) = GUIDE.split_once(&format!("```{language}\n")).unwrap();
        rest.split_once("```").unwrap().0.to_owned()
    };
    let installer = example("ini");
    let version = KubeVersion::from_image_tag(&kubelet_env::version(&installer).unwrap()).unwrap();
    assert_eq!(version.as_str(), "v1.9.3+coreos.0");
    let mappings = Mappings::parse(&example("yaml")).unwrap();
    let preferences = mappings.preferences(&version, "docker").unwrap();
    assert_eq!(preferences, ["17.03", "1.12"]);
    let list = example("json").replace("<128 hexadecimal digits>", HASH);
    let list = Manifest::parse(list.as_bytes()).unwrap();
    assert!(matches!(list.find("docker", &preferences[0]).unwrap().location, Location::Remote { .. }));
    assert!(matches!(list.find("docker", &preferences[1]).unwrap().location, Location::Vendor { .. }));
}
