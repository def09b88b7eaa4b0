use super::*;

fn percent(text: &str) -> String {
    let escaped: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
    format!("data:,{escaped}")
}

fn file(path: &str, content: &str) -> Value {
    json!({"path": path, "overwrite": true, "mode": 420, "contents": {"source": percent(content)}})
}

fn document(files: &[Value]) -> Ignition {
    let document = json!({"ignition": {"version": "3.2.0"}, "storage": {"files": files}});
    Ignition::parse(document.to_string().as_bytes()).unwrap()
}

fn machine_config() -> String {
    json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": {"name": "rendered-worker-1"}, "spec": {"config": {"ignition": {"version": "3.2.0"}}}})
    .to_string()
}

#[test]
fn the_two_files_are_added_once_and_keep_their_content() {
    let added = ADDED_FILES.map(|path| file(path, &format!("content of {path}")));
    let ignition = document(&[file(MACHINE_CONFIG, &machine_config()), added[0].clone(), added[1].clone()]);
    let complete = ignition.complete_machine_config().unwrap();
    let files = complete["spec"]["config"]["storage"]["files"].as_array().unwrap();
    assert_eq!(files, &added);
    assert_eq!(complete["spec"]["config"]["passwd"]["users"][0]["sshAuthorizedKeys"], json!([""]));
}

/// A document of unexpected shape is rejected with the field named, without a panic, whatever wrote it.
#[test]
fn odd_shapes_deep_in_the_machine_config_are_refused() {
    let complete = |config: Value| {
        let config = json!({"kind": "MachineConfig", "spec": {"config": config}});
        let added = ADDED_FILES.map(|path| file(path, ""));
        let [first, second] = added;
        document(&[file(MACHINE_CONFIG, &config.to_string()), first, second]).complete_machine_config()
    };
    for (odd, place) in [
        (json!({"storage": []}), "`storage`"),
        (json!({"storage": {"files": {"path": "/x"}}}), "`storage.files`"),
        (json!({"passwd": "core"}), "`passwd`"),
        (json!({"passwd": ["core"]}), "`passwd`"),
        (json!({"passwd": {"users": "core"}}), "`passwd.users`"),
        (json!({"passwd": {"users": ["core"]}}), "a user"),
    ] {
        let error = complete(odd.clone()).unwrap_err().to_string();
        assert!(error.contains(place), "{odd}: {error}");
    }
    let users = json!([{"name": "core", "sshAuthorizedKeys": "key"}]);
    let kept = complete(json!({"passwd": {"users": users}})).unwrap();
    assert_eq!(kept["spec"]["config"]["passwd"]["users"][0]["sshAuthorizedKeys"], json!([""]));
}

#[test]
fn what_is_missing_is_named() {
    let without = document(&[file(MACHINE_CONFIG, &machine_config())]);
    let error = without.complete_machine_config().unwrap_err();
    assert_eq!(error.to_string(), "the Ignition answer lacks `/etc/kubernetes/kubeconfig`");
    let error = document(&[]).machine_config().unwrap_err();
    assert!(error.to_string().contains("/etc/mcs-machine-config-content.json"));
    assert!(matches!(document(&[]).daemon_image(), Err(IgnitionError::NoDaemon)));
    for bytes in [&b"<html>"[..], b"{}", b"{\"ignition\":{\"version\":\"9.0\"}}"] {
        assert!(Ignition::parse(bytes).is_err());
    }
}

#[test]
fn the_image_of_the_daemon_is_found() {
    let digest = format!("sha256:{}", "a".repeat(64));
    let told = |content: &str| document(&[file(DAEMON_DIGEST, content)]).daemon_image();
    let short = told(&format!("MACHINE_CONFIG_DAEMON_SHA={digest}\n")).unwrap();
    assert_eq!(short, format!("{RELEASE_REPOSITORY}@{digest}"));
    let bare = told(&format!("MACHINE_CONFIG_DAEMON_SHA=\"{}\"\n", "a".repeat(64))).unwrap();
    assert_eq!(bare, short);
    let full = told(&format!("MACHINE_CONFIG_DAEMON_SHA=reg.corp/mco@{digest}\n")).unwrap();
    assert_eq!(full, format!("reg.corp/mco@{digest}"));
    assert!(told("MACHINE_CONFIG_DAEMON_SHA=latest\n").is_err());
    let unit = format!("[Service]\nExecStart=/bin/sh -c \"podman pull 'quay.io/x/y@{digest}'\"\n");
    let document = json!({"ignition": {"version": "3.2.0"},
        "systemd": {"units": [{"name": PULL_UNIT, "contents": unit}]}});
    let ignition = Ignition::parse(document.to_string().as_bytes()).unwrap();
    assert_eq!(ignition.daemon_image().unwrap(), format!("quay.io/x/y@{digest}"));
}
