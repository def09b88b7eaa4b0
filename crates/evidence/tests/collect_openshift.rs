//! A bundle of an OpenShift bootstrap machine, as other tools read it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "machine/mod.rs"]
mod machine;

use std::collections::BTreeMap;

use machine::{Bundle, Machine};

/// Output of `openshift-install analyze` for a bundle, following its documentation.
fn analyze(bundle: &Bundle) -> Vec<String> {
    #[derive(Default)]
    struct Service {
        starts: u32,
        successful: bool,
        failing_stage: String,
        last_error: String,
    }
    let mut services: BTreeMap<String, Service> = BTreeMap::new();
    for (path, content) in &bundle.files {
        let path = format!("log-bundle-1/{path}");
        let Some((_, name)) = path.rsplit_once("/bootstrap/services/") else { continue };
        let Some(name) = name.strip_suffix(".json").filter(|name| !name.contains('.')) else { continue };
        let entries: Vec<serde_json::Value> = serde_json::from_slice(content).unwrap();
        let mut service = Service::default();
        let mut previous_failed_stage = false;
        for entry in &entries {
            let text = |field: &str| entry[field].as_str().unwrap_or_default();
            let phase = text("phase");
            service.starts += u32::from(phase == "service start");
            service.successful =
                matches!(phase, "service end" | "post-command end") && text("result") == "success";
            if text("result") == "failure" {
                if !previous_failed_stage {
                    text("stage").clone_into(&mut service.failing_stage);
                }
                text("errorMessage").clone_into(&mut service.last_error);
            }
            previous_failed_stage = phase == "stage end" && text("result") == "failure";
        }
        services.insert(name.to_owned(), service);
    }
    if services.is_empty() {
        return vec!["Invalid log bundle or the bootstrap machine could not be reached and bootstrap logs were not collected".to_owned()];
    }
    for name in ["release-image", "bootkube"] {
        let service = services.get(name);
        if service.is_none_or(|service| service.starts == 0) {
            return vec![format!("The bootstrap machine did not execute the {name}.service systemd unit")];
        }
        if let Some(service) = service.filter(|service| !service.successful) {
            let what = if name == "bootkube" {
                format!("The bootkube service failed at stage \"{}\"", service.failing_stage)
            } else {
                "The bootstrap machine failed to download the release image".to_owned()
            };
            return [vec![what], service.last_error.lines().map(str::to_owned).collect()].concat();
        }
    }
    Vec::new()
}

#[test]
fn assets_are_listed_and_their_keys_stay() {
    let machine = Machine::new();
    machine
        .file("opt/openshift/manifests/cvo.yaml", "kind: Deployment\n")
        .file(
            "opt/openshift/tls/root-ca.key",
            "-----BEGIN RSA PRIVATE KEY-----\nMIIEsecretbody\n-----END RSA PRIVATE KEY-----\n",
        )
        .file("opt/openshift/auth/kubeconfig", "users:\n- user:\n    token: hunter2-hunter2\n")
        .file(
            "ostree/deploy/rhcos/deploy/abc.0.origin",
            "[origin]\ncontainer-image-reference=ostree-unverified-registry:r.example/os\n",
        )
        .file(
            "ostree/deploy/rhcos/deploy/abc.0/usr/lib/os-release",
            "VERSION=\"9.6\"\nOSTREE_VERSION='9.6.2026-1'\n",
        )
        .file("ostree/deploy/rhcos/deploy/def.1/usr/lib/os-release", "VERSION=\"9.4\"\n")
        .link("ostree/boot.1/rhcos/0123/0", "../../../deploy/rhcos/deploy/abc.0")
        .file("proc/cmdline", "root=UUID=1 ostree=/ostree/boot.1/rhcos/0123/0 rw\n");
    let bundle = machine.collect();
    let listing = bundle.text("rendered-assets/listing.txt");
    assert!(listing.contains(" /opt/openshift/manifests/cvo.yaml\n"), "{listing}");
    assert!(listing.contains(" /opt/openshift/tls/root-ca.key\n"), "{listing}");
    let shapes = bundle.text("bootstrap/withheld.txt");
    assert!(shapes.contains("RSA PRIVATE KEY") && shapes.contains("token (15 characters)"), "{shapes}");
    assert_eq!(bundle.contains("hunter2"), None);
    assert_eq!(bundle.contains("MIIEsecretbody"), None);
    assert!(
        bundle
            .files
            .keys()
            .any(|path| path.starts_with("bootstrap/rpm-ostree/") && path.ends_with("abc.0.origin"))
    );
    let status = bundle.text("bootstrap/rpm-ostree/status");
    let expected = "Deployments:\n● ostree-unverified-registry:r.example/os\n     System: rhcos\n    Version: 9.6.2026-1\n     \
                    Commit: abc\n     Serial: 0\n  origin unknown\n     System: rhcos\n    Version: 9.4\n     Commit: def\n     Serial: 1\n";
    assert_eq!(status, expected);
    let log = bundle.text("gather.log");
    assert!(log.contains("listing -> rendered-assets/listing.txt: collected, "), "{log}");
    assert!(
        log.contains("openrc -> bootstrap/openrc.txt: skipped: it is for machines of another kind"),
        "{log}"
    );
}

#[test]
fn openshift_installs_analysis_gives_the_right_verdicts() {
    const DONE: &str = r#"[{"phase":"service start","timestamp":"2026-08-20T10:00:00Z"},
        {"phase":"service end","result":"success","timestamp":"2026-08-20T10:00:09Z"}]"#;
    let machine = Machine::new();
    machine.file("opt/openshift/openshift", "");
    assert!(analyze(&machine.collect())[0].starts_with("Invalid log bundle"));

    machine.file("var/log/openshift/release-image.json", DONE);
    assert_eq!(
        analyze(&machine.collect()),
        ["The bootstrap machine did not execute the bootkube.service systemd unit"]
    );

    let failed = r#"[{"phase":"service start","timestamp":"2026-08-20T10:00:00Z"},
        {"phase":"stage start","stage":"cvo-bootstrap","timestamp":"2026-08-20T10:00:01Z"},
        {"phase":"stage end","stage":"cvo-bootstrap","result":"failure","errorLine":"199 main bootkube.sh","errorMessage":"l1\nl2\nl3"},
        {"phase":"service end","result":"failure","errorLine":"199 main bootkube.sh","errorMessage":"l1\nl2\nl3"}]"#;
    machine.file("var/log/openshift/bootkube.json", failed);
    assert_eq!(
        analyze(&machine.collect()),
        ["The bootkube service failed at stage \"cvo-bootstrap\"", "l1", "l2", "l3"]
    );

    machine.file("var/log/openshift/bootkube.json", DONE);
    assert_eq!(analyze(&machine.collect()), [""; 0]);
}
