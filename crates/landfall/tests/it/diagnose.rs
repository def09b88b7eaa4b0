use crate::command::Bench;

/// Output of `kubeadm join` when the name of the API endpoint does not resolve.
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
    let evidence = &report["findings"][0]["evidence"][0];
    assert_eq!(evidence["source"], "/var/log/cloud-init-output.log", "{evidence}");
    assert_eq!(evidence["line"], 2, "{evidence}");
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

#[test]
fn unknown_is_an_answer_with_an_exit_code_of_its_own() {
    let bench = Bench::new();
    let failed = "[init] Using Kubernetes version: v1.33.1\nerror execution phase addon/coredns: nobody has seen this\n";
    bench.file("failed.log", failed);
    let run = bench.run(&["diagnose", "failed.log"]);
    assert_eq!(run.code, 2, "something failed, though nobody knows why: {run:?}");
    assert!(run.stdout.contains("Seen last") && run.stdout.contains("Next"), "{run:?}");
    bench.file("boot.log", "[    0.000000] Linux version 6.1.0-18-amd64\n");
    let run = bench.run(&["diagnose", "boot.log"]);
    assert_eq!(run.code, 0, "nothing is wrong: {run:?}");
    assert!(run.stdout.starts_with("UNKNOWN: "), "{run:?}");
}

/// The fifth limitation of `openshift-install analyze`: text only, and always exit code 0.
#[test]
fn a_bundle_with_a_hung_stage_has_a_verdict_for_programs() {
    let bench = Bench::new();
    let records = r#"[{"phase":"service start","timestamp":"2026-08-20T10:00:00Z"},
        {"phase":"stage start","stage":"wait-for-etcd","timestamp":"2026-08-20T10:10:00Z"}]"#;
    bench.file("log-bundle/bootstrap/services/bootkube.json", records);
    bench.file(
        "log-bundle/bootstrap/journals/kubelet.log",
        "2026-08-20T11:00:00Z bootstrap kubelet[1]: quiet\n",
    );
    let run = bench.run(&["diagnose", "--output", "json", "log-bundle"]);
    assert_eq!(run.code, 2, "{run:?}");
    let report = run.report();
    assert_eq!(report["verdict"]["state"], "hung", "{run:?}");
    assert!(report["verdict"]["title"].as_str().unwrap().contains("wait-for-etcd"), "{run:?}");
    assert!(report["timeline"][0]["started"].is_string(), "{run:?}");
}

#[test]
fn the_reasoning_is_shown_when_asked_for() {
    let bench = Bench::new();
    bench.file("join.log", DEAD_DNS);
    let run = bench.run(&["diagnose", "--explain", "join.log"]);
    for part in ["How the verdict was chosen", "rule `", "confidence: 1 − ", "Stages, with their last event"]
    {
        assert!(run.stdout.contains(part), "{part} is missing: {run:?}");
    }
    let json = bench.run(&["diagnose", "--explain", "--output", "json", "join.log"]).report();
    assert!(json["reasoning"]["findings"][0]["lines"][0]["rule"].is_string());
    let json = bench.run(&["diagnose", "--output", "json", "join.log"]).report();
    assert!(json["reasoning"].is_null());
}

