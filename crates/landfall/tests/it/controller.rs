//! `landfall controller`: errors before it starts to work.

use std::net::TcpListener;

use crate::command::Bench;

#[test]
fn help_names_every_flag_with_its_default() {
    let run = Bench::new().run(&["controller", "--help"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    for part in [
        "--max-unavailable <NUMBER>",
        "--window <WINDOW>",
        "--secret-template <NAME>",
        "--approve-certificates",
        "--return-timeout <TIME>",
        "[default: 3h]",
        "kubectl get nodebootstraps",
    ] {
        assert!(run.stdout.contains(part), "{part}: {}", run.stdout);
    }
}

/// One line names the problem and the flag, before any request is sent to a cluster.
#[test]
fn wrong_settings_are_told_in_one_line_each() {
    let bench = Bench::new();
    for (argument, said) in [
        ("--max-unavailable=0", "--max-unavailable"),
        ("--max-unavailable=120%", "--max-unavailable"),
        ("--window=Mon 10:00", "invalid window"),
        ("--window=Mon 22:00-06:00 Europe/Berlin", "give its offset from UTC instead"),
        ("--drain-timeout=5", "a number and a unit"),
        ("--max-failed=-1", "--max-failed"),
        ("--listen=localhost", "--listen"),
        ("--frobnicate", "--frobnicate"),
        ("--bootstrap-user=someone", "--approve-certificates"),
        ("--claim-timeout=0", "`--claim-timeout` must be longer than nothing"),
        ("--return-timeout=0s", "`--return-timeout` must be longer than nothing"),
        ("--drain-timeout=0", "`--drain-timeout` must be longer than nothing"),
        ("--namespace=Not_A_Name", "invalid namespace `Not_A_Name`"),
        ("--secret-template=", "invalid Secret name ``"),
        ("--image=", "`--image` is empty"),
    ] {
        let run = bench.run(&["controller", argument]);
        assert_eq!((run.code, run.stdout.as_str()), (64, ""), "{argument}: {run:?}");
        let errors: Vec<&str> = run.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{argument}: {run:?}");
        assert!(run.stderr.contains(said) && !run.stderr.contains("panicked"), "{argument}: {run:?}");
    }
}

#[test]
fn without_a_cluster_or_a_port_it_says_so_and_ends() {
    let bench = Bench::new();
    let run = bench.run(&["controller"]);
    run.assert_refused(69, "");
    let run = bench.run(&["controller", "--kubeconfig=missing"]);
    run.assert_refused(69, "missing");
    bench.file("nonsense", "{");
    bench.run(&["controller", "--kubeconfig=nonsense"]).assert_refused(69, "");

    let config = r#"{"apiVersion":"v1","kind":"Config","current-context":"c",
        "clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],
        "users":[{"name":"u","user":{"token":"t"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}]}"#;
    bench.file("kubeconfig", config);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("--listen={}", taken.local_addr().unwrap());
    bench.run(&["controller", "--kubeconfig=kubeconfig", &listen]).assert_refused(1, "listen on 127.0.0.1:");
}
