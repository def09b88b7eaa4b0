//! The principles of the causal engine, each with a small log.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::LazyLock;

use jiff::SignedDuration;
use landfall_diagnose::{Clock, Engine, RuleSet, Stream};
use landfall_model::report::{PhaseOutcome, Report, State};

fn engine() -> &'static Engine {
    static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::new(RuleSet::embedded().unwrap()).unwrap());
    &ENGINE
}

fn diagnose(files: &[(&str, &str)]) -> Report {
    let engine = engine();
    let mut case = engine.open();
    for (name, text) in files {
        let stream = Stream::sniff(name, text.as_bytes());
        let source = case.add_source(name, stream.kind.name());
        case.add(source, engine.scan(&stream, 1, text.as_bytes()));
    }
    case.finish()
}

fn cause(report: &Report) -> Option<&str> {
    report.verdict.cause.as_ref().map(landfall_model::Cause::as_str)
}

#[test]
fn a_finer_finding_explains_the_general_one() {
    let report = diagnose(&[(
        "kubeadm.txt",
        "[preflight] Running pre-flight checks\n\
         error execution phase preflight: couldn't validate the identity of the API Server: Get \"https://api.c1.example:6443/api/v1/namespaces/kube-public/configmaps/cluster-info\": dial tcp: lookup api.c1.example on 10.0.0.2:53: no such host\n\
         Get \"https://10.0.0.9:6443/api/v1/nodes\": dial tcp 10.0.0.9:6443: connect: connection refused\n",
    )]);
    assert_eq!(cause(&report), Some("dns-resolution-failure"));
    assert!(report.verdict.title.contains("`api.c1.example`"), "{}", report.verdict.title);
    let root = &report.findings[0];
    assert!(root.explains.iter().any(|other| other.as_str() == "apiserver-unreachable"));
    assert_eq!(root.evidence[0].line, 2);
    let explained =
        report.findings.iter().find(|finding| finding.cause.as_str() == "apiserver-unreachable").unwrap();
    assert!(!explained.root);
}

#[test]
fn a_node_that_is_ready_before_its_preparation_failed_is_degraded() {
    let registered = "2026-01-02T03:06:05.000000Z n1 kubelet[7]: I0102 03:06:05.000000       1 kubelet_node_status.go:78] \"Successfully registered node\" node=\"n1\"\n";
    let failed = "2026-01-02 03:06:06,344 - handlers.py[DEBUG]: finish: modules-final/config-final_message: FAIL: running config-final_message with frequency always\n";
    let report = diagnose(&[("journal.log", registered), ("cloud-init.log", failed)]);
    assert_eq!(report.verdict.state, State::Degraded, "{}", report.verdict.title);
    assert!(
        report.verdict.title.starts_with("The bootstrap succeeded, but `cloud-init "),
        "{}",
        report.verdict.title
    );
    let report = diagnose(&[("cloud-init.log", failed)]);
    assert_eq!(report.verdict.state, State::Unknown, "{}", report.verdict.title);
}

#[test]
fn a_later_success_clears_an_earlier_failure() {
    let failing = "E0102 03:04:05.000000       1 kubelet_node_status.go:92] \"Unable to register node with API server\" err=\"Post \\\"https://10.0.0.10:6443/api/v1/nodes\\\": dial tcp 10.0.0.10:6443: connect: connection refused\" node=\"n1\"\n";
    let registered = "I0102 03:06:05.000000       1 kubelet_node_status.go:78] \"Successfully registered node\" node=\"n1\"\n";
    let report = diagnose(&[("kubelet.log", failing)]);
    assert_eq!(cause(&report), Some("apiserver-unreachable"));
    let report = diagnose(&[("kubelet.log", &format!("{failing}{registered}"))]);
    assert_eq!((cause(&report), report.verdict.state), (None, State::Succeeded));
    let report = diagnose(&[("kubelet.log", &format!("{registered}{failing}"))]);
    assert_eq!(report.verdict.state, State::Succeeded);
    assert!(report.findings[0].root, "trouble after success is a lead, not a verdict");
}

