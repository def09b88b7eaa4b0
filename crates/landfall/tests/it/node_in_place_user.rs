//! Mistakes of a user who has read the guide but not the code: each error contains a hint.

use std::io::{BufRead as _, BufReader};

use landfall_testkit::{FileServer, Serve, free_port};
use serde_json::{Value, json};

use crate::command::Bench;
use crate::node_in_place::archive;

const LOOK: [&str; 7] = [
    "node",
    "in-place",
    "--root=root",
    "--node-name=n1",
    "--no-cluster",
    "--secret-file=secret.json",
    "--preflight-only",
];

/// Creates the root of a machine and a Secret that is complete, as far as possible without a server.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.file("root/etc/redhat-release", "Red Hat Enterprise Linux CoreOS release 4.14\n");
    bench.file("secret.json", "{}");
    bench
}

/// Returns the result of one check of the preflight with this Secret.
#[track_caller]
fn checked(bench: &Bench, secret: &Value, name: &str) -> (String, String) {
    bench.file("secret.json", secret.to_string());
    let run = bench.run(&[&LOOK[..], &["--output=json"]].concat());
    assert_eq!(run.code, 1, "{run:?}");
    let report = run.report();
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name);
    let check = check.unwrap_or_else(|| panic!("{name}: {report:#}"));
    (check["outcome"].as_str().unwrap().to_owned(), check["says"].as_str().unwrap().to_owned())
}

#[test]
fn a_wrong_place_is_named() {
    let bench = bench();
    let mut elsewhere = LOOK;
    elsewhere[2] = "--root=nowhere";
    bench.run(&elsewhere).assert_refused(64, "there is no folder `nowhere`");
    bench.run(&["node", "status", "--root=nowhere"]).assert_refused(64, "there is no folder `nowhere`");
    assert!(!bench.path().join("nowhere").exists(), "and none is made");
    let mut without = LOOK;
    without[5] = "--secret-file=nothing.json";
    let run = bench.run(&without);
    run.assert_refused(1, "read `nothing.json`");
    assert!(run.stderr.contains("hint: ") && run.stderr.contains("`bootstrap`"), "{run:?}");
    // An empty mount is not a machine.
    std::fs::create_dir(bench.path().join("empty")).unwrap();
    elsewhere[2] = "--root=empty";
    let run = bench.run(&elsewhere);
    run.assert_refused(1, "cannot tell what kind of machine this is");
    assert!(run.stderr.contains("--root") && run.stderr.contains("--kind"), "{run:?}");
}

#[test]
fn a_wrong_secret_is_named_before_anything_is_asked() {
    let bench = bench();
    let server = FileServer::start().unwrap();
    let whole =
        json!({"ignition_url": server.url("/ignition"), "ignition_token": "Bearer t", "ca_cert": "x"});
    let pem = "-----BEGIN CERTIFICATE-----\nbm90IG9uZQ==\n-----END CERTIFICATE-----\n";
    let with = |name: &str, value: Value| {
        let mut secret = whole.clone();
        secret["ca_cert"] = json!(server.authority());
        secret[name] = value;
        secret
    };
    for (secret, says) in [
        (json!({}), "lacks `ignition_url`, `ignition_token`, `ca_cert`"),
        (json!("text"), "not a JSON object"),
        (
            json!({"apiVersion": "v1", "kind": "Secret", "data": {}}),
            "pass only the decoded value of its key `bootstrap`",
        ),
        (whole.clone(), "`ca_cert` of the Secret contains no"),
        (with("ignition_url", json!(["https://x"])), "`ignition_url` of the Secret is not text"),
        (with("progress_url", json!("https://x")), "lacks `bootstrap_secret`"),
        (with("hub_token", json!("t")), "lacks `hub_url`"),
        (with("ignition_token", json!("Bearer a\r\nHost: b")), "cannot be sent in a header"),
    ] {
        let (outcome, said) = checked(&bench, &secret, "secret");
        assert_eq!(outcome, "failed", "{said}");
        assert!(said.contains(says), "{said}");
    }
    let (outcome, said) = checked(&bench, &with("ca_cert", json!(pem)), "source");
    assert_eq!(
        (outcome.as_str(), said.as_str()),
        ("failed", "`ca_cert` of the Secret contains no usable certificate",)
    );
    assert_eq!(server.asked(), [""; 0]);
    bench.file("secret.json", "{\n  \"ignition_token\": s3cret\n}");
    let run = bench.run(&LOOK);
    assert!(run.stdout.contains("the Secret is not JSON: line 2, column 21"), "{run:?}");
    assert!(!run.stdout.contains("s3cret") && !run.stderr.contains("s3cret"), "{run:?}");
}

