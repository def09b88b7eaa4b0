//! Verdicts that depend on a line's context: list, boot, section, pod, version and machine.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::sync::LazyLock;

use landfall_diagnose::{Engine, EntryOrigin, Fact, Observation, Origin, RuleSet, Stream};
use landfall_model::Phase;
use landfall_model::report::{Finding, PhaseOutcome, Report, State, Trust};

fn engine() -> &'static Engine {
    static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::new(RuleSet::embedded().unwrap()).unwrap());
    &ENGINE
}

fn diagnose_with(engine: &Engine, files: &[(&str, &str)]) -> Report {
    let mut case = engine.open();
    for (name, text) in files {
        let stream = Stream::sniff(name, text.as_bytes());
        let source = case.add_source(name, stream.kind.name());
        case.add(source, engine.scan(&stream, 1, text.as_bytes()));
    }
    case.finish()
}

fn diagnose(files: &[(&str, &str)]) -> Report {
    diagnose_with(engine(), files)
}

fn cause(report: &Report) -> Option<&str> {
    report.verdict.cause.as_ref().map(landfall_model::Cause::as_str)
}

fn finding<'r>(report: &'r Report, cause: &str) -> &'r Finding {
    report.findings.iter().find(|finding| finding.cause.as_str() == cause).unwrap()
}

fn outcome(report: &Report, phase: Phase) -> Option<PhaseOutcome> {
    report.timeline.iter().find(|entry| entry.phase == phase).map(|entry| entry.outcome)
}

#[test]
fn every_error_of_a_preflight_list_is_a_finding_of_its_own() {
    let report = diagnose(&[(
        "kubeadm.txt",
        "[init] Using Kubernetes version: v1.33.1\n\
         [preflight] Running pre-flight checks\n\
         error execution phase preflight: [preflight] Some fatal errors occurred:\n\
         \t[ERROR NumCPU]: the number of available CPUs 1 is less than the required 2\n\
         \t[ERROR Swap]: running with swap on is not supported. Please disable swap\n\
         \t[ERROR FileExisting-conntrack]: conntrack not found in system path\n\
         [preflight] If you know what you are doing, you can make a check non-fatal\n",
    )]);
    for name in ["insufficient-cpu", "swap-enabled", "missing-host-binary"] {
        let finding = finding(&report, name);
        assert!(finding.root && !finding.fix.is_empty() && finding.evidence.len() == 1, "{finding:?}");
        assert!(finding.confidence.value() >= 0.85, "one error makes another no less true: {finding:?}");
    }
    assert!(report.verdict.confidence.value() >= 0.85);
}

#[test]
fn kubeadm_checks_the_same_when_it_joins_and_when_it_makes_a_control_plane() {
    let failure = "[preflight] Running pre-flight checks\n\
         error execution phase preflight: [preflight] Some fatal errors occurred:\n\
         \t[ERROR Swap]: running with swap on is not supported. Please disable swap\n";
    let joins = diagnose(&[("kubeadm.txt", failure)]);
    assert_eq!(joins.verdict.phase, Some(Phase::Join));
    assert_eq!(outcome(&joins, Phase::Join), Some(PhaseOutcome::Failed));
    assert_eq!(outcome(&joins, Phase::ControlPlane), None);
    let makes = diagnose(&[("kubeadm.txt", &format!("[init] Using Kubernetes version: v1.33.1\n{failure}"))]);
    assert_eq!(makes.verdict.phase, Some(Phase::ControlPlane));
    assert_eq!(outcome(&makes, Phase::ControlPlane), Some(PhaseOutcome::Failed));
    assert_eq!(outcome(&makes, Phase::Join), None);
}

#[test]
fn cloud_init_is_not_ok_when_its_scripts_failed() {
    let finished = "Cloud-init v. 24.1 finished at Fri, 02 Jan 2026 03:02:00 +0000. Datasource DataSourceNoCloud.  Up 49.90 seconds\n";
    let failed = "2026-01-02 03:01:30,000 - cc_scripts_user.py[WARNING]: Failed to run module scripts-user (scripts in /var/lib/cloud/instance/scripts)\n";
    let report = diagnose(&[("cloud-init.log", &format!("{failed}{finished}"))]);
    assert_eq!(outcome(&report, Phase::CloudInit), Some(PhaseOutcome::Failed));
    let report = diagnose(&[("cloud-init.log", finished)]);
    assert_eq!(outcome(&report, Phase::CloudInit), Some(PhaseOutcome::Ok));
    assert_eq!(
        report.timeline[0].ended.unwrap().to_string(),
        "2026-01-02T03:02:00Z",
        "it says when it ended"
    );
}

