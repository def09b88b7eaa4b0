//! Tests of every request against a real kube-apiserver.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::TcpListener;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use landfall_cluster::{
    Access, Cluster, Election, LeaseQuery, Leases, OwnLease, PodPlace, Standing, TokenReview, User,
};
use landfall_model::Secret;
use landfall_testkit::{ApiServer, have, serve_http};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_answers() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let server = ApiServer::start().unwrap();
    let cluster = Cluster::from_kubeconfig(&server.admin_kubeconfig()).await.unwrap();

    assert!(cluster.version().await.unwrap().git_version.starts_with("v1."));

    config_maps_are_read_and_missed(&server, &cluster).await;
    tokens_are_told_apart(&server, &cluster).await;
    access_is_what_rules_say(&server, &cluster).await;
    only_live_leases_count(&server, &cluster).await;
    a_lease_is_held_renewed_and_released(&cluster).await;
    a_lease_of_one_that_is_gone_is_taken_over(&server, &cluster).await;
    nodes_are_written_on(&server, &cluster).await;
    every_server_tells_its_version(&cluster).await;
}

async fn nodes_are_written_on(server: &ApiServer, cluster: &Cluster) {
    let node =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"keep": "me"}}});
    server.apply(&node).unwrap();
    let key = "container-linux-update.v1.coreos.com/hook";
    cluster.annotate_node("n1", key, Some("true")).await.unwrap();
    cluster.label_node("n1", "landfall.dev/x", Some("y")).await.unwrap();
    let notes = cluster.node_facts("n1").await.unwrap().unwrap();
    assert_eq!(notes.annotations.get(key).map(String::as_str), Some("true"));
    assert_eq!(notes.labels.get("keep").map(String::as_str), Some("me"));
    assert_eq!(notes.labels.get("landfall.dev/x").map(String::as_str), Some("y"));
    cluster.annotate_node("n1", key, None).await.unwrap();
    assert!(!cluster.node_facts("n1").await.unwrap().unwrap().annotations.contains_key(key));
    assert_eq!(cluster.node_facts("nobody").await.unwrap(), None);
    assert!(cluster.annotate_node("nobody", key, None).await.unwrap_err().is_answer());
}

async fn every_server_tells_its_version(cluster: &Cluster) {
    let probes = cluster.server_versions().await;
    assert_eq!(probes[0].address, cluster.endpoint());
    let version = cluster.version().await.unwrap();
    let told: Vec<_> = probes.iter().filter_map(|probe| probe.version.as_ref().ok()).collect();
    assert!(!told.is_empty() && told.iter().all(|told| **told == version), "{probes:?}");
}

async fn config_maps_are_read_and_missed(server: &ApiServer, cluster: &Cluster) {
    server.kubectl(&["create", "configmap", "-n", "default", "tide", "--from-literal=high=6:40"]).unwrap();
    let data = cluster.config_map("default", "tide").await.unwrap().unwrap();
    assert_eq!(data.get("high").map(String::as_str), Some("6:40"));
    assert_eq!(cluster.config_map("default", "no-such-map").await.unwrap(), None);
}

async fn tokens_are_told_apart(server: &ApiServer, cluster: &Cluster) {
    server.kubectl(&["create", "serviceaccount", "-n", "default", "pilot"]).unwrap();
    let token = server.kubectl(&["create", "token", "-n", "default", "pilot", "--audience=quay"]).unwrap();
    let token = Secret::new(token.trim().to_owned());

    let review = cluster.review_token(&token, &["quay".to_owned()]).await.unwrap();
    let TokenReview::Valid { user, audiences } = review else { panic!("{review:?}") };
    assert_eq!(user.name, "system:serviceaccount:default:pilot");
    assert!(user.groups.contains(&"system:serviceaccounts".to_owned()), "{user:?}");
    assert_eq!(audiences, ["quay"]);

    // A token for another audience, and a forged one: neither is valid here.
    for (token, audience) in [(token.expose().as_str(), "elsewhere"), ("not-a-token", "quay")] {
        let review = cluster.review_token(&Secret::new(token.to_owned()), &[audience.to_owned()]).await;
        assert!(matches!(review.unwrap(), TokenReview::Invalid { .. }));
    }
}

