//! API server checks beyond a dry run of the rendered file: the pods of workloads, and Cluster API objects.

use std::error::Error;
use std::path::Path;

use landfall_testkit::ApiServer;
use serde_json::{Value, json};

/// Checks whether the namespace of a workload admits its pod. The dry run of a workload itself only warns.
pub(crate) fn take_pod(cluster: &ApiServer, workload: &Path) -> Result<String, Box<dyn Error>> {
    let file = workload.display().to_string();
    let text = cluster.kubectl(&["create", "--dry-run=client", "-o", "json", "-f", &file])?;
    let workload: Value = serde_json::from_str(&text)?;
    let mut pod = workload["spec"]["template"].clone();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!("try");
    pod["metadata"]["namespace"] = workload["metadata"]["namespace"].clone();
    // Only its controller adds the volume of a claim to the pod.
    for claim in workload["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten() {
        let volume = json!({"name": claim["metadata"]["name"], "emptyDir": {}});
        pod["spec"]["volumes"].as_array_mut().into_iter().for_each(|volumes| volumes.push(volume.clone()));
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("pod.json");
    std::fs::write(&file, pod.to_string())?;
    let file = file.display().to_string();
    Ok(cluster.kubectl(&["create", "--dry-run=server", "--validate=strict", "-f", &file])?)
}

/// Defines a Cluster API kind that configures machines, limited to the lists that are extended.
pub(crate) fn define_kubeadm(cluster: &ApiServer, kind: &str, group: &str, place: &[&str]) {
    let text = json!({"type": "string"});
    let file = json!({
        "type": "object", "required": ["path"],
        "properties": {"path": text, "content": text, "owner": text, "permissions": text},
    });
    let spec = json!({"type": "object", "properties": {
        "files": {"type": "array", "items": file},
        "preKubeadmCommands": {"type": "array", "items": text},
    }});
    let schema = ["spec"]
        .iter()
        .chain(place)
        .rev()
        .fold(spec, |inner, key| json!({"type": "object", "properties": {*key: inner}}));
    let (singular, plural) = (kind.to_lowercase(), format!("{}s", kind.to_lowercase()));
    let name = format!("{plural}.{group}");
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": singular},
            "versions": [{
                "name": "v1beta1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
            }],
        },
    });
    cluster.apply(&definition).unwrap();
    let established = ["wait", "--for=condition=Established", &format!("crd/{name}"), "--timeout=60s"];
    cluster.kubectl(&established).unwrap();
}
