//! An API server for server-side dry runs.

use std::path::Path;

use landfall_testkit::{ApiServer, ApiServerSpec};
use serde_json::json;

/// Starts it with these namespaces: a dry run does not create the ones that later objects need.
pub(crate) fn with_namespaces(namespaces: &[&str]) -> ApiServer {
    let arguments = vec!["--allow-privileged=true".to_owned()];
    let cluster = ApiServer::start_with(&ApiServerSpec { arguments, ..ApiServerSpec::default() }).unwrap();
    for namespace in namespaces.iter().chain(&["kube-system"]) {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        cluster.apply(&object).unwrap();
    }
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "kube-system"}});
    cluster.apply(&account).unwrap();
    cluster
}

/// Returns the result of a dry run of a file (`-f`) or a kustomize base (`-k`).
pub(crate) fn take(cluster: &ApiServer, flag: &str, path: &Path) -> String {
    let path = path.display().to_string();
    cluster.kubectl(&["apply", "--dry-run=server", "--validate=strict", flag, &path]).unwrap()
}
