//! Tests of shared tokens: permitted operations, and operations denied to a holder of a stolen token.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use landfall_hub::Holder;
use landfall_model::report::Report;
use landfall_pki::SigningKey;
use landfall_testkit::eventually;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::access::{token, with_tokens};
use crate::bed::{Answer, SentReport, TestHub, bundle, envelope, no_dns, running, signed};

fn key() -> SigningKey {
    SigningKey::generate().unwrap().0
}

fn shared(prefix: &str) -> String {
    token(Holder::Nodes(prefix.to_owned()))
}

fn send(hub: &TestHub, token: &str, envelope: &SentReport) -> Answer {
    let body = serde_json::to_vec(envelope).unwrap();
    let headers = [("content-type", "application/json"), ("authorization", token)];
    hub.request("POST", "/api/v1/reports", &headers, &body)
}

fn report(hub: &TestHub, token: &str, node: &str, sequence: u64, report: Report, key: &SigningKey) -> Answer {
    send(hub, token, &signed(envelope(node, sequence, report), key))
}

/// Returns the response to an operator.
fn seen(hub: &TestHub, path: &str) -> Value {
    let operator = token(Holder::Operator("ann".to_owned()));
    hub.request("GET", path, &[("authorization", &operator)], b"").json()
}

#[track_caller]
fn refused(answer: &Answer, status: u16, why: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
    assert!(detail.contains(why), "{detail}");
}

#[test]
fn machines_nobody_knew_beforehand_make_themselves_known() {
    let hub = with_tokens();
    let fleet = shared("worker-");
    let keys: Vec<SigningKey> = (0..3).map(|_| key()).collect();
    for (number, key) in keys.iter().enumerate() {
        let node = format!("worker-{number}");
        assert_eq!(report(&hub, &fleet, &node, 1, running(), key).status, 200);
        assert_eq!(report(&hub, &fleet, &node, 2, no_dns(), key).status, 200);
    }
    let board = seen(&hub, "/api/v1/fleet");
    assert_eq!((&board["total"], &board["groups"][0]["nodes"]), (&json!(3), &json!(3)), "{board}");
    assert_eq!(seen(&hub, "/api/v1/nodes/worker-0")["signed"], true);
    // The pinned key still counts with a token of the node's own.
    let own = token(Holder::Node("worker-0".to_owned()));
    assert_eq!(report(&hub, &own, "worker-0", 3, running(), &keys[0]).status, 200);
    refused(&report(&hub, &own, "worker-0", 4, no_dns(), &keys[1]), 403, "not signed by the same key");
    // A token without prefix is valid for every name except default host names. Many machines have those, and a
    // report that can never be accepted must not block an agent.
    assert_eq!(report(&hub, &shared(""), "control-plane-0", 1, running(), &key()).status, 200);
    for none in ["localhost", "unknown", "prod.localhost", "localhost.localdomain"] {
        refused(&report(&hub, &shared(""), none, 1, running(), &key()), 422, "no name yet");
    }
}

#[test]
fn the_token_speaks_for_no_node_that_is_known_otherwise() {
    let hub = with_tokens();
    let fleet = shared("n");
    let (own, thief) = (key(), key());
    let first = signed(envelope("n1", 1, running()), &own);
    assert_eq!(send(&hub, &fleet, &first).status, 200);
    // Under another key, and unsigned.
    refused(&report(&hub, &fleet, "n1", 2, no_dns(), &thief), 403, "not signed by the same key");
    refused(&send(&hub, &fleet, &envelope("n1", 2, no_dns())), 403, "not signed by the same key");
    // An unknown node, without a signature and with an invalid one.
    refused(&send(&hub, &fleet, &envelope("n2", 1, no_dns())), 403, "must be signed");
    let mut changed = signed(envelope("n2", 1, no_dns()), &thief);
    changed.node.hostname = "n3".to_owned();
    refused(&send(&hub, &fleet, &changed), 403, "signature does not match");
    // Repeating an earlier report changes nothing, regardless of its sender.
    assert_eq!(send(&hub, &fleet, &first).json()["outcome"], "duplicate");
    let mut again = first.clone();
    again.id = crate::bed::new_id();
    refused(&send(&hub, &fleet, &again), 403, "signature does not match");
    // A holder of the shared token cannot take over a node that reports unsigned with a token of its own.
    let trusted = token(Holder::Node("n4".to_owned()));
    assert_eq!(send(&hub, &trusted, &envelope("n4", 1, running())).status, 200);
    refused(&report(&hub, &fleet, "n4", 2, no_dns(), &thief), 403, "known without a key");
    assert_eq!(report(&hub, &trusted, "n4", 2, no_dns(), &own).status, 200, "it may begin to sign");
    refused(&report(&hub, &fleet, "n4", 3, running(), &thief), 403, "not signed by the same key");
    assert_eq!(report(&hub, &fleet, "n4", 3, running(), &own).status, 200);
    let board = seen(&hub, "/api/v1/fleet");
    assert_eq!(board["total"], 2, "{board}");
    assert_eq!(seen(&hub, "/api/v1/nodes/n1")["state"], "running");
}

