use super::*;
use crate::prepare::decision::{Origin, PassedOver, Signature};
use crate::prepare::manifest::tests::manifest;

fn facts(cluster: &str, current: &str, next: Option<&str>, has: &[(&str, &[&str])]) -> Facts {
    let manifests = has
        .iter()
        .map(|(system, versions)| ManifestFact {
            system: system.parse().unwrap(),
            manifest: manifest(versions),
            index: Index {
                url: format!("https://bucket.example/{system}.json"),
                passed_over: Vec::new(),
                system: Some(system.parse().unwrap()),
                signature: Signature::Verified { fingerprints: vec!["18ad".to_owned()] },
            },
        })
        .collect();
    let torcx = TorcxFacts {
        mappings: Resolved {
            value: Mappings::embedded().unwrap(),
            origin: Origin::Embedded,
            passed_over: vec![PassedOver {
                origin: Origin::ConfigMap { name: "tectonic-system/x".to_owned() },
                reason: "there is none".to_owned(),
            }],
        },
        manifests,
        stored: BTreeSet::new(),
        selector: None,
        profile: None,
        running: None,
    };
    Facts {
        cluster_version: Resolved::from(Origin::ApiServer, cluster.parse().unwrap()),
        api_servers: vec![ServerAnswer {
            address: "https://api.example:6443".to_owned(),
            version: Some(cluster.parse().unwrap()),
            error: None,
        }],
        current_os: Resolved::from(
            Origin::File { path: "/usr/lib/os-release".into() },
            OsRelease {
                id: "coreos".to_owned(),
                version: current.parse().unwrap(),
                board: "amd64-usr".to_owned(),
                sysext_level: None,
            },
        ),
        next_os: Resolved::from(Origin::UpdateEngine, next.map(|next| next.parse().unwrap())),
        installer_env: Some(
            "KUBELET_IMAGE_URL=\"quay.io/coreos/hyperkube\"\nKUBELET_IMAGE_TAG=\"v1.7.5\"\n".to_owned(),
        ),
        runtime: RuntimeFacts::Torcx(Box::new(torcx)),
    }
}

fn torcx(facts: &mut Facts) -> &mut TorcxFacts {
    match &mut facts.runtime {
        RuntimeFacts::Torcx(torcx) => torcx,
        _ => unreachable!("the facts of these tests are torcx's"),
    }
}

const BOTH: [(&str, &[&str]); 2] = [("2001.0.0", &["1.12", "17.03"]), ("2000.0.0", &["1.12", "17.03"])];

#[test]
fn the_whole_decision_is_told() {
    let decision =
        plan(&Request::default(), facts("v1.9.3+coreos.0", "2000.0.0", Some("2001.0.0"), &BOTH)).unwrap();
    insta::assert_snapshot!("decision-json", serde_json::to_string_pretty(&decision).unwrap());
    insta::assert_snapshot!("decision-text", crate::prepare::show::text(&decision));
    let back: Decision = serde_json::from_str(&serde_json::to_string(&decision).unwrap()).unwrap();
    assert_eq!(back, decision);
}

#[test]
fn what_is_there_is_not_fetched_again() {
    let mut facts = facts("v1.9.3", "2000.0.0", Some("2001.0.0"), &BOTH);
    let stored = |system: &str, path: &str| Stored {
        system: system.parse().unwrap(),
        version: "17.03".to_owned(),
        path: path.into(),
    };
    torcx(&mut facts).stored = [
        stored("2001.0.0", "/var/lib/torcx/store/2001.0.0/docker:17.03.torcx.tgz"),
        stored("2000.0.0", "/var/lib/torcx/store/docker:17.03.torcx.tgz"),
    ]
    .into();
    let decision = plan(&Request::default(), facts).unwrap();
    let actions: Vec<&Action> = decision.artefacts.iter().map(|artefact| &artefact.action).collect();
    assert_eq!(
        actions,
        [&Action::Present, &Action::Copy { from: "/var/lib/torcx/store/docker:17.03.torcx.tgz".into() }]
    );
}

#[test]
fn without_a_change_there_is_no_reboot() {
    let profile = profile::with_image(None, DOCKER, "17.03").unwrap();
    let mut same = facts("v1.9.3", "2000.0.0", None, &BOTH);
    torcx(&mut same).running = Some(profile.clone());
    assert_eq!(plan(&Request::default(), same).unwrap().reboot, Reboot::default());

    let mut other = facts("v1.7.3", "2000.0.0", None, &BOTH);
    torcx(&mut other).running = Some(profile);
    let decision = plan(&Request::default(), other).unwrap();
    assert_eq!(decision.reboot.because, ["docker 1.12 is unpacked at boot, and this boot has 17.03"]);
}

#[test]
fn a_profile_that_was_chosen_is_kept() {
    let mut facts = facts("v1.9.3", "2000.0.0", None, &BOTH);
    torcx(&mut facts).selector = Some("mine\n".to_owned());
    torcx(&mut facts).profile = Some(profile::with_image(None, "rkt", "1.29").unwrap());
    let decision = plan(&Request::default(), facts).unwrap();
    assert_eq!(decision.files[0].path, Path::new("/etc/torcx/profiles/mine.json"));
    let Content::Text { text } = &decision.files[0].content else { panic!("a profile is text") };
    assert!(text.contains("rkt") && text.contains("17.03"), "{text}");
}

#[test]
fn the_skew_policy_refuses_and_can_be_overruled() {
    let mut skewed = facts("v1.9.3", "2000.0.0", None, &BOTH);
    skewed.cluster_version = Resolved::from(Origin::Forced, "v1.10.0".parse().unwrap());
    assert!(matches!(
        plan(&Request::default(), skewed.clone()),
        Err(PlanError::Skew(SkewError::TooNew { .. }))
    ));
    torcx(&mut skewed).mappings.value =
        Mappings::parse("kind: VersionManifestV1\nversions: {k8s: {1.10: {docker: [\"17.03\"]}}}\n").unwrap();
    let request = Request { allow_skew: true, ..Request::default() };
    let decision = plan(&request, skewed).unwrap();
    assert!(matches!(decision.skew, Skew::Allowed { .. }));
    assert!(crate::prepare::show::text(&decision).contains("OUTSIDE THE VERSION-SKEW POLICY"));
}

#[test]
fn an_old_system_is_left_alone() {
    let mut old = facts("v1.7.3", "1500.0.0", Some("1501.0.0"), &[]);
    old.runtime = RuntimeFacts::TooOld;
    let decision = plan(&Request::default(), old).unwrap();
    assert!(decision.artefacts.is_empty() && decision.files.is_empty());
    assert_eq!(decision.runtimes[0].chosen, None);
    assert!(decision.kubelet_env.is_some());
}
