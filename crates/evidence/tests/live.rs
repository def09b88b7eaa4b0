//! Diagnosis on a machine: evidence names its real location, and journald's fields and file owners prove its
//! origin.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "machine/mod.rs"]
mod machine;

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;

use landfall_model::report::{Evidence, Report, Trust};
use landfall_testkit::{Need, have};

use machine::Machine;

const REMOTE: &str = "/usr/lib/systemd/systemd-journal-remote";
const JOURNAL: &str = "var/log/journal/0123456789abcdef0123456789abcdef/system.journal";
const SWAP: &str = "E0102 03:04:05.000001    7 run.go:74] \"command failed\" err=\"failed to run Kubelet: running with swap on is not supported, please disable swap\"";
const SWAP_OF_KUBEADM: &str = "\t[ERROR Swap]: running with swap on is not supported. Please disable swap\n";
const FILLER: &str =
    "one of many lines that report nothing at all, and that are about a hundred bytes long each\n";

/// A root service.
const KUBELET: &str = "_TRANSPORT=stdout\n_UID=0\n_PID=7\n_EXE=/usr/bin/kubelet\n_COMM=kubelet\n_SYSTEMD_UNIT=kubelet.service\nSYSLOG_IDENTIFIER=kubelet\n";
/// `logger -t kubelet`, run by a user outside a unit.
const USER: &str =
    "_TRANSPORT=syslog\n_UID=1000\n_PID=8\n_EXE=/usr/bin/logger\n_COMM=logger\nSYSLOG_IDENTIFIER=kubelet\n";
const KERNEL: &str = "_TRANSPORT=kernel\nSYSLOG_IDENTIFIER=kernel\n";

/// Returns an entry in the format of `journalctl -o export`.
fn entry(number: u64, boot: u64, fields: &str, message: &str) -> String {
    format!(
        "__CURSOR=s={number:032x};i={number};b={boot:032x};m={number};t={number};x={number}\n\
         __REALTIME_TIMESTAMP={}\n__MONOTONIC_TIMESTAMP={number}\n_BOOT_ID={boot:032x}\n\
         _HOSTNAME=n1\n{fields}MESSAGE={message}\n\n",
        1_767_323_045_000_000_u64 + number
    )
}

/// Creates a journal file of the machine with systemd's own writer.
fn write_journal(machine: &Machine, export: &str) {
    machine.file("a.export", export).file(JOURNAL, "");
    let root = machine.root.path();
    fs::remove_file(root.join(JOURNAL)).unwrap();
    let made = Command::new(REMOTE).args(["-o", JOURNAL, "a.export"]).current_dir(root).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    fs::remove_file(root.join("a.export")).unwrap();
}

fn diagnose(machine: &Machine) -> Report {
    let report = machine::diagnose(machine.root.path());
    for source in &report.sources {
        let is_real = source.name.starts_with('/')
            || source.name == "journal"
            || source.name.starts_with("landfall:")
            || source.kind == "facts";
        assert!(is_real && !source.name.contains("log-bundle"), "{source:?}");
    }
    report
}

#[track_caller]
fn evidence<'r>(report: &'r Report, cause: &str) -> &'r [Evidence] {
    let finding = report.findings.iter().find(|finding| finding.cause.as_str() == cause);
    &finding.unwrap_or_else(|| panic!("no {cause} in {report:#?}")).evidence
}

#[test]
fn journal_entries_are_cited_by_unit_and_proven() {
    if !have(&[Need::Program(REMOTE)]) {
        return;
    }
    let machine = Machine::new();
    let export = [
        entry(1, 1, KERNEL, "Linux version 6.1.0"),
        entry(2, 1, USER, "hello"),
        entry(3, 1, KUBELET, SWAP),
        entry(4, 1, KERNEL, "Out of memory: Killed process 4242 (etcd) total-vm:1kB"),
    ];
    write_journal(&machine, &export.concat());
    let report = diagnose(&machine);
    let [line] = evidence(&report, "swap-enabled") else { panic!("{report:#?}") };
    assert_eq!((line.source.as_str(), line.line, line.trust), ("journal:kubelet.service", 3, Trust::Proven));
    let killed = report.findings.iter().flat_map(|finding| &finding.evidence).find(|line| line.line == 4);
    let killed = killed.unwrap();
    assert_eq!((killed.source.as_str(), killed.trust), ("journal:kernel", Trust::Proven));
    let journals = report.sources.iter().filter(|source| source.name.starts_with("journal"));
    assert_eq!(journals.map(|source| source.lines).collect::<Vec<_>>(), [4]);
}