/// A pull secret also names registries that this machine never pulls from, but a mirror was configured because it is
/// needed.
#[test]
fn a_silent_registry_stops_only_what_comes_from_it() {
    let bench = bench();
    let server = FileServer::start().unwrap();
    let script = ("bootstrap/bootstrap_base_openshift_4.sh", "true\n");
    let value = "password".to_owned();
    let payload = Serve::Guarded { header: "x-one-time-password", value, bytes: archive(&[script]) };
    server.serve("/boot?workerid=w&clusterid=c", payload);
    server.file("/v2/", "{}");
    let url = server.url("");
    let host = url.trim_start_matches("https://").trim_end_matches('/');
    // An address without a listener.
    let silent = format!("127.0.0.1:{}", free_port().unwrap());
    bench.file("root/etc/redhat-release", "Red Hat Enterprise Linux release 8.6 (Ootpa)\n");
    bench.file(&format!("root/etc/containers/certs.d/{host}/ca.crt"), server.authority());
    let auth = json!({"auths": {host: {"auth": "dTpw"}, silent.as_str(): {"auth": "dTpw"}}});
    bench.file("root/var/lib/kubelet/config.json", auth.to_string());
    let secret = json!({"bootstrap_url": server.url("/boot"), "bootstrap_secret": "password", "workerid": "w",
        "clusterid": "c", "region": "r", "ca_cert": server.authority()});
    bench.file("secret.json", secret.to_string());
    let registries = || -> Vec<(String, String)> {
        let report = bench.run(&[&LOOK[..], &["--output=json"]].concat()).report();
        let text = |check: &Value, name: &str| check[name].as_str().unwrap().to_owned();
        let checks = report["checks"].as_array().unwrap().iter();
        let checks = checks.filter(|check| check["name"] == "registry");
        checks.map(|check| (text(check, "outcome"), text(check, "says"))).collect()
    };
    let found = registries();
    let of = |host: &str| found.iter().find(|(_, says)| says.starts_with(host)).unwrap().0.as_str();
    assert_eq!((of(host), of(&silent)), ("passed", "warned"), "{found:?}");
    assert_eq!(found.len(), 2, "{found:?}");

    let mirror = |location: &str| {
        let text = format!(
            "[[registry]]\nlocation = \"quay.io\"\nblocked = true\n[[registry.mirror]]\nlocation = \"{location}/ocp\"\n"
        );
        bench.file("root/etc/containers/registries.conf", text);
    };
    mirror(&silent);
    let found = registries();
    let stops = |found: &[(String, String)]| found.iter().any(|(outcome, _)| outcome == "failed-for-now");
    assert!(stops(&found), "{found:?}");
    assert!(found[0].1.contains(&silent) && found[0].1.contains("is needed"), "{found:?}");
    mirror(host);
    let found = registries();
    assert!(!stops(&found), "{found:?}");
}

/// Behind a link the old keys would survive the bootstrap.
#[test]
fn state_that_cannot_be_set_aside_is_told_while_the_machine_is_up() {
    let bench = bench();
    assert_eq!(checked(&bench, &json!({}), "state").0, "passed", "where there is none");
    std::fs::create_dir_all(bench.path().join("root/var/lib/kubelet")).unwrap();
    assert_eq!(checked(&bench, &json!({}), "state").0, "passed");
    std::fs::remove_dir(bench.path().join("root/var/lib/kubelet")).unwrap();
    std::os::unix::fs::symlink("/data/kubelet", bench.path().join("root/var/lib/kubelet")).unwrap();
    let (outcome, said) = checked(&bench, &json!({}), "state");
    assert_eq!(outcome, "failed-for-now");
    assert!(said.contains("`/var/lib/kubelet` is a link to `/data/kubelet`"), "{said}");
}

#[test]
fn a_controller_that_would_not_start_is_not_rendered() {
    let bench = Bench::new();
    let render = ["render", "controller", "--image=x", "-o", "out", "--"];
    for (flag, says) in [
        ("--max-unavailable=many", "`many` is neither a number of nodes nor a share"),
        ("--window=22:00-06:00 Europe/Berlin", "give its offset from UTC instead, such as `+01:00`"),
        ("--window=at night", "must be like `Mon-Fri 22:00-06:00 +01:00`"),
        ("--max-unavailible=3", "unexpected argument"),
        ("--namespace=other", "cannot be used multiple times"),
    ] {
        bench.run(&[&render[..], &[flag]].concat()).assert_refused(64, says);
        assert!(!bench.path().join("out").exists(), "{flag}");
    }
    let run =
        bench.run(&[&render[..], &["--window=Mon-Fri 22:00-06:00 +01:00", "--max-unavailable=3"]].concat());
    assert_eq!(run.code, 0, "{run:?}");
}

/// The state of the machine is unknown: nothing starts, and the kubelet waits and reports the reason.
#[test]
fn a_damaged_ledger_is_answered_with_what_to_do() {
    let bench = bench();
    let run = [&LOOK[..6], &["--free-space=1"]].concat();
    assert_eq!(bench.run(&run).code, 1, "the Secret is empty: it fails, and is written down");
    let text = bench.run(&["node", "status", "--root=root"]).stdout;
    for line in ["claim                 rolled-back", "apply-machine-config  pending"] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    let runs = bench.path().join("root/var/lib/landfall/node-in-place");
    let attempt =
        std::fs::read_dir(&runs).unwrap().flatten().find(|entry| entry.path().is_dir()).unwrap().path();
    for name in ["ledger-0.jsonl", "ledger-1.jsonl"] {
        std::fs::write(attempt.join(name), "{\"format\":1").unwrap();
    }
    for command in [&run[..], &["node", "status", "--root=root"]] {
        let run = bench.run(command);
        run.assert_refused(1, "no complete record is left");
        assert!(
            run.stderr.contains("hint: ") && run.stderr.contains("journalctl -u landfall-in-place"),
            "{run:?}"
        );
    }
    let mut gate = bench.command(&["node", "in-place", "--gate", "--root=root"]).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(gate.stderr.take().unwrap()).read_line(&mut said).unwrap();
    gate.kill().unwrap();
    gate.wait().unwrap();
    assert!(said.starts_with("The kubelet must wait: ") && said.contains("no complete record"), "{said}");
}