#[test]
fn success_in_another_source_clears_by_time() {
    let failing = "2026-01-02T03:04:05Z n1 kubelet[1]: failed to load kubelet config file, path: /var/lib/kubelet/config.yaml, error: open /var/lib/kubelet/config.yaml: no such file or directory\n";
    let done = |time: &str| format!("[{time}] This node has joined the cluster:\n");
    let report =
        diagnose(&[("kubelet.log", failing), ("cloud-init-output.log", &done("2026-01-02 03:05:00"))]);
    assert_eq!(cause(&report), None);
    let report =
        diagnose(&[("kubelet.log", failing), ("cloud-init-output.log", &done("2026-01-02 03:04:00"))]);
    assert_eq!(report.findings.len(), 1, "an earlier success clears nothing");
    assert!(report.findings[0].confidence.value() > 0.0);
}

#[test]
fn a_stage_that_never_ends_is_a_hang_with_its_age() {
    let report = diagnose(&[(
        "cloud-init-output.log",
        "[2026-01-02 03:00:00] Cloud-init v. 24.1 running 'modules:final' at Fri, 02 Jan 2026 03:00:00 +0000. Up 20.1 seconds.\n\
         [2026-01-02 03:00:01] fetching something\n\
         [2026-01-02 03:45:00] still fetching\n",
    )]);
    assert_eq!((cause(&report), report.verdict.state), (Some("stage-hung"), State::Hung));
    assert!(report.verdict.title.contains("45 min"), "{}", report.verdict.title);
    assert_eq!(report.findings[0].evidence[0].line, 1);
}

#[test]
fn a_young_open_stage_is_still_running() {
    let report = diagnose(&[(
        "cloud-init-output.log",
        "[2026-01-02 03:00:00] Cloud-init v. 24.1 running 'modules:final' at Fri, 02 Jan 2026 03:00:00 +0000. Up 20.1 seconds.\n\
         [2026-01-02 03:02:00] fetching something\n",
    )]);
    assert_eq!((cause(&report), report.verdict.state), (None, State::Running));
    assert_eq!(report.timeline[0].outcome, PhaseOutcome::Open);
}

#[test]
fn without_a_clock_nothing_hangs() {
    let report =
        diagnose(&[("x", "Cloud-init v. 24.1 running 'modules:final' at some time\nfetching something\n")]);
    assert_eq!(cause(&report), None);
}

#[test]
fn an_unknown_failure_is_said_to_be_unknown() {
    let report = diagnose(&[(
        "kubeadm.txt",
        "[init] Using Kubernetes version: v1.33.1\nerror execution phase wait-control-plane: something nobody has seen\n",
    )]);
    assert_eq!((cause(&report), report.verdict.state), (None, State::Unknown));
    assert_eq!(report.verdict.confidence, landfall_model::Confidence::NONE);
    assert_eq!(report.timeline[0].outcome, PhaseOutcome::Failed);
}

#[test]
fn two_unrelated_roots_lower_the_confidence_of_each_other() {
    let swap = "failed to run Kubelet: running with swap on is not supported, please disable swap!\n";
    let tool = "	[ERROR FileExisting-conntrack]: conntrack not found in system path\n";
    let alone = diagnose(&[("kubeadm.txt", swap)]);
    let both = diagnose(&[("kubeadm.txt", &format!("{swap}{tool}"))]);
    assert!(alone.verdict.confidence.value() >= 0.9);
    assert!(both.verdict.confidence.value() < 0.8);
    assert!(both.findings.iter().all(|finding| finding.root));
}

#[test]
fn an_empty_case_knows_nothing() {
    let report = engine().open().finish();
    assert_eq!((cause(&report), report.verdict.state), (None, State::Unknown));
    assert!(report.findings.is_empty() && report.timeline.is_empty() && report.sources.is_empty());
}

