//! Tests with machines made of a few files.
//!
//! They cover facts that the agent observes itself, and the absence of log lines.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use landfall_diagnose::{Engine, RuleSet, UnitState};
use landfall_evidence::collect::Host;
use landfall_journal::Journal;
use landfall_model::Phase;
use landfall_model::report::{PhaseOutcome, Report, State};
use landfall_testkit::eventually;

use crate::milestones::FILES;
use crate::units::Change;
use crate::watch::Watch;

const OUTPUT: &str = "/var/log/cloud-init-output.log";

fn engine() -> &'static Engine {
    static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::new(RuleSet::embedded().unwrap()).unwrap());
    &ENGINE
}

struct Machine {
    root: tempfile::TempDir,
    watch: Watch<'static>,
}

impl Machine {
    fn with(files: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            write(root.path(), path, text);
        }
        let watch = Watch::new(engine(), Host::at(root.path()).unwrap());
        Self { root, watch }
    }

    fn write(&self, path: &str, text: &str) {
        write(self.root.path(), path, text);
    }

    fn report(&mut self) -> Report {
        self.watch.read();
        self.watch.report().unwrap()
    }

    fn unit(&mut self, unit: &str, at: Timestamp, active: &str, sub: &str, result: &str) {
        let state = UnitState {
            unit: format!("{unit}.service"),
            active: active.to_owned(),
            sub: sub.to_owned(),
            result: result.to_owned(),
            status: i64::from(result != "success"),
            restarts: 0,
        };
        self.watch.changed(&Change { at, state });
    }
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn ago(seconds: i64) -> Timestamp {
    Timestamp::now() - SignedDuration::from_secs(seconds)
}

/// Returns the line with which cloud-init's last stage begins.
fn last_stage(begun: Timestamp) -> String {
    let begun = begun.to_zoned(TimeZone::UTC).strftime("%a, %d %b %Y %H:%M:%S %z").to_string();
    format!("Cloud-init v. 24.1 running 'modules:final' at {begun}. Up 21.10 seconds.\n")
}

fn cause(report: &Report) -> Option<&str> {
    report.verdict.cause.as_ref().map(landfall_model::Cause::as_str)
}

fn outcome(report: &Report, phase: Phase) -> Option<PhaseOutcome> {
    report.timeline.iter().find(|entry| entry.phase == phase).map(|entry| entry.outcome)
}

#[test]
fn every_file_that_is_looked_for_means_something() {
    for path in FILES {
        let mut machine = Machine::with(&[(path, "")]);
        let report = machine.report();
        assert!(!report.timeline.is_empty(), "{path} moves nothing");
        assert_eq!(cause(&report), None, "{path}");
        assert!(!matches!(report.verdict.state, State::Failed | State::Hung), "{path}");
        assert_eq!(
            report.sources.iter().map(|source| source.name.as_str()).collect::<Vec<_>>(),
            ["journal", "file"]
        );
    }
}

/// An image that buffers the output of its scripts until they exit.
#[test]
fn a_join_of_which_no_log_tells_is_seen_by_its_files_and_units() {
    let mut machine = Machine::with(&[]);
    machine.unit("cloud-final", ago(40), "activating", "start", "success");
    machine.unit("containerd", ago(39), "active", "running", "success");
    let report = machine.report();
    assert_eq!((report.verdict.state, report.verdict.phase), (State::Running, Some(Phase::CloudInit)));
    assert_eq!(outcome(&report, Phase::Runtime), Some(PhaseOutcome::Ok));

    machine.write("/run/kubeadm/kubeadm-join-config.yaml", "");
    machine.write("/etc/kubernetes/bootstrap-kubelet.conf", "");
    let report = machine.report();
    assert_eq!((report.verdict.state, report.verdict.phase), (State::Running, Some(Phase::Kubelet)));
    assert_eq!(outcome(&report, Phase::Join), Some(PhaseOutcome::Open));

    machine.write("/var/lib/kubelet/config.yaml", "");
    machine.write("/var/lib/kubelet/pki/kubelet-client-current.pem", "");
    machine.write("/run/cluster-api/placeholder", "");
    machine.write("/run/cluster-api/bootstrap-success.complete", "success\n");
    machine.write("/var/lib/cloud/instance/boot-finished", "");
    machine.unit("cloud-final", Timestamp::now(), "active", "exited", "success");
    let report = machine.report();
    // The node is not registered yet: there is no failure, and the bootstrap is not complete.
    assert_eq!((report.verdict.state, cause(&report)), (State::Running, None));
    assert_eq!(outcome(&report, Phase::CloudInit), Some(PhaseOutcome::Ok));
    assert_eq!(outcome(&report, Phase::Join), Some(PhaseOutcome::Ok));

    let now = Timestamp::now();
    machine.write(OUTPUT, &format!("{now} n1 kubelet[7]: \"Successfully registered node\" node=\"n1\"\n"));
    let report = machine.report();
    assert_eq!((report.verdict.state, cause(&report)), (State::Succeeded, None));
}