#[test]
fn user_chosen_name_is_neither_cited_nor_counted() {
    if !have(&[Need::Program(REMOTE)]) {
        return;
    }
    let machine = Machine::new();
    write_journal(&machine, &(entry(1, 1, KERNEL, "Linux version 6.1.0") + &entry(2, 1, USER, SWAP)));
    let report = diagnose(&machine);
    assert_eq!(report.verdict.cause, None, "{report:#?}");
    for line in report.findings.iter().flat_map(|finding| &finding.evidence) {
        assert_eq!((line.source.as_str(), line.trust), ("journal", Trust::Claimed));
    }
}

#[test]
fn all_boots_are_read_and_a_later_success_counts() {
    if !have(&[Need::Program(REMOTE)]) {
        return;
    }
    let machine = Machine::new();
    let mut export = entry(1, 1, KUBELET, SWAP);
    for number in 2..40 {
        export += &entry(number, 1, KUBELET, "still here");
    }
    export += &entry(40, 2, KUBELET, "Successfully registered node n1");
    write_journal(&machine, &export);
    let report = diagnose(&machine);
    assert!(report.timeline.iter().any(|entry| entry.boot == Some(2)), "{report:#?}");
    assert_eq!(report.verdict.cause, None, "{report:#?}");
}

#[test]
fn earlier_boots_leave_room_for_the_last_one() {
    if !have(&[Need::Program(REMOTE)]) {
        return;
    }
    let machine = Machine::new();
    machine.file(
        "etc/landfall/gather.d/small.toml",
        // Limits for one item, as set by an administrator.
        "[[item]]\nid = \"journal\"\nto = \"journal.log\"\nmebibytes = 1\nsource.journal.since = \"all\"\n",
    );
    let long = FILLER.trim().repeat(40);
    let mut export: String = (1..1000).map(|number| entry(number, 1, KUBELET, &long)).collect();
    export += &entry(1000, 2, KUBELET, SWAP);
    write_journal(&machine, &export);
    let report = diagnose(&machine);
    let line = &evidence(&report, "swap-enabled")[0];
    assert_eq!((line.source.as_str(), line.trust), ("journal:kubelet.service", Trust::Proven));
    let journal = report.sources.iter().find(|source| source.name == "journal").unwrap();
    let error = journal.error.as_deref().unwrap();
    assert!(error.starts_with("incomplete: entries were left out, limit 1 MiB and 15 s"), "{error}");
    assert!(journal.lines < 400, "{journal:?}");
}

#[test]
fn a_log_that_only_root_can_write_is_proven() {
    const OUTPUT: &str = "/var/log/cloud-init-output.log";
    let machine = Machine::new();
    machine.file(OUTPUT, format!("[preflight] Running pre-flight checks\n{SWAP_OF_KUBEADM}"));
    let path = machine.root.path().join(&OUTPUT[1..]);
    // Only root can change a file's owner to root.
    if chown(&path, Some(0), Some(0)).is_err() {
        return;
    }
    for (mode, trust) in [(0o644, Trust::Proven), (0o664, Trust::Claimed), (0o646, Trust::Claimed)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let report = diagnose(&machine);
        let [line] = evidence(&report, "swap-enabled") else { panic!("{report:#?}") };
        assert_eq!((line.source.as_str(), line.line, line.trust), (OUTPUT, 2, trust), "{mode:o}");
    }
    chown(&path, Some(1000), None).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(evidence(&diagnose(&machine), "swap-enabled")[0].trust, Trust::Claimed);
}

/// All programs can write to these logs, even though root owns the files.
#[test]
fn logs_of_all_programs_prove_nothing() {
    let machine = Machine::new();
    machine.file("/var/log/messages", SWAP_OF_KUBEADM);
    let report = diagnose(&machine);
    let lines: Vec<&Evidence> = report.findings.iter().flat_map(|finding| &finding.evidence).collect();
    assert!(lines.iter().any(|line| line.source == "/var/log/messages"), "{report:#?}");
    assert!(lines.iter().all(|line| line.trust == Trust::Claimed), "{report:#?}");
}

#[test]
fn long_log_truncated_keeps_line_numbers() {
    let machine = Machine::new();
    let lines = (12 << 20) / FILLER.len();
    machine.file("/var/log/syslog", FILLER.repeat(lines) + SWAP_OF_KUBEADM);
    let report = diagnose(&machine);
    let [line] = evidence(&report, "swap-enabled") else { panic!("{report:#?}") };
    assert_eq!((line.source.as_str(), line.line), ("/var/log/syslog", lines as u64 + 1));
    let source = report.sources.iter().find(|source| source.name == "/var/log/syslog").unwrap();
    assert!(source.bytes < 9 << 20, "{source:?}");
    let error = source.error.as_deref().unwrap();
    assert!(error.contains("bytes in the middle were left out, limit 8 MiB"), "{error}");
}

