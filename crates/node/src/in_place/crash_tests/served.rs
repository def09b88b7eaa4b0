//! Answers of the simulated servers: Ignition, an image with the daemon in it, a payload.

use landfall_fetch::{Algorithm, Answer, Digest};
use serde_json::json;

/// Returns the answer for a URL.
pub(super) fn answer(url: &str) -> Answer {
    let body = match url {
        "https://ignition/broken" => b"{}".to_vec(),
        "https://ignition/" => ignition(),
        _ if url.starts_with("https://bootstrap/?") => payload(),
        _ if url.contains("/manifests/") => manifest(),
        _ if url.contains("/blobs/") => layer(),
        _ => Vec::new(),
    };
    Answer { status: 200, headers: Vec::new(), body }
}

fn data(text: &str) -> String {
    format!("data:,{}", text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>())
}

fn ignition() -> Vec<u8> {
    let config = json!({"kind": "MachineConfig", "metadata": {"name": "rendered-worker-2"},
        "spec": {"config": {"ignition": {"version": "3.2.0"}}}});
    let digest = Digest::of(Algorithm::Sha256, &manifest());
    let file = |path: &str, text: &str| json!({"path": path, "contents": {"source": data(text)}});
    json!({"ignition": {"version": "3.2.0"}, "storage": {"files": [
        file("/etc/mcs-machine-config-content.json", &config.to_string()),
        file("/etc/kubernetes/kubeconfig", "new"),
        file("/etc/machine-config-daemon/node-annotations.json", "new"),
        file("/etc/sysconfig/machineconfigdaemonsha",
            &format!("MACHINE_CONFIG_DAEMON_SHA=quay.io/mco@sha256:{}", digest.hex())),
    ]}})
    .to_string()
    .into_bytes()
}

fn manifest() -> Vec<u8> {
    let layer = layer();
    json!({"layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "size": layer.len(),
        "digest": format!("sha256:{}", Digest::of(Algorithm::Sha256, &layer).hex())}]})
    .to_string()
    .into_bytes()
}

fn archive(path: &str) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(3);
    header.set_mode(0o755);
    header.set_cksum();
    builder.append_data(&mut header, path, &b"mcd"[..]).unwrap();
    builder.into_inner().unwrap()
}

fn layer() -> Vec<u8> {
    archive("usr/bin/machine-config-daemon")
}

fn payload() -> Vec<u8> {
    archive(crate::in_place::payload::BASE)
}