#[test]
fn what_an_application_says_is_no_failure_of_the_bootstrap() {
    let line =
        "2026-01-02T03:04:05Z stderr F dial tcp: lookup db.shop.example on 10.0.0.2:53: no such host\n";
    let report = diagnose(&[("/var/log/pods/shop_web-1_8a7b/web/0.log", line)]);
    assert_eq!((cause(&report), report.verdict.state), (None, State::Unknown));
    assert!(report.findings[0].confidence.value() < 0.5, "a lead at most");
    let report = diagnose(&[("/var/log/pods/kube-system_cilium-1_8a7b/cilium-agent/0.log", line)]);
    assert_eq!(cause(&report), Some("dns-resolution-failure"));
    let journal =
        "Jan 02 03:04:05 n1 shopd[12]: dial tcp: lookup db.shop.example on 10.0.0.2:53: no such host\n";
    assert!(diagnose(&[("journal.log", journal)]).verdict.confidence.value() < 0.7);
}

const SWAP: &str = "2026-01-02T03:04:05Z n1 kubelet[7]: failed to run Kubelet: running with swap on is not supported, please disable swap!\n";
const BOOT: &str = "2026-01-02T04:00:00Z n1 kernel: Linux version 6.1.0-18-amd64\n";

#[test]
fn trouble_of_an_earlier_boot_that_a_later_one_got_past_is_history() {
    let emergency = "2026-01-02T03:00:09Z n1 ignition[7]: Ignition failed: failed to create filesystems: disk not found\n";
    let first = format!(
        "2026-01-02T03:00:00Z n1 kernel: Linux version 6.1.0-18-amd64\n{emergency}{}",
        "2026-01-02T03:01:00Z n1 x[1]: y\n".repeat(30)
    );
    let good = "2026-01-02T04:00:20Z n1 ignition[7]: Ignition finished successfully\n2026-01-02T04:00:30Z n1 kubelet[9]: \"Started kubelet\"\n";
    let report = diagnose(&[("journal.log", &first)]);
    assert_eq!(outcome(&report, Phase::Ignition), Some(PhaseOutcome::Failed));
    let alone = cause(&report).map(str::to_owned);
    let report = diagnose(&[("journal.log", &format!("{first}{BOOT}{good}"))]);
    assert_eq!(report.verdict.state, State::Running, "{:?}", report.verdict);
    if let Some(alone) = alone {
        let reason = finding(&report, &alone).ruled_out.clone().unwrap();
        assert!(reason.contains("boot 1") && reason.contains("boot 2"), "{reason}");
    }
    let of_boot = |boot| {
        let entries = report.timeline.iter().filter(move |entry| entry.boot == Some(boot));
        entries.map(|entry| (entry.phase, entry.outcome)).collect::<Vec<_>>()
    };
    assert!(of_boot(1).contains(&(Phase::Ignition, PhaseOutcome::Failed)), "{:?}", report.timeline);
    assert!(of_boot(2).contains(&(Phase::Ignition, PhaseOutcome::Ok)), "{:?}", report.timeline);
}

#[test]
fn trouble_that_no_later_boot_got_past_stands() {
    let report = diagnose(&[("journal.log", &format!("{}{BOOT}", SWAP.repeat(30)))]);
    assert_eq!(cause(&report), Some("swap-enabled"));
    let mark = "-- Boot 6f1c9a1f2d3e4b5c8a7b6c5d4e3f2a1b --\n";
    let started = "2026-01-02T04:00:30Z n1 kubelet[9]: \"Successfully registered node\" node=\"n1\"\n";
    let report = diagnose(&[("journal.log", &format!("{}{mark}{BOOT}{started}", SWAP.repeat(30)))]);
    assert_eq!((cause(&report), report.verdict.state), (None, State::Succeeded));
    assert_eq!(report.timeline.iter().filter_map(|entry| entry.boot).max(), Some(2), "one mark, one boot");
}