#[test]
fn a_log_monitor_of_node_problem_detector_can_be_given_as_it_is() {
    let bench = Bench::new();
    bench.file(
        "kernel-monitor.json",
        r#"{"plugin": "kmsg", "pluginConfig": {"source": "kernel"}, "logPath": "/dev/kmsg", "lookback": "5m", "bufferSize": 10,
            "source": "kernel-monitor", "metricsReporting": true,
            "conditions": [{"type": "KernelDeadlock", "reason": "KernelHasNoDeadlock", "message": "kernel has no deadlock"}],
            "rules": [
              {"type": "temporary", "reason": "IOError", "pattern": "Buffer I/O error .*"},
              {"type": "permanent", "condition": "KernelDeadlock", "reason": "DockerHung",
               "pattern": "task docker:\\w+ blocked for more than \\w+ seconds\\."},
              {"type": "permanent", "condition": "FrozenShop", "reason": "ShopFrozen", "pattern": "(shop is frozen|shop is on fire)"}]}"#,
    );
    bench.file("dmesg.txt", "[   12.0] shop is on fire\n");
    let run = bench.run(&["diagnose", "--rules", "kernel-monitor.json", "--output", "json", "dmesg.txt"]);
    assert_eq!(run.report()["verdict"]["cause"], "shop-frozen", "{run:?}");
    assert_eq!(run.code, 2);
    let run = bench.run(&["diagnose", "--output", "json", "dmesg.txt"]);
    assert_eq!(run.report()["verdict"]["cause"], serde_json::Value::Null, "{run:?}");
    bench.file("bad.json", "{\"rules\": 1}");
    bench
        .run(&["diagnose", "--rules", "bad.json", "dmesg.txt"])
        .assert_refused(1, "`bad.json` is not a rule file");
    bench
        .run(&["diagnose", "--rules", "none.toml", "dmesg.txt"])
        .assert_refused(1, "read the rules in `none.toml`");
}

#[test]
fn a_cause_is_explained_and_all_are_listed() {
    let bench = Bench::new();
    let run = bench.run(&["explain", "swap-enabled"]);
    assert_eq!(run.code, 0);
    assert!(run.stdout.contains("## Fix") && run.stdout.contains("## How we know"), "{run:?}");
    let run = bench.run(&["explain"]);
    assert!(run.stdout.lines().count() > 80 && run.stdout.contains("dns-resolution-failure  "), "{run:?}");
    let run = bench.run(&["explain", "--output", "json", "swap-enabled"]);
    assert_eq!(run.report()["cause"], "swap-enabled");
    let run = bench.run(&["explain", "swap-on"]);
    run.assert_refused(1, "there is no cause `swap-on`; there is `swap-enabled`");
}

#[test]
fn manual_pages_have_every_section() {
    let bench = Bench::new();
    let run = bench.run(&["man"]);
    for section in [
        ".SH NAME",
        ".SH SYNOPSIS",
        ".SH DESCRIPTION",
        ".SH OPTIONS",
        ".SH \"EXIT STATUS\"",
        ".SH ENVIRONMENT",
        ".SH FILES",
        ".SH \"SEE ALSO\"",
    ] {
        assert!(run.stdout.contains(section), "{section} is missing");
    }
    bench.run(&["man", "--directory", "man"]);
    let page = std::fs::read_to_string(bench.path().join("man/landfall-diagnose.1")).unwrap();
    assert!(page.contains("landfall\\-explain") || page.contains("landfall-explain"), "{page}");
}

/// A failure whose reason no rule recognizes is still a failure.
#[test]
fn a_last_word_that_no_rule_knows_is_wrong() {
    let bench = Bench::new();
    for line in [
        "time=\"2026-01-02T03:04:05Z\" level=fatal msg=\"the frobnicator is out of quince\"",
        "F0102 03:04:05.678901    1234 server.go:1] the frobnicator is out of quince",
        "panic: the frobnicator is out of quince",
    ] {
        bench.file("some.log", format!("{line}\n"));
        let run = bench.run(&["diagnose", "some.log"]);
        assert_eq!(run.code, 2, "{run:?}");
        assert!(run.stdout.contains("UNKNOWN") && run.stdout.contains("out of quince"), "{run:?}");
    }
}

/// Lines that healthy machines print too are shown, but are not a failure.
#[test]
fn a_faint_lead_is_not_wrong() {
    let bench = Bench::new();
    bench.file(
        "etcd.log",
        "{\"level\":\"warn\",\"msg\":\"apply request took too long\",\"took\":\"120ms\",\"expected-duration\":\"100ms\"}\n\
         {\"level\":\"info\",\"msg\":\"ready to serve client requests\"}\n",
    );
    let run = bench.run(&["diagnose", "etcd.log"]);
    assert_eq!(run.code, 0, "{run:?}");
}
