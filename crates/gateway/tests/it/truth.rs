//! Forwarding preserves identity: the API server sees the same user through the gateway as directly.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, SystemTime};

use hyper::{Method, Version};
use landfall_net::CertificateFiles;
use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{ApiServer, eventually, have};
use serde_json::{Value, json};

use crate::bed::{Bed, LIMIT};
use crate::client::{Client, Got, Identity};

const VERSIONS: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];
const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEW: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;

struct Case {
    what: &'static str,
    identity: Identity,
    headers: Vec<(&'static str, String)>,
}

/// Returns the client's user according to the API server, or the status code of a failure.
fn who(client: &Client, bed: &Bed) -> (u16, Value) {
    let got = client.send(&bed.runtime, Method::POST, WHO_AM_I, REVIEW);
    (got.status.as_u16(), got.json()["status"]["userInfo"].clone())
}

fn token(api: &ApiServer, bed: &Bed) -> String {
    api.kubectl(&["create", "serviceaccount", "robot", "-n", "default"]).unwrap();
    let token = api.kubectl(&["create", "token", "robot", "-n", "default"]).unwrap();
    assert!(bed.address.port() != api.port());
    token.trim().to_owned()
}

/// Permits every client, including anonymous ones, to query its own identity.
fn let_anybody_ask(api: &ApiServer) {
    api.apply(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "anybody-asks"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:basic-user"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:unauthenticated"}],
    }))
    .unwrap();
    api.apply(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "impersonate-jane"},
        "rules": [{"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["jane"]}],
    }))
    .unwrap();
    api.apply(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "deputies"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "impersonate-jane"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "deputies"}],
    }))
    .unwrap();
}

fn clients(bed: &Bed, direct: SocketAddr, case: &Case, version: Version) -> [Client; 2] {
    [bed.address, direct].map(|address| {
        let mut client = bed.client_of(address, case.identity.clone()).version(version);
        for (name, value) in &case.headers {
            client = client.header(name, value);
        }
        client
    })
}

#[test]
fn everybody_is_who_they_are() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let api = ApiServer::start().unwrap();
    let bed = Bed::before(&api, |_| {});
    let_anybody_ask(&api);
    let token = token(&api, &bed);
    let bearer = |token: &str| ("Authorization", format!("Bearer {token}"));
    let strangers = Authority::new("somebody else's", 1).unwrap();
    let stranger = |name: &str| {
        let leaf = Leaf::new(name, Purpose::Call).organization("system:masters");
        Identity::Certificate(bed.files().issue(&strangers, "stranger", &leaf))
    };
    let own = |name: &str, file: &str, group: &str| {
        let leaf = Leaf::new(name, Purpose::Call).organization(group);
        Identity::Certificate(bed.files().issue(&bed.authority, file, &leaf))
    };
    let serving_only = bed.files().issue(&bed.authority, "serving-only", &Leaf::new("admin", Purpose::Serve));
    let nameless = bed.files().issue(
        &bed.authority,
        "nameless",
        &Leaf::new("", Purpose::Call).organization("system:masters"),
    );
    let brief = Leaf::new("jane", Purpose::Call).organization("system:masters").days(0);
    let expired = bed.files().issue(&bed.authority, "expired", &brief);
    let issued = SystemTime::now();
    let case = |what, identity, headers| Case { what, identity, headers };
    let cases = [
        case("an expired certificate", Identity::Certificate(expired.clone()), vec![]),
        case("an expired certificate and a token", Identity::Certificate(expired), vec![bearer(&token)]),
        case("a certificate", own("jane", "jane", "developers"), vec![]),
        case("a certificate with odd names", own("jane, doe", "odd", "a, b=c;d"), vec![]),
        case("a certificate and a token", own("jane", "jane2", "developers"), vec![bearer(&token)]),
        case("a stranger's certificate and a token", stranger("admin"), vec![bearer(&token)]),
        case("a stranger's certificate", stranger("admin"), vec![]),
        case("a stranger's certificate and a wrong token", stranger("admin"), vec![bearer("wrong")]),
        case("a server's certificate", Identity::Certificate(serving_only), vec![]),
        case("a certificate without a name", Identity::Certificate(nameless.clone()), vec![]),
        case(
            "a certificate without a name and a token",
            Identity::Certificate(nameless.clone()),
            vec![bearer(&token)],
        ),
        case("nothing", Identity::None, vec![]),
        case("a token", Identity::None, vec![bearer(&token)]),
        case("a wrong token", Identity::None, vec![bearer("wrong")]),
        case("another scheme", Identity::None, vec![("Authorization", "Basic YTpi".to_owned())]),
        case(
            "a deputy for whom it may",
            own("deputy", "deputy", "deputies"),
            vec![("Impersonate-User", "jane".to_owned())],
        ),
        case(
            "a deputy for whom it may not",
            own("deputy", "deputy", "deputies"),
            vec![("Impersonate-User", "admin".to_owned())],
        ),
        case(
            "a deputy for a group",
            own("deputy", "deputy", "deputies"),
            vec![("Impersonate-User", "jane".to_owned()), ("Impersonate-Group", "system:masters".to_owned())],
        ),
        case(
            "an administrator for jane",
            own("admin", "admin", "system:masters"),
            vec![
                ("Impersonate-User", "jane".to_owned()),
                ("Impersonate-Group", "a".to_owned()),
                ("Impersonate-Group", "b".to_owned()),
                ("Impersonate-Extra-scope%2fx", "y".to_owned()),
            ],
        ),
    ];
    let direct = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), api.port());
    // Certificate times have a resolution of whole seconds.
    let is_over = || issued.elapsed().is_ok_and(|age| age > Duration::from_secs(2)).then_some(());
    eventually("the certificate to expire", LIMIT, is_over).unwrap();
    for case in &cases {
        for version in VERSIONS {
            let [through, direct] = clients(&bed, direct, case, version).map(|client| who(&client, &bed));
            assert_eq!(through, direct, "{} by {version:?}", case.what);
        }
    }
    let known =
        cases.iter().filter(|case| who(&clients(&bed, direct, case, VERSIONS[0])[0], &bed).0 == 201).count();
    assert_eq!(known, 11, "most of the cases are somebody");
}