#[test]
fn a_success_that_nobody_noted_is_a_failure() {
    let mut machine = Machine::with(&[
        ("/run/cluster-api/placeholder", ""),
        ("/run/kubeadm/kubeadm-join-config.yaml", ""),
        ("/var/lib/cloud/instance/boot-finished", ""),
    ]);
    let report = machine.report();
    assert_eq!((report.verdict.state, cause(&report)), (State::Failed, Some("kubeadm-failed-silently")));
    // A more specific log takes precedence.
    machine.write(OUTPUT, "\t[ERROR Swap]: running with swap on is not supported. Please disable swap\n");
    assert_eq!(cause(&machine.report()), Some("swap-enabled"));
}

#[test]
fn kernel_messages_are_read_where_no_journal_exists() {
    let names = |watch: &mut Watch<'_>| -> Vec<String> {
        watch.read();
        watch.report().unwrap().sources.into_iter().map(|source| source.name).collect()
    };
    let stat = format!("btime {}\n", ago(60).as_second());
    let mut other = Machine::with(&[("/proc/stat", &stat)]);
    assert_eq!(names(&mut other.watch), ["journal"], "the kernel of another machine");
    // The rest of the test requires read access.
    if fs::File::open("/dev/kmsg").is_err() {
        return;
    }
    let mut watch = Watch::new(engine(), Host::at(Path::new("/")).unwrap());
    let has_journal = Journal::open(["/run/log/journal", "/var/log/journal"]).files() > 0;
    assert_eq!(names(&mut watch).iter().any(|name| name == "/dev/kmsg"), !has_journal);
}

#[test]
fn units_tell_how_they_ended() {
    let mut machine = Machine::with(&[]);
    machine.unit("kubeadm", ago(60), "activating", "start", "success");
    assert_eq!(machine.report().verdict.state, State::Running);
    machine.unit("kubeadm", ago(30), "failed", "failed", "exit-code");
    let report = machine.report();
    assert_eq!(report.verdict.title, "`kubeadm` failed, but the logs do not say why");
    assert_eq!(outcome(&report, Phase::Join), Some(PhaseOutcome::Failed));

    // A kubelet without a configuration restarts repeatedly on every healthy machine.
    let mut machine = Machine::with(&[]);
    machine.unit("cloud-final", ago(60), "activating", "start", "success");
    machine.unit("kubelet", ago(50), "activating", "auto-restart", "exit-code");
    let report = machine.report();
    assert_eq!((report.verdict.state, cause(&report)), (State::Running, None));
}