#[test]
fn a_prefix_is_how_names_begin_and_nothing_else() {
    let hub = with_tokens();
    let fleet = shared("prod-a.");
    assert_eq!(report(&hub, &fleet, "prod-a.n1", 1, running(), &key()).status, 200);
    for other in ["prod-a", "prod-axn1", "PROD-A.n1", "n1.prod-a.", "xprod-a.n1", "prod-b.n1"] {
        refused(&report(&hub, &fleet, other, 1, running(), &key()), 422, "begin with `prod-a.`");
    }
    for odd in ["prod-a.../x", "prod-a.\u{0}", "prod-a.\nn1", "prod-a. n1"] {
        assert_eq!(report(&hub, &fleet, odd, 1, running(), &key()).status, 422, "{odd:?}");
    }
    // Each line of a batch is authorized separately.
    let lines: String = ["prod-a.n2", "prod-b.n2"]
        .iter()
        .map(|name| serde_json::to_string(&signed(envelope(name, 1, running()), &key())).unwrap() + "\n")
        .collect();
    let headers = [("content-type", "application/x-ndjson"), ("authorization", fleet.as_str())];
    let results = hub.request("POST", "/api/v1/reports", &headers, lines.as_bytes()).json();
    assert_eq!(results["results"][0]["outcome"], "stored", "{results}");
    assert_eq!(results["results"][1]["problem"]["status"], 422, "{results}");
    assert_eq!(seen(&hub, "/api/v1/fleet")["total"], 2);
}

#[test]
fn bundles_need_the_key_of_the_node() {
    let hub = with_tokens();
    let fleet = shared("");
    let (own, thief) = (key(), key());
    let packed = bundle("n1", &["a line".to_owned()]);
    let digest = hex::encode(Sha256::digest(&packed));
    let proof = |key: &SigningKey, kind: &str, node: &str, digest: &str| {
        BASE64.encode(key.sign(format!("{kind}\n{node}\n{digest}").as_bytes()))
    };
    let good = proof(&own, "landfall-bundle-v1", "n1", &digest);
    let put = |node: &str, proof: Option<&str>| {
        let mut headers = vec![("authorization", fleet.as_str())];
        headers.extend(proof.map(|proof| ("landfall-signature", proof)));
        hub.request("PUT", &format!("/api/v1/nodes/{node}/bundles/{digest}"), &headers, &packed)
    };
    refused(&put("n1", Some(&good)), 403, "after the node's first report");
    assert_eq!(report(&hub, &fleet, "n1", 1, no_dns(), &own).status, 200);
    assert_eq!(report(&hub, &fleet, "n2", 1, no_dns(), &thief).status, 200);
    let other = "0".repeat(64);
    for bad in [
        None,
        Some(String::new()),
        Some("no base64!".to_owned()),
        Some(proof(&thief, "landfall-bundle-v1", "n1", &digest)),
        Some(proof(&own, "landfall-bundle-v1", "n2", &digest)),
        Some(proof(&own, "landfall-bundle-v1", "n1", &other)),
        Some(proof(&own, "landfall-bundle-v2", "n1", &digest)),
    ] {
        refused(&put("n1", bad.as_deref()), 403, "signed with the same key");
    }
    // With its own valid signature, another node sends a foreign bundle.
    refused(
        &put("n2", Some(&proof(&thief, "landfall-bundle-v1", "n2", &digest))),
        422,
        "a bundle of node `n1`",
    );
    let post = hub.request("POST", "/api/v1/nodes/n1/bundles", &[("authorization", &fleet)], &packed);
    refused(&post, 403, "sent by its digest");
    assert!(!hub.keeps(&digest) && hub.unfinished() == 0);
    // A token of the node's own does not replace the key: reports with another key are rejected as well.
    let (path, own_token) =
        (format!("/api/v1/nodes/n1/bundles/{digest}"), token(Holder::Node("n1".to_owned())));
    let stolen = proof(&thief, "landfall-bundle-v1", "n1", &digest);
    let headers = [("authorization", own_token.as_str()), ("landfall-signature", stolen.as_str())];
    refused(&hub.request("PUT", &path, &headers, &packed), 403, "not signed by the same key");
    assert!(!hub.keeps(&digest));
    for _ in 0..2 {
        assert_eq!(put("n1", Some(&good)).json()["digest"], digest.as_str(), "it may be repeated");
    }
    assert!(hub.keeps(&digest));
}