async fn access_is_what_rules_say(server: &ApiServer, cluster: &Cluster) {
    let admiral =
        User { name: "admiral".to_owned(), groups: vec!["system:masters".to_owned()], ..User::default() };
    let sailor = User { name: "sailor".to_owned(), ..User::default() };
    let may = async |user: &User| cluster.review_path_access(user, "get", "/bootstrap").await.unwrap();
    assert_eq!(may(&admiral).await, Access::Allowed);
    assert!(matches!(may(&sailor).await, Access::Denied { .. }));

    server
        .kubectl(&["create", "clusterrole", "gather", "--verb=get", "--non-resource-url=/bootstrap"])
        .unwrap();
    server
        .kubectl(&["create", "clusterrolebinding", "sailor", "--clusterrole=gather", "--user=sailor"])
        .unwrap();
    assert_eq!(allowed_in_time(cluster, &sailor).await, Access::Allowed);
}

/// The authorizer applies a new binding a moment after it was accepted.
async fn allowed_in_time(cluster: &Cluster, user: &User) -> Access {
    let end = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let access = cluster.review_path_access(user, "get", "/bootstrap").await.unwrap();
        if access == Access::Allowed || std::time::Instant::now() > end {
            return access;
        }
    }
}

async fn only_live_leases_count(server: &ApiServer, cluster: &Cluster) {
    let now = Timestamp::now();
    let lease = |name: &str, renewed: Timestamp| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "namespace": "kube-system", "labels": {"fleet": "north"}},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 30, "renewTime": format!("{renewed:.6}")},
        })
    };
    server.apply(&lease("fresh", now)).unwrap();
    server.apply(&lease("stale", now - SignedDuration::from_secs(31))).unwrap();
    let query = LeaseQuery { namespace: "kube-system".to_owned(), selector: "fleet=north".to_owned() };
    assert_eq!(cluster.live_leases(&query, now).await.unwrap(), 1);
    let nobody = LeaseQuery { selector: "fleet=south".to_owned(), ..query };
    assert_eq!(cluster.live_leases(&nobody, now).await.unwrap(), 0);
}

async fn a_lease_is_held_renewed_and_released(cluster: &Cluster) {
    let own = OwnLease {
        namespace: "kube-system".to_owned(),
        name: "pier-1".to_owned(),
        holder: "one".to_owned(),
        labels: [("fleet".to_owned(), "west".to_owned())].into(),
        duration: Duration::from_secs(30),
    };
    let query = LeaseQuery { namespace: "kube-system".to_owned(), selector: "fleet=west".to_owned() };
    let now = Timestamp::now();
    let later = now + SignedDuration::from_secs(40);
    cluster.hold_lease(&own, now).await.unwrap();
    assert_eq!(cluster.live_leases(&query, now).await.unwrap(), 1);
    let expired = cluster.leases(&query, later).await.unwrap();
    assert_eq!((expired.live, expired.expired.len()), (0, 1));

    // Another holder of the name has renewed the lease: it is valid again, and its expired version must not
    // be deleted.
    cluster.hold_lease(&OwnLease { holder: "two".to_owned(), ..own.clone() }, later).await.unwrap();
    assert_eq!(cluster.live_leases(&query, later).await.unwrap(), 1);
    let error = cluster.delete_lease(&expired.expired[0]).await.unwrap_err();
    assert_eq!(error.answer(), Some((409, "Conflict")), "{error}");
    let much_later = later + SignedDuration::from_secs(40);
    let expired = cluster.leases(&query, much_later).await.unwrap().expired;
    cluster.delete_lease(&expired[0]).await.unwrap();
    assert_eq!(cluster.leases(&query, later).await.unwrap(), Leases::default());

    cluster.hold_lease(&own, now).await.unwrap();
    cluster.release_lease(&own).await.unwrap();
    cluster.release_lease(&own).await.unwrap();
    assert_eq!(cluster.live_leases(&query, now).await.unwrap(), 0);
}