/// Returns an engine with a rule that accepts only the kubelet.
fn with_sourced_rule() -> Engine {
    let rule = "[[rule]]\nid = \"mine\"\ncause = \"cgroup-unavailable\"\nmatch.any = [\"no slice for me\"]\n\
        strength = \"strong\"\nsources = [\"kubelet\"]\nexamples.yes = [\"no slice for me\"]\n";
    Engine::new(RuleSet::embedded_with([("extra.toml", rule)]).unwrap()).unwrap()
}

#[test]
fn a_heading_tells_whose_lines_follow() {
    let engine = with_sourced_rule();
    let text = "==> coredns [3f2a] <==\nx\n==> kubelet <==\nno slice for me\n";
    let report = diagnose_with(&engine, &[("logs.txt", text)]);
    assert_eq!(cause(&report), Some("cgroup-unavailable"));
    assert_eq!(report.findings[0].evidence[0].source, "logs.txt:kubelet");
    let text = "==> kubelet <==\nx\n==> shop [3f2a] <==\nno slice for me\n";
    assert_eq!(cause(&diagnose_with(&engine, &[("logs.txt", text)])), None);
}

#[test]
fn a_section_goes_on_in_the_next_chunk() {
    let engine = with_sourced_rule();
    let stream = Stream::sniff("logs.txt", b"==> kubelet <==\nx\n");
    let mut case = engine.open();
    let source = case.add_source("logs.txt", stream.kind.name());
    case.add(source, engine.scan(&stream, 1, b"==> shop [3f2a] <==\nx\n"));
    case.add(source, engine.scan(&stream, 3, b"no slice for me\n==> kubelet <==\n"));
    case.add(source, engine.scan(&stream, 5, b"no slice for me\n"));
    let report = case.finish();
    let lines: Vec<u64> = report.findings[0].evidence.iter().map(|evidence| evidence.line).collect();
    // The line of another program does not count: only the reasoning lists it.
    assert_eq!(lines, [5]);
    let weights: Vec<bool> =
        report.reasoning.unwrap().findings[0].lines.iter().map(|line| line.weight > 0.0).collect();
    assert_eq!(weights, [true, false]);
}

#[test]
fn a_version_in_the_logs_decides_whether_a_rule_applies() {
    let extra = "[[rule]]\nid = \"swap-tolerated\"\ncause = \"cgroup-unavailable\"\nmatch.any = [\"swap is not tolerated\"]\n\
        strength = \"strong\"\nsources = [\"kubelet\"]\nversions = \"kubelet < 1.28\"\nexamples.yes = [\"swap is not tolerated\"]\n";
    let engine = Engine::new(RuleSet::embedded_with([("extra.toml", extra)]).unwrap()).unwrap();
    let log = |version: &str| {
        format!(
            "I0102 03:04:05.0 1 server.go:467] \"Kubelet version\" kubeletVersion=\"{version}\"\nswap is not tolerated\n"
        )
    };
    let old = diagnose_with(&engine, &[("kubelet.log", &log("v1.27.4"))]);
    assert_eq!(cause(&old), Some("cgroup-unavailable"));
    let new = diagnose_with(&engine, &[("kubelet.log", &log("v1.28.0"))]);
    assert_eq!(cause(&new), None);
    let reason = new.findings[0].ruled_out.as_deref().unwrap();
    assert!(reason.contains("kubelet < 1.28") && reason.contains("1.28.0"), "{reason}");
    let untold = diagnose_with(&engine, &[("kubelet.log", "swap is not tolerated\n")]);
    assert_eq!(cause(&untold), Some("cgroup-unavailable"), "no version seen, no exclusion");
}

#[test]
fn a_message_of_several_lines_is_one_piece_of_evidence() {
    let report = diagnose(&[(
        "cloud-init.log",
        "2026-01-02 03:01:30,000 - util.py[WARNING]: failed\n\
         Traceback (most recent call last):\n\
         \x20 File \"/usr/lib/python3/x.py\", line 7, in run\n\
         \x20   open(path)\n\
         OSError: [Errno 28] No space left on device: '/var/x'\n\
         next\n",
    )]);
    assert_eq!(cause(&report), Some("disk-full"));
    let evidence = &report.findings[0].evidence[0];
    assert_eq!(evidence.before.len(), 3, "{evidence:?}");
    assert!(evidence.before[0].starts_with("Traceback") && evidence.after.is_empty());
    assert_eq!(evidence.time.unwrap().to_string(), "2026-01-02T03:01:30Z", "the time of the line above");
}