#[test]
fn an_unreadable_source_is_listed_and_the_rest_is_read() {
    let engine = engine();
    let mut case = engine.open();
    case.fail_source("broken.tar.gz", "unexpected end of file".to_owned());
    let text = b"	[ERROR NumCPU]: the number of available CPUs 1 is less than the required 2\n";
    let source = case.add_source("kubeadm.txt", "kubeadm");
    case.add(source, engine.scan(&Stream::default(), 1, text));
    let report = case.finish();
    assert_eq!(cause(&report), Some("insufficient-cpu"));
    assert_eq!(report.sources[0].error.as_deref(), Some("unexpected end of file"));
    assert_eq!((report.sources[1].lines, report.sources[1].bytes), (1, text.len() as u64));
}

#[test]
fn times_without_a_year_take_it_from_their_neighbours() {
    let report = diagnose(&[(
        "kubelet.log",
        "E0102 03:04:05.000000       1 run.go:74] \"command failed\" err=\"failed to run Kubelet: running with swap on is not supported\"\n\
         2026-01-02T03:04:06Z n1 systemd[1]: kubelet.service: Failed with result 'exit-code'.\n",
    )]);
    assert_eq!(report.findings[0].evidence[0].time.unwrap().to_string(), "2026-01-02T03:04:05Z");
}

// Cases that `openshift-install analyze` misses, one test each.

const JOURNAL: &str = "2026-08-20T11:00:00Z bootstrap kubelet[1]: nothing to say\n";

#[test]
fn a_hung_stage_is_named_with_its_age() {
    let records = r#"[{"phase":"service start","timestamp":"2026-08-20T10:00:00Z"},
        {"phase":"stage start","stage":"wait-for-etcd","timestamp":"2026-08-20T10:10:00Z"}]"#;
    let report = diagnose(&[("bootstrap/services/bootkube.json", records), ("journal.log", JOURNAL)]);
    assert_eq!((cause(&report), report.verdict.state), (Some("stage-hung"), State::Hung));
    assert!(
        report.verdict.title.contains("`bootkube: wait-for-etcd` has been open for 50 min"),
        "{}",
        report.verdict.title
    );
}

#[test]
fn a_failure_that_was_passed_over_is_not_blamed_for_a_later_hang() {
    let records = r#"[{"phase":"service start","timestamp":"2026-08-20T10:00:00Z"},
        {"phase":"stage start","stage":"resolve-api-url","timestamp":"2026-08-20T10:01:00Z"},
        {"phase":"stage end","stage":"resolve-api-url","result":"failure","errorMessage":"gave up","timestamp":"2026-08-20T10:02:00Z"},
        {"phase":"stage start","stage":"cb-bootstrap","timestamp":"2026-08-20T10:03:00Z"}]"#;
    let report = diagnose(&[("bootstrap/services/bootkube.json", records), ("journal.log", JOURNAL)]);
    assert_eq!(cause(&report), Some("stage-hung"));
    assert!(report.verdict.title.contains("cb-bootstrap"), "{}", report.verdict.title);
}

#[test]
fn stage_and_error_are_of_the_same_record_while_a_retry_runs() {
    let records = r#"[{"phase":"service start","timestamp":"2026-08-20T10:00:00Z"},
        {"phase":"stage start","stage":"cvo-bootstrap","timestamp":"2026-08-20T10:01:00Z"},
        {"phase":"stage end","stage":"cvo-bootstrap","result":"failure","errorLine":"199 main bootkube.sh",
         "errorMessage":"write /opt/openshift/x: no space left on device","timestamp":"2026-08-20T10:02:00Z"},
        {"phase":"service end","result":"failure","errorMessage":"bootkube.service: Main process exited","timestamp":"2026-08-20T10:02:00Z"},
        {"phase":"service start","timestamp":"2026-08-20T10:02:05Z"}]"#;
    let report = diagnose(&[("bootstrap/services/bootkube.json", records)]);
    assert_eq!(cause(&report), Some("disk-full"));
    assert!(
        report.findings[0].evidence[0].text.contains("/opt/openshift/x"),
        "{}",
        report.findings[0].evidence[0].text
    );
    assert_eq!(report.findings[0].evidence[0].time.unwrap().to_string(), "2026-08-20T10:02:00Z");
}

