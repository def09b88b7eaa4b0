//! Failures before the bootstrap machine is reached; the rest is tested with a gateway.

use crate::command::Bench;

const KUBECONFIG: &str = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
                          contexts: [{name: c, context: {cluster: c, user: u}}]\n\
                          clusters: [{name: c, cluster: {server: \"https://127.0.0.1:1\", insecure-skip-tls-verify: true}}]\n\
                          users: [{name: u, user: {token: hush-hush}}]\n";

#[test]
fn without_credentials_nothing_is_tried() {
    let run = Bench::new().run(&["gather", "https://127.0.0.1:1"]);
    run.assert_refused(1, "read the kubeconfig");
}

#[test]
fn what_is_no_endpoint() {
    let bench = Bench::new();
    bench.file("kubeconfig", KUBECONFIG);
    for url in ["http://api:6443", "https://api/version", "https://me:pass@api"] {
        bench.run(&["gather", "--kubeconfig", "kubeconfig", url]).assert_refused(1, "invalid API endpoint");
    }
}

#[test]
fn nobody_listens() {
    let bench = Bench::new();
    bench.file("kubeconfig", KUBECONFIG);
    // The endpoint comes from the kubeconfig, as in a plugin of kubectl.
    let run = bench.run(&["gather", "--kubeconfig", "kubeconfig", "--wait", "0"]);
    run.assert_refused(69, "connect to 127.0.0.1:1");
    assert!(!run.stderr.contains("hush"), "{run:?}");
    let run = bench.run(&[
        "connect",
        "--kubeconfig",
        "kubeconfig",
        "--wait",
        "0",
        "https://127.0.0.1:1",
        "10.0.0.5:22",
    ]);
    run.assert_refused(69, "connect to 127.0.0.1:1");
}

#[test]
fn what_is_no_target() {
    for target in ["10.0.0.5", ":22", "10.0.0.5:ssh"] {
        Bench::new().run(&["connect", "https://api:6443", target]).assert_refused(64, "must be HOST:PORT");
    }
}