#[test]
fn what_other_machines_see_of_a_broken_one_follows_from_it() {
    let broken = "2026-01-02T03:04:05Z n1 kubelet[7]: write /var/lib/x: no space left on device\n";
    let seen = "2026-01-02T03:05:05Z n2 kubelet[7]: \"Unable to register node with API server\" err=\"Post \\\"https://10.0.0.5:6443/api/v1/nodes\\\": dial tcp 10.0.0.5:6443: connect: connection refused\"\n";
    let report = diagnose(&[
        ("b/control-plane/10.0.0.5/kubelet.log", broken),
        ("b/control-plane/10.0.0.6/kubelet.log", seen),
    ]);
    assert_eq!(cause(&report), Some("disk-full"));
    assert_eq!(report.findings[0].nodes, ["10.0.0.5"]);
    assert!(!finding(&report, "apiserver-unreachable").root);
}

#[test]
fn troubles_of_different_machines_are_no_rivals() {
    let swap = "E0102 03:04:05.000000       1 run.go:74] \"command failed\" err=\"failed to run Kubelet: running with swap on is not supported\"\n";
    let disk = "E0102 03:04:05.000000       1 a.go:1] write /var/lib/x: no space left on device\n";
    let report = diagnose(&[("b/node/n1/kubelet.log", swap), ("b/node/n2/kubelet.log", disk)]);
    assert!(report.verdict.confidence.value() >= 0.85, "{:?}", report.verdict);
    assert!(report.findings.iter().take(2).all(|finding| finding.root && finding.nodes.len() == 1));
    let one = diagnose(&[("b/node/n1/kubelet.log", &format!("{swap}{disk}"))]);
    assert!(one.verdict.confidence.value() < 0.8);
}

#[test]
fn a_machine_without_kubernetes_is_neither_running_nor_done() {
    for log in [
        BOOT.to_owned(),
        format!(
            "{BOOT}[    9.0] systemd[1]: Startup finished in 3.2s (kernel) + 12.1s (userspace) = 15.3s.\n"
        ),
        "time=\"2026-01-02T03:04:05Z\" level=info msg=\"containerd successfully booted in 0.05s\"\n"
            .to_owned(),
    ] {
        let report = diagnose(&[("journal.log", &log)]);
        assert_eq!((cause(&report), report.verdict.state), (None, State::Unknown), "{log}");
        assert!(report.verdict.title.contains("nothing of Kubernetes"), "{}", report.verdict.title);
    }
}

#[test]
fn what_is_unknown_comes_with_the_last_thing_seen_and_what_would_help() {
    let report = diagnose(&[(
        "kubeadm.txt",
        "[init] Using Kubernetes version: v1.33.1\nerror execution phase addon/coredns: nobody has seen this\n",
    )]);
    assert_eq!(report.verdict.state, State::Unknown);
    assert_eq!(report.last_seen.unwrap().line, 2);
    assert!(
        report.next_steps.iter().any(|step| step.contains("journalctl -b -u kubelet")),
        "{:?}",
        report.next_steps
    );
    let known = diagnose(&[("kubelet.log", SWAP)]);
    assert!(known.next_steps.is_empty() && known.last_seen.is_none());
}

#[test]
fn a_cut_line_keeps_the_part_that_was_recognised() {
    let line = format!("{}running with swap on is not supported{}\n", "x ".repeat(4000), " y".repeat(4000));
    let report = diagnose(&[("kubelet.log", &line)]);
    let evidence = &report.findings[0].evidence[0];
    assert!(evidence.text.contains("running with swap on is not supported"), "{}", evidence.text);
    assert!(evidence.text.len() < 1200 && evidence.text.starts_with('…') && evidence.text.ends_with('…'));
}

