//! The API server of the test bed is real: it lists, stores and rejects objects, and calls webhooks.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use landfall_testkit::{Answer, ApiServer, Webhook, have};
use serde_json::json;

#[test]
fn kubectl_lists_namespaces() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let cluster = ApiServer::start().unwrap();
    let names = cluster.kubectl(&["get", "namespaces", "-o", "name"]).unwrap();
    for name in ["namespace/default", "namespace/kube-system", "namespace/kube-node-lease"] {
        assert!(names.lines().any(|line| line == name), "{name} is missing from:\n{names}");
    }
}

#[test]
fn an_unprivileged_user_is_refused() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let cluster = ApiServer::start().unwrap();
    let kubeconfig = cluster.kubeconfig_for("mallory", "nobody").unwrap();
    let kubeconfig = kubeconfig.to_str().unwrap();
    let refused = cluster.kubectl(&["--kubeconfig", kubeconfig, "get", "secrets"]).unwrap_err().to_string();
    assert!(refused.contains("User \"mallory\" cannot list resource \"secrets\""), "{refused}");
}

#[test]
fn a_validating_webhook_is_called_and_its_refusal_reaches_the_user() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let cluster = ApiServer::start().unwrap();
    let webhook =
        Webhook::start(([127, 0, 0, 1], 0).into(), Answer::Deny("not on my watch".to_owned())).unwrap();
    cluster
        .apply(&json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "test"},
            "webhooks": [{
                "name": "config.landfall.test",
                "clientConfig": {
                    "url": format!("https://{}/review", webhook.address()),
                    "caBundle": STANDARD.encode(webhook.authority()),
                },
                "rules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"],
                }],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }],
        }))
        .unwrap();

    // The server loads a new webhook shortly after it is stored.
    let refused =
        landfall_testkit::eventually("the webhook to be called", std::time::Duration::from_secs(20), || {
            let attempt = cluster.kubectl(&["create", "configmap", "forbidden"]);
            match attempt {
                Err(error) => Some(error.to_string()),
                Ok(_) => cluster.kubectl(&["delete", "configmap", "forbidden"]).ok().and(None),
            }
        })
        .unwrap();
    assert!(refused.contains("not on my watch"), "{refused}");
    let review = webhook.reviews().pop().unwrap();
    assert_eq!(review["request"]["name"], "forbidden");
    assert_eq!(review["request"]["userInfo"]["username"], "admin");
}
