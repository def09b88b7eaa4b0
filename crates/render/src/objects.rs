//! Kubernetes objects that several roles share.

use serde_json::{Value, json};

use crate::Target;

/// The user ID `nobody`, for processes that need no permissions on their node.
const NOBODY: u32 = 65_534;

const CHOSEN_USER: &str = "OpenShift chooses the user, from the namespace's range.";

/// Returns the security context of a pod that needs no permissions on its node.
pub(crate) fn unprivileged(target: Target) -> Value {
    match target {
        Target::Openshift => json!({
            "# runAsNonRoot": CHOSEN_USER,
            "runAsNonRoot": true,
            "seccompProfile": {"type": "RuntimeDefault"},
        }),
        _ => json!({
            "runAsNonRoot": true, "runAsUser": NOBODY, "runAsGroup": NOBODY, "fsGroup": NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        }),
    }
}

pub(crate) fn labels(name: &str) -> Value {
    json!({"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "landfall"})
}

pub(crate) fn metadata(name: &str, namespace: &str) -> Value {
    json!({"name": name, "namespace": namespace, "labels": labels(name)})
}

/// Returns a namespace for pods that need the `privileged` level of Pod Security.
pub(crate) fn privileged_namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {
            "app.kubernetes.io/part-of": "landfall",
            "# pod-security.kubernetes.io/enforce": "Its pods are on their host's network, which no stricter level allows.",
            "pod-security.kubernetes.io/enforce": "privileged",
        }},
    })
}

/// Returns an account whose pods get a token only on request.
pub(crate) fn service_account(name: &str, namespace: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(name, namespace),
        "# automountServiceAccountToken": "Pods that need a token ask for it.",
        "automountServiceAccountToken": false,
    })
}

/// Binds the account to an OpenShift security context constraint.
pub(crate) fn security_context_binding(name: &str, namespace: &str, constraint: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata(name, namespace),
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": format!("system:openshift:scc:{constraint}"),
        },
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    })
}