#[test]
fn the_reasoning_tells_every_step() {
    let mut log = String::from(SWAP);
    let _ = write!(
        log,
        "2026-01-02T03:04:06Z n1 kubelet[7]: write /var/lib/x: no space left on device\n2026-01-02T03:05:00Z n1 kubelet[7]: \"Started kubelet\"\n"
    );
    let report = diagnose(&[("kubelet.log", &log)]);
    let reasoning = report.reasoning.as_ref().unwrap();
    assert!(reasoning.verdict.iter().any(|step| step.contains("is the verdict")), "{reasoning:?}");
    let swap = reasoning.findings.iter().find(|reason| reason.cause.as_str() == "swap-enabled").unwrap();
    assert!(swap.lines[0].because[0].contains("cleared by `kubelet-started`"), "{swap:?}");
    assert!(swap.arithmetic.starts_with("0:"));
    assert_eq!(reasoning.stages[0].place, "kubelet.log:3");
}

/// A program's final message that no rule matches is a lead, not a verdict.
#[test]
fn a_last_word_that_no_rule_knows_is_a_lead() {
    for line in [
        "time=\"2026-01-02T03:04:05Z\" level=fatal msg=\"the frobnicator is out of quince\"",
        "FATA[0001] the frobnicator is out of quince",
        "F0102 03:04:05.678901    1234 server.go:1] the frobnicator is out of quince",
        "Jan 02 03:04:05 n1 kubelet[7]: F0102 03:04:05.678901    1234 server.go:1] the frobnicator is out of quince",
        "panic: the frobnicator is out of quince",
        "2026-01-02 03:04:05,678 - subp.py[WARNING]: command failed with exit code 3: the frobnicator is out of quince",
    ] {
        let report = diagnose(&[("some.log", &format!("{line}\n"))]);
        assert_eq!((cause(&report), report.verdict.state), (None, State::Unknown), "{line}");
        let finding = finding(&report, "unrecognised-failure");
        assert!(finding.confidence.value() >= 0.4, "{line}: {finding:?}");
        assert!(finding.evidence[0].text.contains("out of quince"), "{finding:?}");
        assert_eq!(report.verdict.title, finding.title);
    }
}

#[test]
fn a_last_word_that_is_explained_or_was_followed_by_success_is_none() {
    let fatal = "time=\"2026-01-02T03:04:05Z\" level=fatal msg=\"the frobnicator is out of quince\"\n";
    let swap = "Jan 02 03:04:06 n1 kubelet[7]: F0102 03:04:06.000001 7 server.go:1] failed to run Kubelet: running with swap on is not supported, please disable swap\n";
    let report = diagnose(&[("some.log", &format!("{fatal}{swap}"))]);
    assert_eq!(cause(&report), Some("swap-enabled"));
    assert!(!finding(&report, "unrecognised-failure").root);
    let joined = "This node has joined the cluster:\n";
    let report = diagnose(&[("some.log", &format!("{fatal}{joined}"))]);
    assert_eq!(report.verdict.state, State::Succeeded);
    assert!(finding(&report, "unrecognised-failure").confidence.value() < 0.1);
}

#[test]
fn colours_hide_nothing_and_are_not_shown() {
    for line in [
        "\x1b[1m\x1b[31mrunning\x1b[0m with swap on is not \x1b[4msupp\x1b[0morted, please disable swap",
        "Jan 02 03:04:05 n1 kubelet[7]: running #033[31mwith swap on#033[0m is not supported, please disable swap",
        "{\"msg\":\"running \\u001b[31mwith swap\\u001b[0m on is not supported, please disable swap\"}",
    ] {
        let report = diagnose(&[("kubelet.log", &format!("fine\n{line}\n"))]);
        assert_eq!(cause(&report), Some("swap-enabled"), "{line:?}");
        let evidence = &report.findings[0].evidence[0];
        assert!(evidence.text.contains("running with swap on is not supported"), "{evidence:?}");
        assert_eq!((evidence.line, report.sources[0].lines), (2, 2));
    }
}