#[test]
fn a_machine_that_says_nothing_more_is_found_to_hang() {
    let up = ("/proc/uptime", "7200.00 1.00\n");
    let log = |seconds| last_stage(ago(seconds));
    for (begun, expected) in [(31 * 60, State::Hung), (5 * 60, State::Running)] {
        let mut machine = Machine::with(&[up, (OUTPUT, &log(begun))]);
        assert_eq!(machine.report().verdict.state, expected, "{begun} s");
        assert!(!machine.watch.read(), "nothing was said since");
        assert_eq!(machine.watch.report().unwrap().verdict.state, expected, "{begun} s");
    }
    // The lines are of another time, or the clock was set since: the silence since they were read counts.
    for up in [("/proc/uptime", "60.00 1.00\n"), ("/etc/hostname", "n1\n")] {
        let mut machine = Machine::with(&[up, (OUTPUT, &log(31 * 60))]);
        assert_eq!(machine.report().verdict.state, State::Running);
    }
    // A ready node stays ready.
    let joined = format!("{}This node has joined the cluster:\n", log(3600));
    let mut machine = Machine::with(&[up, (OUTPUT, &joined)]);
    assert_eq!(machine.report().verdict.state, State::Succeeded);
}

/// The clock ran in local time and is set back to UTC: later lines still belong to this boot.
#[test]
fn what_is_written_after_the_clock_was_set_back_is_of_this_boot() {
    let stat = |began: Timestamp| format!("cpu 1 2\nbtime {}\n", began.as_second());
    let mut machine = Machine::with(&[("/proc/stat", &stat(ago(-7200)))]);
    machine.write("/var/lib/kubelet/config.yaml", "");
    assert!(machine.report().timeline.is_empty(), "by the clock so far it is of an earlier boot");
    machine.write("/proc/stat", &stat(ago(60)));
    machine.unit("containerd", ago(30), "active", "running", "success");
    assert_eq!(outcome(&machine.report(), Phase::Runtime), Some(PhaseOutcome::Ok));
    let told = || outcome(&machine.report(), Phase::Kubelet);
    eventually("the milestone", Duration::from_secs(60), told).unwrap();
}

/// A stage that began with the clock at 1970 is at most as old as this boot.
#[test]
fn a_clock_that_is_set_forward_makes_no_stage_hang() {
    let begun = Timestamp::from_second(21).unwrap();
    let log = format!("{}{} n1 ntpd[9]: time was set\n", last_stage(begun), ago(10));
    let mut machine = Machine::with(&[("/proc/uptime", "80.00 1.00\n"), (OUTPUT, &log)]);
    assert_eq!(machine.report().verdict.state, State::Running);
}

#[test]
fn where_there_is_no_journal_only_this_boot_counts() {
    let boot = "Nov 18 01:00:07 n1 kern.notice kernel: [    0.000000] Linux version 6.6.1\n";
    let failed = "Nov 18 01:00:09 n1 user.err kubeadm[7]: [ERROR Swap]: running with swap on is not supported. Please disable swap\n";
    let stat = format!("btime {}\n", ago(3600).as_second());
    for (log, expected) in
        [(format!("{boot}{failed}{boot}"), None), (format!("{boot}{boot}{failed}"), Some("swap-enabled"))]
    {
        let files =
            [("/proc/stat", stat.as_str()), ("/run/openrc/softlevel", ""), ("/var/log/messages", &log)];
        assert_eq!(cause(&Machine::with(&files).report()), expected);
    }
}

#[test]
fn the_machine_s_own_secrets_leave_in_no_report() {
    const CANARY: &str = "canary bird 4711";
    const LATER: &str = "another-canary-0815";
    let mut machine =
        Machine::with(&[("/var/lib/cloud/instance/user-data.txt", "password: canary bird 4711\n")]);
    let line = format!("[ERROR Swap]: running with swap on is not supported ({CANARY} {LATER})\n");
    machine.write(OUTPUT, &line);
    let shown = |machine: &mut Machine| serde_json::to_string(&machine.report()).unwrap();
    let before = shown(&mut machine);
    assert!(
        before.contains("swap-enabled") && before.contains(LATER) && !before.contains(CANARY),
        "{before}"
    );
    // A secret is learned when its file appears, and kept when the file disappears.
    machine.write("/run/kubeadm/kubeadm-join-config.yaml", &format!("password: {LATER}\n"));
    let after = shown(&mut machine);
    assert!(!after.contains(LATER) && !after.contains(CANARY), "{after}");
    fs::remove_file(machine.root.path().join("run/kubeadm/kubeadm-join-config.yaml")).unwrap();
    assert!(!shown(&mut machine).contains(LATER));
}