#[test]
fn every_service_and_every_other_log_is_looked_at() {
    let quiet = r#"[{"phase":"service start","timestamp":"2026-08-20T10:00:00Z"}]"#;
    let kubelet = r#"[{"phase":"service start","timestamp":"2026-08-20T10:00:00Z"},
        {"phase":"service end","result":"failure","errorMessage":"kubelet.service: Main process exited, code=exited, status=203/EXEC","timestamp":"2026-08-20T10:00:01Z"}]"#;
    let report = diagnose(&[("services/bootkube.json", quiet), ("services/kubelet.json", kubelet)]);
    assert_eq!(cause(&report), Some("binary-missing-exec"));
    let master = "Aug 20 10:05:00 master-0 ignition[700]: GET error: Get \"https://api-int.c1.example:22623/config/master\": dial tcp: lookup api-int.c1.example on 10.0.0.2:53: no such host\n";
    let report =
        diagnose(&[("services/bootkube.json", quiet), ("control-plane/10.0.0.5/console.log", master)]);
    assert_eq!(cause(&report), Some("dns-resolution-failure"));
}

#[test]
fn a_damaged_record_is_read_as_text() {
    let cut = r#"[{"phase":"service start","timestamp":"2026-08-20T10:00:00Z"},
        {"phase":"stage end","stage":"x","result":"failure","errorMessage":"write /x: no space left on device"#;
    assert_eq!(cause(&diagnose(&[("services/bootkube.json", cut)])), Some("disk-full"));
}

#[test]
fn cloud_init_that_finishes_after_kubeadm_failed_hides_the_failure() {
    let failed =
        "[2026-01-02 03:01:00] error execution phase wait-control-plane: something nobody has seen\n";
    let finished = "[2026-01-02 03:02:00] Cloud-init v. 24.1 finished at Fri, 02 Jan 2026 03:02:00 +0000. Datasource DataSourceNoCloud.  Up 49.90 seconds\n";
    assert_eq!(
        cause(&diagnose(&[("out.log", &format!("{failed}{finished}"))])),
        Some("kubeadm-failed-silently")
    );
    assert_eq!(cause(&diagnose(&[("out.log", finished)])), None);
    let told = "[2026-01-02 03:01:30] cc_scripts_user.py[WARNING]: Failed to run module scripts-user (scripts in /var/lib/cloud/instance/scripts)\n";
    assert_eq!(
        cause(&diagnose(&[("out.log", &format!("{failed}{told}{finished}"))])),
        Some("userdata-script-failed")
    );
    let why =
        "[2026-01-02 03:00:59] 	[ERROR Swap]: running with swap on is not supported. Please disable swap\n";
    assert_eq!(cause(&diagnose(&[("out.log", &format!("{why}{failed}{finished}"))])), Some("swap-enabled"));
}

#[test]
fn warnings_of_kubeadm_are_no_failures() {
    let log = "[preflight] Running pre-flight checks\n\
         \t[WARNING Hostname]: hostname \"n1\": lookup n1 on 10.0.0.2:53: no such host\n\
         \t[WARNING FileExisting-socat]: socat not found in system path\n\
         \t[WARNING Swap]: swap is enabled; production deployments should disable swap unless testing the NodeSwap feature gate\n";
    assert_eq!(cause(&diagnose(&[("kubeadm.txt", log)])), None);
}

#[test]
fn a_healthy_node_with_noise_is_healthy() {
    let log = include_str!("fixtures/healthy-kubelet.log");
    let report = diagnose(&[("journal.log", log)]);
    assert_eq!((cause(&report), report.verdict.state), (None, State::Succeeded));
    let cut: String = log
        .lines()
        .take_while(|line| !line.contains("just became ready"))
        .map(|line| format!("{line}\n"))
        .collect();
    let report = diagnose(&[("journal.log", &cut)]);
    assert_eq!((cause(&report), report.verdict.state), (Some("cni-not-installed"), State::Degraded));
}

#[test]
fn success_on_one_machine_proves_nothing_about_another() {
    let registered = "I0102 03:06:05.000000       1 kubelet_node_status.go:78] \"Successfully registered node\" node=\"n1\"\n";
    let failing = "E0102 03:04:05.000000       1 run.go:74] \"command failed\" err=\"failed to run Kubelet: running with swap on is not supported\"\n";
    let report = diagnose(&[
        ("b/control-plane/n1/kubelet.log", registered),
        ("b/control-plane/n2/kubelet.log", failing),
    ]);
    assert_eq!(cause(&report), Some("swap-enabled"));
    assert!(report.findings[0].evidence[0].source.contains("n2"));
    let report =
        diagnose(&[("b/control-plane/n1/kubelet.log", registered), ("b/control-plane/n1/old.log", failing)]);
    assert_eq!(cause(&report), None);
}

#[test]
fn one_broken_etcd_member_explains_the_trouble_of_the_others() {
    let broken = "{\"level\":\"info\",\"ts\":\"2026-01-02T03:04:04Z\",\"msg\":\"starting an etcd server\"}\n{\"level\":\"fatal\",\"ts\":\"2026-01-02T03:04:05Z\",\"msg\":\"failed to recover v3 backend from snapshot\",\"error\":\"failed to find database snapshot file (snap: snapshot file doesn't exist)\"}\n";
    let waiting = "{\"level\":\"warn\",\"ts\":\"2026-01-02T03:05:05Z\",\"msg\":\"prober detected unhealthy status\",\"remote-peer-id\":\"1\",\"error\":\"dial tcp 10.0.0.5:2380: connect: connection refused\"}\n";
    let report = diagnose(&[
        ("b/control-plane/10.0.0.6/etcd.log", waiting),
        ("b/control-plane/10.0.0.7/etcd.log", waiting),
        ("b/control-plane/10.0.0.5/etcd.log", broken),
    ]);
    assert_eq!(cause(&report), Some("etcd-data-corrupt"));
    assert!(report.findings[0].evidence[0].source.contains("10.0.0.5"));
    assert!(report.findings[0].explains.iter().any(|cause| cause.as_str() == "etcd-no-quorum"));
}

/// The fix of this cause destroys data: one line of unproven origin makes it a lead, a second independent
/// sign a verdict.
#[test]
fn one_claim_does_not_name_a_cause_whose_fix_destroys_data() {
    let claim =
        "Jan 02 03:09:00 n1 kubeadm[9]: [ERROR DirAvailable--var-lib-etcd]: /var/lib/etcd is not empty\n";
    let report = diagnose(&[("journal.log", claim)]);
    assert_eq!((cause(&report), report.verdict.state), (None, State::Unknown));
    let lead = &report.findings[0];
    assert_eq!(lead.cause.as_str(), "leftover-cluster-state");
    assert!(lead.confidence.value() < 0.5, "{lead:?}");
    let twice = diagnose(&[("journal.log", &claim.repeat(2))]);
    assert_eq!(cause(&twice), None, "the same source again is not independent");

    let copied = diagnose(&[("journal.log", claim), ("syslog", claim)]);
    assert_eq!(cause(&copied), None, "a copy of the same line is not independent");
    let renamed = claim.replace("kubeadm[9]", "cloud-init[9]");
    let renamed = diagnose(&[("journal.log", &format!("{claim}{renamed}"))]);
    assert_eq!(cause(&renamed), None, "the same words under another name are not independent");

    for other in [
        "[ERROR DirAvailable--var-lib-etcd]: /var/lib/etcd is not empty\n[ERROR DirAvailable--etc-kubernetes-manifests]: /etc/kubernetes/manifests is not empty\n",
        "[init] Using Kubernetes version: v1.36.0\n",
    ] {
        let report = diagnose(&[("journal.log", claim), ("kubeadm.log", other)]);
        assert_eq!((cause(&report), report.verdict.state), (Some("leftover-cluster-state"), State::Failed));
    }
    let failed = format!(
        "{claim}Jan 02 03:09:00 n1 kubeadm[9]: error execution phase preflight: [preflight] Some fatal errors occurred:\n"
    );
    let report = diagnose(&[("journal.log", &failed)]);
    assert_eq!((cause(&report), report.verdict.state), (Some("leftover-cluster-state"), State::Failed));
}

/// Returns the cases of a table that do not end in the expected cause, with this additional log.
fn wrong_in(table: &str, other: &str) -> Vec<String> {
    let cases = table.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('\t'));
    cases
        .filter_map(|(expected, text)| {
            let text = text.replace(" ⏎ ", "\n");
            let report = diagnose(&[("log.txt", &text), ("other.txt", other)]);
            let got = cause(&report).unwrap_or("-");
            (got != expected).then(|| format!("expected {expected}, got {got}: {text}"))
        })
        .collect()
}