#[test]
fn packed_logs_are_read_and_binary_ones_are_not() {
    let machine = Machine::new();
    machine
        .file("/run/cloud-init/enabled", "")
        .file("/var/log/cloud-init-output.log.1", SWAP_OF_KUBEADM)
        .file("/var/log/kern.log", [0; 100]);
    let folder = machine.root.path().join("var/log");
    let packed = Command::new("gzip").arg("cloud-init-output.log.1").current_dir(folder).status().unwrap();
    assert!(packed.success());
    let report = diagnose(&machine);
    assert_eq!(evidence(&report, "swap-enabled")[0].source, "/var/log/cloud-init-output.log.1.gz");
    assert!(report.sources.iter().all(|source| source.name != "/var/log/kern.log"));
}

#[test]
fn answers_to_questions_name_the_question() {
    let machine = Machine::new();
    machine
        .file("run/openrc/softlevel", "default")
        .file("run/openrc/started/kubelet", "")
        .file("proc/sys/kernel/pid_max", "4194304\n");
    let report = diagnose(&machine);
    let names: Vec<&str> = report.sources.iter().map(|source| source.name.as_str()).collect();
    for name in ["landfall:openrc", "landfall:disks", "landfall:kernel-settings"] {
        assert!(names.contains(&name), "{name} is missing in {names:?}");
    }
    assert!(!names.contains(&"/dev/kmsg"), "the kernel of another machine");
}

#[test]
fn the_machines_own_secrets_are_not_in_the_report() {
    const PASSWORD: &str = "plum jam und zimt 77";
    let machine = Machine::new();
    machine
        .file("var/lib/cloud/instance/user-data.txt", format!("#cloud-config\npassword: {PASSWORD}\n"))
        .file(
            "var/log/cloud-init-output.log",
            format!("[ERROR Swap]: running with swap on is not supported ({PASSWORD})\n"),
        );
    let report = diagnose(&machine);
    assert!(!evidence(&report, "swap-enabled").is_empty());
    let text = serde_json::to_string(&report).unwrap();
    assert!(!text.contains("zimt"), "{text}");
    assert!(!report.sources.iter().any(|source| source.name.contains("user-data")), "{report:#?}");
}

#[test]
fn this_machine_cites_real_locations() {
    let report = machine::diagnose(Path::new("/"));
    let names: Vec<&str> = report.sources.iter().map(|source| source.name.as_str()).collect();
    let is_readable = File::open("/dev/kmsg").is_ok();
    assert_eq!(names.contains(&"/dev/kmsg"), is_readable && !names.contains(&"journal"), "{names:?}");
    for name in
        ["/proc/meminfo", "landfall:disks", "landfall:network/ip-route.txt", "landfall:kubelet-health"]
    {
        assert!(names.contains(&name), "{name} is missing in {names:?}");
    }
}

/// Any user can write to the system log under any name; the journal has the same lines with their writers.
#[test]
fn system_log_beside_a_journal_is_not_read() {
    if !have(&[Need::Program(REMOTE)]) {
        return;
    }
    let claim = "Jan 02 03:09:00 n1 kubelet[9]: Successfully registered node n1\n";
    let machine = Machine::new();
    machine.file("var/log/syslog", claim);
    let read = |report: &Report| report.sources.iter().any(|source| source.name == "/var/log/syslog");
    assert!(read(&diagnose(&machine)), "without a journal it is all there is");
    write_journal(&machine, &entry(1, 1, KUBELET, SWAP));
    let report = diagnose(&machine);
    assert!(!read(&report), "{report:#?}");
    assert_eq!(report.verdict.cause.as_ref().map(landfall_model::Cause::as_str), Some("swap-enabled"));
}

/// The path of a container's log names the container, and only the runtime writes there.
#[test]
fn logs_of_system_containers_are_proven() {
    let line = "2026-01-02T03:04:05.000001Z stderr F {\"level\":\"fatal\",\"ts\":\"2026-01-02T03:04:05Z\",\"msg\":\"failed to recover v3 backend from snapshot\",\"error\":\"failed to find database snapshot file (snap: snapshot file doesn't exist)\"}\n";
    for (pod, proven) in [("kube-system_etcd-n1_8a7b", Some(Trust::Proven)), ("shop_etcd-n1_8a7b", None)] {
        let machine = Machine::new();
        machine.file(&format!("var/log/pods/{pod}/etcd/0.log"), line);
        let report = diagnose(&machine);
        let found = report.findings.iter().find(|finding| finding.ruled_out.is_none());
        assert_eq!(found.map(|finding| finding.evidence[0].trust), proven, "{pod}: {report:#?}");
    }
}