#[test]
fn nobody_becomes_somebody_else() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let api = ApiServer::start().unwrap();
    let bed = Bed::before(&api, |_| {});
    let_anybody_ask(&api);
    let token = token(&api, &bed);
    let jane = Leaf::new("jane", Purpose::Call).organization("developers");
    let jane = Identity::Certificate(bed.files().issue(&bed.authority, "jane", &jane));
    let injections: [&[(&str, &str)]; 8] = [
        &[("X-Remote-User", "admin"), ("X-Remote-Group", "system:masters")],
        &[("x-rEmOtE-gRoUp", "system:masters")],
        &[("X-Remote-User", "admin"), ("Connection", "X-Remote-User")],
        &[(
            "Connection",
            "close, x-remote-user, X-Remote-Group, x-remote-extra-authentication.kubernetes.io%2fcredential-id",
        )],
        &[("X-Remote-Extra-Scopes", "all"), ("X-Remote-Uid", "0")],
        &[("X_Remote_User", "admin"), ("X_Remote_Group", "system:masters")],
        &[("X-Remote-Group", "a"), ("X-Remote-Group", "system:masters")],
        &[("Keep-Alive", "x"), ("Proxy-Connection", "X-Remote-User"), ("TE", "trailers, deflate")],
    ];
    for version in VERSIONS {
        for identity in [Identity::None, jane.clone()] {
            for bearer in [None, Some(&token)] {
                let plain = |client: Client| match bearer {
                    Some(token) => client.bearer(token),
                    None => client,
                };
                let expected = who(&plain(bed.client(identity.clone()).version(version)), &bed);
                for injection in injections {
                    // Hop-by-hop headers do not exist in HTTP/2.
                    let hop = |name: &str| matches!(name, "Connection" | "Keep-Alive" | "Proxy-Connection");
                    let mut client = plain(bed.client(identity.clone()).version(version));
                    for (name, value) in
                        injection.iter().filter(|(name, _)| version != Version::HTTP_2 || !hop(name))
                    {
                        client = client.header(name, value);
                    }
                    if version == Version::HTTP_2 && injection.iter().any(|(name, _)| *name == "TE") {
                        continue;
                    }
                    assert_eq!(who(&client, &bed), expected, "{injection:?} {identity:?} {version:?}");
                }
            }
        }
    }
    // The second request on a kept connection must not inherit another identity.
    let request = |extra: &str| {
        format!(
            "POST {WHO_AM_I} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{extra}\r\n{REVIEW}",
            REVIEW.len()
        )
    };
    let both = request("")
        + &request("X-Remote-User: admin\r\nX-Remote-Group: system:masters\r\nConnection: close\r\n");
    let got = bed.client(jane.clone()).raw(&bed.runtime, both.as_bytes());
    assert_eq!(got.matches("\"username\":\"jane\"").count(), 2, "{got}");
    assert!(!got.contains("masters"), "{got}");
    // Removing an impersonation header would execute the request as the impersonator.
    for name in ["Impersonate-User", "Authorization"] {
        let got = bed.client(jane.clone()).header("Connection", name).header("Impersonate-User", "joe");
        assert_eq!(who(&got, &bed).0, 400, "{name}");
    }
}