#[test]
fn every_wording_leads_to_its_cause() {
    // A single line is not sufficient if the fix destroys data.
    let crash = "systemd[1]: kubelet.service: Main process exited, code=exited, status=1/FAILURE\n";
    let wrong = wrong_in(include_str!("fixtures/wordings.tsv"), crash);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_root_of_a_story_is_named_and_healthy_stories_raise_no_alarm() {
    let wrong = wrong_in(include_str!("fixtures/stories.tsv"), "");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_cause_of_the_catalogue_can_be_found() {
    let rules = RuleSet::embedded().unwrap();
    let without: Vec<String> = rules
        .catalogue()
        .iter()
        .filter(|entry| entry.name.as_str() != "none" && rules.examples(&entry.name).next().is_none())
        .map(|entry| entry.name.to_string())
        .collect();
    assert!(without.is_empty(), "no rule finds {without:?}");
}

#[test]
fn a_stage_of_which_nothing_more_is_heard_grows_older() {
    let engine = engine();
    let text = "2026-01-02T03:04:05Z n1 cloud-init[7]: Cloud-init v. 24.1 running 'modules:final' at Fri, 02 Jan 2026 03:04:05 +0000. Up 20.1 seconds.\n";
    let at = |now: &str| {
        let mut case = engine.open();
        let stream = Stream::sniff("journal", text.as_bytes());
        let source = case.add_source("journal", stream.kind.name());
        case.add(source, engine.scan(&stream, 1, text.as_bytes()));
        assert_eq!(case.last(), Some("2026-01-02T03:04:05Z".parse().unwrap()));
        case.finish_at(Clock { now: Some(now.parse().unwrap()), up: None })
    };
    assert_eq!(diagnose(&[("journal", text)]).verdict.state, State::Running);
    assert_eq!(at("2026-01-02T03:33:00Z").verdict.state, State::Running);
    let late = at("2026-01-02T03:35:00Z").verdict;
    assert_eq!(
        (late.state, late.cause.as_ref().map(landfall_model::Cause::as_str)),
        (State::Hung, Some("stage-hung"))
    );
    assert!(late.title.contains("for 30 min"), "{}", late.title);
    // A clock that is behind the lines proves nothing.
    assert_eq!(at("2025-01-01T00:00:00Z").verdict.state, State::Running);
}

/// The clock was at 1970 when the stage started, and was set while it continued.
#[test]
fn a_clock_that_is_set_forward_makes_nothing_hang() {
    let engine = engine();
    let text = "1970-01-01T00:00:21Z n1 cloud-init[7]: Cloud-init v. 24.1 running 'modules:final' at Thu, 01 Jan 1970 00:00:21 +0000. Up 21.10 seconds.\n\
        2026-01-02T03:04:05Z n1 systemd-timesyncd[9]: Initial clock synchronization\n";
    let state = |up: Option<i64>, now: Option<&str>| {
        let mut case = engine.open();
        let stream = Stream::sniff("journal", text.as_bytes());
        let source = case.add_source("journal", stream.kind.name());
        case.add(source, engine.scan(&stream, 1, text.as_bytes()));
        let now = now.map(|now| now.parse().unwrap());
        case.finish_at(Clock { now, up: up.map(SignedDuration::from_secs) }).verdict.state
    };
    assert_eq!(state(None, None), State::Hung, "nobody can know better");
    for now in [None, Some("2026-01-02T03:05:00Z")] {
        assert_eq!(state(Some(80), now), State::Running, "{now:?}");
    }
}