#[test]
fn bundles_sent_by_it_leave_places_to_the_others() {
    const BY_ONE: u32 = 32;
    let hub = with_tokens();
    let (fleet, thief) = (shared(""), key());
    let digest = "0".repeat(64);
    let head = |number: u32| {
        let node = format!("made-up-{number}");
        assert_eq!(report(&hub, &fleet, &node, 1, no_dns(), &thief).status, 200);
        let proof = BASE64.encode(thief.sign(format!("landfall-bundle-v1\n{node}\n{digest}").as_bytes()));
        (format!("/api/v1/nodes/{node}/bundles/{digest}"), proof)
    };
    let _stalled: Vec<TcpStream> = (0..BY_ONE)
        .map(|number| {
            let (path, proof) = head(number);
            let mut stream = TcpStream::connect(hub.address).unwrap();
            let head = format!(
                "PUT {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: {fleet}\r\nlandfall-signature: {proof}\r\n\
                 content-length: 1000\r\n\r\nhalf"
            );
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    let (path, proof) = head(BY_ONE);
    let headers = [("authorization", fleet.as_str()), ("landfall-signature", proof.as_str())];
    eventually("the places of one token to be taken", Duration::from_secs(60), || {
        (hub.request("PUT", &path, &headers, b"whole").status == 503).then_some(())
    })
    .unwrap();
    let own = token(Holder::Node("n1".to_owned()));
    let packed = bundle("n1", &["a line".to_owned()]);
    let answer = hub.request("POST", "/api/v1/nodes/n1/bundles", &[("authorization", &own)], &packed);
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[test]
fn nothing_else_can_be_done_with_it() {
    let hub = with_tokens();
    let fleet = shared("");
    assert_eq!(report(&hub, &fleet, "n1", 1, running(), &key()).status, 200);
    let ask = |method: &str, path: &str, body: &[u8]| {
        hub.request(method, path, &[("authorization", fleet.as_str())], body).status
    };
    for path in ["/api/v1/fleet", "/api/v1/nodes/n1", "/api/v1/search?q=x", "/metrics", "/nodes/n1", "/"] {
        assert_eq!(ask("GET", path, b""), 403, "{path}");
    }
    let progress = json!({"attempt": "a1", "sequence": 1, "time": "2026-01-02T03:04:05Z", "bootId": "b1",
        "state": {"is": "claimed"}});
    for node in ["n1", "n2"] {
        let path = format!("/api/v1/nodes/{node}/progress");
        assert_eq!(ask("POST", &path, progress.to_string().as_bytes()), 403, "{node}");
    }
    assert_eq!(ask("DELETE", "/api/v1/nodes/n1", b""), 403);
    assert_eq!(ask("POST", "/nodes/n1/forget", b""), 403);
    assert_eq!(ask("POST", "/api/v1/tokens", br#"{"kind":"nodes"}"#), 403);
    let form = format!("token={}", fleet.trim_start_matches("Bearer "));
    let kind = [("content-type", "application/x-www-form-urlencoded")];
    assert_eq!(hub.request("POST", "/login", &kind, form.as_bytes()).status, 401);
}

#[test]
fn a_token_that_leaked_does_not_fill_the_store() {
    let hub = with_tokens();
    let (fleet, own) = (shared("n"), key());
    let flood = |token: &str, names: std::ops::Range<u32>, sequence: u64| {
        let lines: String = names
            .map(|name| {
                let envelope = signed(envelope(&format!("n{name}"), sequence, running()), &own);
                serde_json::to_string(&envelope).unwrap() + "\n"
            })
            .collect();
        let headers = [("content-type", "application/x-ndjson"), ("authorization", token)];
        let answer = hub.request("POST", "/api/v1/reports", &headers, lines.as_bytes());
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["results"].as_array().unwrap().clone()
    };
    let begun = std::time::Instant::now();
    let results = flood(&fleet, 0..900, 1);
    // The quota grows by five nodes per second in the meantime.
    let most = 300 + usize::try_from(begun.elapsed().as_secs() + 1).unwrap() * 5;
    let stored = results.iter().filter(|result| result["outcome"] == "stored").count();
    assert!((300..=most).contains(&stored), "{stored} of at most {most}");
    let turned_away = results.iter().find(|result| result["problem"]["status"] == 429).unwrap();
    assert_eq!(turned_away["problem"]["retry"], true, "{turned_away}");
    // Known nodes continue to report, and the quota does not affect tokens of other fleets.
    let known = flood(&fleet, 0..100, 2);
    assert!(known.iter().all(|result| result["outcome"] == "stored"), "{known:?}");
    let other = flood(&shared(""), 10_000..10_010, 1);
    assert!(other.iter().all(|result| result["outcome"] == "stored"), "{other:?}");
}

#[test]
fn operators_make_such_tokens_and_forget_machines_that_were_installed_anew() {
    let hub = with_tokens();
    let operator = token(Holder::Operator("ann".to_owned()));
    let make = |wish: &str| {
        hub.request("POST", "/api/v1/tokens", &[("authorization", operator.as_str())], wish.as_bytes())
    };
    for (wish, status) in [
        (r#"{"kind":"nodes"}"#, 200),
        (r#"{"kind":"nodes","name":"-x"}"#, 400),
        (r#"{"kind":"nodes","name":"a/b"}"#, 400),
        (r#"{"kind":"node"}"#, 400),
        (r#"{"kind":"viewer"}"#, 400),
        (r#"{"kind":"fleet"}"#, 400),
    ] {
        assert_eq!(make(wish).status, status, "{wish}");
    }
    let made = make(r#"{"kind":"nodes","name":"worker-","days":300}"#).json();
    let fleet = format!("Bearer {}", made["token"].as_str().unwrap());
    let (before, after) = (key(), key());
    assert_eq!(report(&hub, &fleet, "worker-1", 1, no_dns(), &before).status, 200);
    refused(&report(&hub, &fleet, "worker-1", 1, running(), &after), 403, "landfall hub forget");
    let forget = |headers: &[(&str, &str)]| {
        let headers = [&[("authorization", operator.as_str())], headers].concat();
        hub.request("POST", "/nodes/worker-1/forget", &headers, b"").status
    };
    // Another site cannot make an operator's browser send this, including older browsers.
    let host = hub.address.to_string();
    for cross in [
        &[("sec-fetch-site", "cross-site")][..],
        &[("sec-fetch-site", "same-site")],
        &[("origin", "https://evil.example")],
        &[("origin", "null")],
        &[("origin", "")],
    ] {
        assert_eq!(forget(cross), 403, "{cross:?}");
    }
    assert_eq!(forget(&[("origin", &format!("http://{host}"))]), 303);
    assert_eq!(forget(&[]), 404, "it is gone");
    assert_eq!(report(&hub, &fleet, "worker-1", 1, running(), &after).status, 200);
}
