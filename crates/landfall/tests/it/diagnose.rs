use crate::command::Bench;

/// What `kubeadm join` prints when the name of the API endpoint does not resolve.
const DEAD_DNS: &str = "\
[preflight] Running pre-flight checks
error: error execution phase preflight: couldn't validate the identity of the API Server: failed to request the \
cluster-info ConfigMap: Get \"https://api.c1.example:6443/api/v1/namespaces/kube-public/configmaps/cluster-info?timeout=10s\": \
dial tcp: lookup api.c1.example on 10.0.0.2:53: no such host
To see the stack trace of this error execute with --v=5 or higher
";

#[test]
fn the_cause_is_named_with_the_line_that_proves_it() {
    let bench = Bench::new();
    bench.file("join.log", DEAD_DNS);
    let run = bench.run(&["diagnose", "--output", "json", "join.log"]);
    assert_eq!(run.code, 2, "{run:?}");
    let report = run.report();
    assert_eq!(report["format"], 1);
    assert_eq!(report["verdict"]["state"], "failed");
    assert_eq!(report["verdict"]["cause"], "dns-resolution-failure");
    assert_eq!(report["verdict"]["phase"], "join");
    let evidence = &report["findings"][0]["evidence"][0];
    assert_eq!((evidence["source"].as_str(), evidence["line"].as_u64()), (Some("join.log"), Some(2)));
    assert!(evidence["text"].as_str().unwrap().contains("lookup api.c1.example on 10.0.0.2:53"));
    assert_eq!(report["findings"][0]["root"], true);
    assert_eq!(report["sources"][0]["lines"], 3);
}

#[test]
fn text_and_json_tell_the_same_and_text_fits_a_screen() {
    let bench = Bench::new();
    bench.file("join.log", DEAD_DNS);
    let run = bench.run(&["diagnose", "join.log"]);
    assert_eq!(run.code, 2);
    insta::assert_snapshot!(run.stdout);
    assert!(run.stdout.lines().count() <= 40);
}

#[test]
fn standard_input_and_a_folder_give_the_same_verdict() {
    let bench = Bench::new();
    bench.file("logs/deep/join.log", DEAD_DNS);
    for run in [
        bench.run_with_input(&["diagnose", "--output", "json", "-"], DEAD_DNS.as_bytes()),
        bench.run(&["diagnose", "--output", "json", "logs"]),
    ] {
        assert_eq!(run.report()["verdict"]["cause"], "dns-resolution-failure", "{run:?}");
    }
}

#[test]
fn a_mounted_disk_is_a_machine() {
    let bench = Bench::new();
    bench.file("disk/var/log/cloud-init-output.log", DEAD_DNS);
    bench.file("disk/etc/hostname", "n1\n");
    let run = bench.run(&["diagnose", "--root", "disk", "--output", "json"]);
    assert_eq!(run.code, 2, "{run:?}");
    let report = run.report();
    assert_eq!(report["verdict"]["cause"], "dns-resolution-failure", "{run:?}");
    let source = report["findings"][0]["evidence"][0]["source"].as_str().unwrap();
    assert!(
        source.starts_with("machine:log-bundle-") && source.ends_with("/cloud-init-output.log"),
        "{source}"
    );
    bench.run(&["diagnose", "--root", "nowhere"]).assert_refused(1, "open the root folder `nowhere`");
}

#[test]
fn a_report_quotes_no_secret() {
    let bench = Bench::new();
    let command = "kubeadm join api.c1.example:6443 --token abcdef.0123456789abcdef";
    bench.file("join.log", format!("+ {command} && {DEAD_DNS}"));
    for output in ["text", "json", "markdown", "html"] {
        let run = bench.run(&["diagnose", "--output", output, "join.log"]);
        assert_eq!(run.code, 2, "{run:?}");
        assert!(!run.stdout.contains("0123456789abcdef"), "{run:?}");
    }
    let line = format!("{command} failed: dial tcp: lookup api.c1.example on 10.0.0.2:53: no such host\n");
    let run = bench.run_with_input(&["diagnose", "--output", "json", "-"], line.as_bytes());
    let text = run.report()["findings"][0]["evidence"][0]["text"].as_str().unwrap().to_owned();
    assert!(text.contains("--token abcdef.***<") && text.contains("no such host"), "{text}");
}

#[test]
fn trouble_that_a_success_has_cleared_is_not_a_finding() {
    let bench = Bench::new();
    let log = format!("{DEAD_DNS}[preflight] Running pre-flight checks\nThis node has joined the cluster:\n");
    bench.file("join.log", log);
    let run = bench.run(&["diagnose", "--output", "json", "join.log"]);
    assert_eq!(run.report()["verdict"]["state"], "succeeded", "{run:?}");
    assert_eq!(run.code, 0, "{run:?}");
}

#[test]
fn a_success_is_not_a_finding() {
    let bench = Bench::new();
    bench.file("join.log", "[preflight] Running pre-flight checks\n\nThis node has joined the cluster:\n");
    let run = bench.run(&["diagnose", "--output", "json", "join.log"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(run.report()["verdict"]["state"], "succeeded");
}

#[test]
fn the_report_matches_its_committed_schema() {
    let schema: serde_json::Value =
        serde_json::from_str(include_str!("../../../../docs/reference/report.schema.json")).unwrap();
    let bench = Bench::new();
    bench.file("join.log", DEAD_DNS);
    let report = bench.run(&["diagnose", "--output", "json", "join.log"]).report();
    for part in ["format", "verdict", "findings", "timeline", "sources"] {
        assert!(schema["properties"][part].is_object(), "{part} is in the schema");
        assert!(!report[part].is_null(), "{part} is in the report");
    }
    let required = schema["$defs"]["Finding"]["required"].as_array().unwrap();
    for field in required {
        assert!(!report["findings"][0][field.as_str().unwrap()].is_null(), "{field}");
    }
}