/// A Lease of a removed holder is taken over, whatever its clock and claimed duration were. A live holder
/// keeps it.
async fn a_lease_of_one_that_is_gone_is_taken_over(server: &ApiServer, cluster: &Cluster) {
    let now = Timestamp::now();
    let years = SignedDuration::from_hours(10 * 365 * 24);
    for (name, renewed, seconds) in
        [("ahead", now + years, i32::MAX), ("behind", now - years, 1), ("odd", now, 1)]
    {
        server
            .apply(&json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": name, "namespace": "kube-system"},
                "spec": {"holderIdentity": "gone", "leaseDurationSeconds": seconds, "renewTime": format!("{renewed:.6}")},
            }))
            .unwrap();
        let candidate = |holder: &str| OwnLease {
            namespace: "kube-system".to_owned(),
            name: name.to_owned(),
            holder: holder.to_owned(),
            labels: [].into(),
            duration: Duration::from_secs(2),
        };
        let mut one = Election::new(cluster.clone(), candidate("one"));
        // First observation: the time since the last renewal is unknown.
        let first = one.campaign().await.unwrap();
        assert_eq!(first, Standing::Following { leader: "gone".to_owned() }, "{name}");
        let deadline = std::time::Instant::now() + Duration::from_secs(120);
        while !matches!(one.campaign().await.unwrap(), Standing::Leading { .. }) {
            assert!(std::time::Instant::now() < deadline, "{name}: the lease of one that is gone stands");
        }
        // Of two concurrent candidates, one wins and the other one observes it.
        let mut two = Election::new(cluster.clone(), candidate("two"));
        for _ in 0..5 {
            let (renewed, looked) = (one.campaign().await.unwrap(), two.campaign().await.unwrap());
            assert!(matches!(renewed, Standing::Leading { .. }), "{name}");
            assert_eq!(looked, Standing::Following { leader: "one".to_owned() }, "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let cluster = cluster_at(&format!("https://{}", listener.local_addr().unwrap())).await;
    let cluster = cluster.deadline(Duration::from_millis(200));
    let error = cluster.version().await.unwrap_err();
    assert!(error.to_string().starts_with("ask the API server for its version: no answer"), "{error}");
    assert!(!error.is_answer());
}

/// Servers before Kubernetes 1.28 cannot select pods by their host network.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_server_tells_which_pods_share_the_network_of_their_node() {
    let pod = |name: &str, node: &str, spec: serde_json::Value| {
        let mut pod = json!({"metadata": {"name": name, "namespace": "kube-system"}, "spec": spec});
        pod["spec"]["nodeName"] = node.into();
        pod
    };
    let mut going = pod("going", "n3", json!({"hostNetwork": true}));
    going["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
    let pods = [
        pod("proxy-b", "n1", json!({"hostNetwork": true})),
        pod("proxy-a", "n1", json!({"hostNetwork": true})),
        pod("dns", "n1", json!({})),
        pod("dns-b", "n2", json!({"hostNetwork": false})),
        going,
    ];
    let pods = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}).to_string();
    let refusal = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "BadRequest", "code": 400,
        "message": "field label not supported: spec.hostNetwork",
    })
    .to_string();
    let origin = serve_http(move |request| {
        let line = request.line();
        let is_known = line.contains("status.phase") && !line.contains("hostNetwork");
        if is_known { (200, pods.clone()) } else { (400, refusal.clone()) }
    });
    let cluster = cluster_at(&origin.unwrap()).await;
    let found = cluster.host_pods(&["kube-system"]).await.unwrap();
    let place = PodPlace { namespace: "kube-system".to_owned(), name: "proxy-a".to_owned() };
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [("n1".to_owned(), place)]);
}

async fn cluster_at(url: &str) -> Cluster {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: \"{url}\", insecure-skip-tls-verify: true}}}}]\n\
         users: [{{name: u, user: {{token: t}}}}]\n"
    );
    std::fs::write(&path, text).unwrap();
    Cluster::from_kubeconfig(&path).await.unwrap()
}