#[test]
fn a_rejected_port_is_named_as_the_line_says() {
    for (line, port) in [
        ("dial tcp 10.0.0.1:6443: connect: no route to host", "6443"),
        (
            "Get \"https://10.0.0.1:10250/healthz\": dial tcp 10.0.0.1:10250: connect: no route to host",
            "10250",
        ),
        ("Get \"https://lb.example/api/v1/nodes\": dial tcp 10.0.0.1:443: connect: no route to host", "443"),
        ("Get \"https://10.0.0.1:9345/cacerts\": dial tcp 10.0.0.1:9345: connect: no route to host", "9345"),
    ] {
        let report = diagnose(&[("kubelet.log", &format!("{line}\n"))]);
        assert_eq!(cause(&report), Some("firewall-blocked"), "{line}");
        assert!(
            report.verdict.title.starts_with(&format!("Connections to port {port} are rejected")),
            "{:?}",
            report.verdict
        );
    }
    let registry = "Get \"https://registry.example:5000/v2/pause/tags/list\": dial tcp 10.0.0.1:5000: connect: no route to host\n";
    assert_eq!(cause(&diagnose(&[("kubelet.log", registry)])), Some("image-registry-unreachable"));
}

/// A line that healthy machines print once is neither a verdict nor a lead that counts as one.
#[test]
fn what_every_start_says_is_no_failure() {
    for text in [
        "time=\"2026-01-02T03:04:05Z\" level=error msg=\"failed to load cni during init, please check CRI plugin status before setting up network for pods\" error=\"cni config load failed: no network config found in /etc/cni/net.d: cni plugin not initialized: failed to load cni config\"\n",
        "{\"level\":\"warn\",\"msg\":\"slow fdatasync\",\"took\":\"1.1s\",\"expected-duration\":\"1s\"}\n{\"level\":\"info\",\"msg\":\"ready to serve client requests\"}\n",
        "{\"level\":\"info\",\"msg\":\"Retrying request\",\"error\":\"dial tcp 169.254.169.254:80: i/o timeout\"}\n",
        "{\"level\":\"warn\",\"msg\":\"apply request took too long\",\"took\":\"120ms\",\"expected-duration\":\"100ms\"}\n",
    ] {
        let report = diagnose(&[("some.log", &format!("an ordinary line\n{text}"))]);
        assert_eq!(cause(&report), None, "{text}");
        assert!(
            report.findings.iter().all(|finding| finding.confidence.value() < 0.4),
            "{:?}",
            report.findings
        );
    }
}

#[test]
fn an_old_containerd_lacks_what_a_new_one_has_switched_off() {
    let unimplemented = "E0102 03:04:05.678901 1 run.go:74] \"command failed\" err=\"failed to run Kubelet: validate service connection: validate CRI v1 runtime API for endpoint \\\"unix:///run/containerd/containerd.sock\\\": rpc error: code = Unimplemented desc = unknown service runtime.v1.RuntimeService\"\n";
    for (version, expected) in [
        ("msg=\"starting containerd\" version=1.5.9\n", "cri-api-version-mismatch"),
        ("containerd containerd.io 1.4.13 abc\n", "cri-api-version-mismatch"),
        ("msg=\"starting containerd\" version=1.7.2\n", "cri-plugin-disabled"),
        ("", "cri-plugin-disabled"),
    ] {
        let report = diagnose(&[("kubelet.log", &format!("{unimplemented}{version}"))]);
        assert_eq!(cause(&report), Some(expected), "{version}");
    }
}

#[test]
fn yaml_errors_belong_to_who_reads_the_file() {
    let provider = "Jan 02 03:04:05 n1 kubelet[7]: failed to run Kubelet: could not init cloud provider \"azure\": yaml: line 3: could not find expected ':'\n";
    assert_eq!(cause(&diagnose(&[("kubelet.log", provider)])), Some("cloud-config-invalid"));
    let somebody =
        "Error: failed to parse config: yaml: line 3: mapping values are not allowed in this context\n";
    let report = diagnose(&[("some.log", somebody)]);
    assert!(
        !matches!(cause(&report), Some("ignition-fetch-failed" | "cloud-init-yaml-invalid")),
        "{report:?}"
    );
}