#[test]
fn the_cluster_decides_who_may_gather() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let api = ApiServer::start().unwrap();
    let bed = Bed::before(&api, |config| config.access.users = vec!["joe".to_owned()]);
    let token = token(&api, &bed);
    api.apply(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "gatherer"},
        "rules": [{"nonResourceURLs": ["/bootstrap"], "verbs": ["get"]}],
    }))
    .unwrap();
    let bind = |name: &str, subject: Value| {
        api.apply(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gatherer"},
            "subjects": [subject],
        }))
        .unwrap();
    };
    let group = |name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name});
    bind("support-gathers", group("support"));
    let code = |client: Client| client.get(&bed.runtime, "/bootstrap/report").status.as_u16();
    assert_eq!(code(bed.client(bed.user("admin", "system:masters"))), 200);
    assert_eq!(code(bed.client(bed.user("jane", "support"))), 200);
    assert_eq!(
        code(bed.client(bed.user("joe", "developers"))),
        403,
        "the list is for when nobody can be asked"
    );
    assert_eq!(code(bed.client(Identity::None).bearer(&token)), 403);
    assert_eq!(code(bed.client(Identity::None).bearer("nobody's")), 401);
    bind("robot-gathers", json!({"kind": "ServiceAccount", "name": "robot", "namespace": "default"}));
    assert_eq!(code(bed.client(Identity::None).bearer(&token)), 200);
    bind("all-gather", group("system:authenticated"));
    assert_eq!(code(bed.client(bed.user("joe", "developers"))), 200);
    assert_eq!(code(bed.client(Identity::None)), 401);
}

#[test]
fn two_lengths_are_not_two_requests() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let api = ApiServer::start().unwrap();
    let bed = Bed::before(&api, |_| {});
    let_anybody_ask(&api);
    let smuggled = "GET /version HTTP/1.1\r\nHost: x\r\nX-Remote-User: admin\r\n\r\n";
    for head in [
        format!("Content-Length: {}\r\nTransfer-Encoding: chunked\r\n", smuggled.len() + 5),
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n".to_owned(),
        "Content-Length: 5\r\nContent-Length: 6\r\n".to_owned(),
        "Transfer-Encoding: chunked, identity\r\n".to_owned(),
        "Transfer-Encoding : chunked\r\n".to_owned(),
        "X: a\r\n b: folded\r\nContent-Length: 0\r\n".to_owned(),
        "X: a\rX-Remote-User: admin\r\nContent-Length: 0\r\n".to_owned(),
    ] {
        let request = format!("POST /version HTTP/1.1\r\nHost: x\r\n{head}\r\n0\r\n\r\n{smuggled}");
        let got = bed.client(Identity::None).raw(&bed.runtime, request.as_bytes());
        assert_eq!(got.matches("HTTP/1.1 ").count(), 1, "{head:?} gave more than one answer: {got}");
        assert!(!got.contains("gitVersion"), "{head:?}: {got}");
    }
}

#[test]
fn front_proxies_do_not_speak_through_the_gateway() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let api = ApiServer::start().unwrap();
    let bed = Bed::before(&api, |_| {});
    let_anybody_ask(&api);
    let home = api.directory();
    let front =
        CertificateFiles { certificate: home.join("front-proxy.crt"), key: home.join("front-proxy.key") };
    let direct = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), api.port());
    for version in VERSIONS {
        let client = |address| {
            bed.client_of(address, Identity::Certificate(front.clone()))
                .version(version)
                .header("X-Remote-User", "admin")
                .header("X-Remote-Group", "system:masters")
        };
        assert_eq!(who(&client(direct), &bed).1["username"], "admin", "the test's front proxy is one");
        assert_eq!(who(&client(bed.address), &bed).0, 403);
        let got: Got = client(bed.address).get(&bed.runtime, "/bootstrap");
        assert_eq!(got.status, 401, "nor is it anybody by itself");
    }
}

#[test]
fn names_that_headers_would_change_are_refused() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let api = ApiServer::start().unwrap();
    let bed = Bed::before(&api, |_| {});
    let_anybody_ask(&api);
    for (name, group) in [
        ("admin ", "x"),
        (" admin", "x"),
        ("x", "system:masters "),
        ("x\r\nX-Remote-Group: y", "x"),
        ("x\0", "x"),
    ] {
        for version in VERSIONS {
            let client = bed.client(bed.user(name, group)).version(version);
            assert_eq!(who(&client, &bed).0, 401, "{name:?} {group:?}");
        }
    }
}