#[test]
fn ready_node_object_outranks_every_log() {
    let log = "Jan 02 03:04:06 n1 kubelet[7]: E0102 03:04:06.678901       7 run.go:74] \"command failed\" err=\"failed to run Kubelet: running with swap on is not supported, please disable swap or set --fail-swap-on flag to false\"\n\
               Jan 02 03:04:07 n1 kubelet[7]: Node n1 is ready\n";
    let verdict = |ready: Option<bool>| {
        let mut case = engine().open();
        let stream = Stream::sniff("journal.log", log.as_bytes());
        let source = case.add_source("journal.log", stream.kind.name());
        case.add(source, engine().scan(&stream, 1, log.as_bytes()));
        if let Some(ready) = ready {
            let kind = Fact::Node { node: "n1".to_owned(), ready };
            case.observe(&Observation { kind, time: "2026-01-02T03:05:00Z".parse().unwrap() });
        }
        let verdict = case.finish().verdict;
        (verdict.state, verdict.trust)
    };
    assert_eq!(verdict(Some(true)), (State::Succeeded, Trust::Proven));
    assert_eq!(verdict(Some(false)), (State::Failed, Trust::Claimed));
    assert_eq!(verdict(None), (State::Failed, Trust::Claimed), "the text of a fact is not a fact");
}

#[test]
fn failed_probe_names_its_target() {
    let mut case = engine().open();
    let (probe, target) = ("dns".to_owned(), "api.c1.example".to_owned());
    let kind = Fact::Probe { probe, target, error: "no name server gave an address".to_owned() };
    case.observe(&Observation { kind, time: "2026-01-02T03:05:00Z".parse().unwrap() });
    let report = case.finish();
    assert_eq!(cause(&report), Some("dns-resolution-failure"), "{report:#?}");
    assert_eq!(report.verdict.title, "The name `api.c1.example` cannot be resolved");
    assert_eq!(report.findings[0].evidence[0].source, "probe:dns");
}

/// Lines of proven origin with claims such as `logger -t kubelet` in a text log.
#[test]
fn claims_do_not_change_a_proven_failure() {
    let verdict = |proven: &str, claims: &str| {
        let mut case = engine().open();
        let stream = Stream::sniff("journal", b"");
        let source = case.add_source("journal", "journal-text");
        let entries = [EntryOrigin { start: 0, origin: Origin::READER, stream: None }];
        case.add(source, engine().scan_journal(&stream, 1, proven.as_bytes(), &entries));
        let stream = Stream::sniff("/var/log/syslog", claims.as_bytes());
        let source = case.add_source("/var/log/syslog", stream.kind.name());
        case.add(source, engine().scan(&stream, 1, claims.as_bytes()));
        let report = case.finish();
        (report.verdict.state, cause(&report).map(str::to_owned), report.verdict.trust)
    };
    let claims = [
        "Successfully registered node n1",
        "Node became ready",
        "failed to run Kubelet: running with swap on is not supported, please disable swap",
        "no space left on device",
        "x509: certificate has expired or is not yet valid",
        "dial tcp: lookup other.example on 10.0.0.2:53: no such host",
    ];
    for proven in [
        "2026-01-02T03:04:05Z n1 kubelet[7]: E0102 03:04:05.000001    7 run.go:74] \"command failed\" err=\"failed to run Kubelet: running with swap on is not supported, please disable swap\"\n",
        "2026-01-02T03:04:05Z n1 kubeadm[7]: error execution phase preflight: couldn't validate the identity of the API Server: Get \"https://api.c1.example:6443/\": dial tcp: lookup api.c1.example on 10.0.0.2:53: no such host\n",
        "2026-01-02T03:04:05Z n1 kubelet[7]: E0102 03:04:05.000001    7 pod_workers.go:1] \"Error syncing pod, skipping\" err=\"failed to pull image \\\"registry.example/pause:3.9\\\": dial tcp 10.9.9.9:443: i/o timeout\" pod=\"kube-system/etcd-n1\"\n",
    ] {
        let expected = verdict(proven, "Jan 02 03:05:00 n1 kubelet[9]: hello\n");
        assert_eq!((expected.0, expected.2), (State::Failed, Trust::Proven), "{proven}");
        for claim in claims {
            for time in ["03:03:00", "03:05:00"] {
                let lines = format!("Jan 02 {time} n1 kubelet[9]: {claim}\n").repeat(8);
                assert_eq!(verdict(proven, &lines), expected, "{claim} at {time}: {proven}");
            }
        }
    }
}
