use landfall_testkit::{Node, NodeSpec, eventually, have};

use crate::command::Bench;

#[test]
fn away_from_a_terminal_log_lines_are_json() {
    let bench = Bench::new();
    bench.file("kubelet.log", "nothing of note\n");
    let run = bench.run(&["-v", "diagnose", "kubelet.log"]);
    let line = run.stderr.lines().next().expect("a log line");
    let entry: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(entry["message"], "Read a source.");
    assert_eq!(entry["source"], "kubelet.log");
    assert_eq!(entry["level"], "INFO");
}

#[test]
fn without_being_asked_nothing_is_logged() {
    let bench = Bench::new();
    bench.file("kubelet.log", "nothing of note\n");
    assert_eq!(bench.run(&["diagnose", "kubelet.log"]).stderr, "");
}

#[test]
fn a_filter_that_cannot_be_read_is_said_once_and_ignored() {
    let bench = Bench::new();
    bench.file("kubelet.log", "nothing of note\n");
    let run = bench.command(&["diagnose", "kubelet.log"]).env("LANDFALL_LOG", "=/=").output().unwrap();
    let stderr = String::from_utf8(run.stderr).unwrap();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("LANDFALL_LOG"), "{stderr}");
    assert_eq!(run.status.code(), Some(0));
}

#[test]
fn under_systemd_entries_go_to_the_journal_with_their_fields() {
    if !have(Node::NEEDS) {
        return;
    }
    let mut spec = NodeSpec::new("logger");
    let binary = std::fs::read(env!("CARGO_BIN_EXE_landfall")).unwrap();
    spec.files.push(("/usr/local/bin/landfall".into(), binary));
    let mut node = Node::boot(&spec).unwrap();
    node.wait_for_boot().unwrap();
    node.output(&["chmod", "+x", "/usr/local/bin/landfall"]).unwrap();
    let unit = ["systemd-run", "--wait", "--unit=landfall-test", "--quiet"];
    let command = ["/usr/local/bin/landfall", "-v", "diagnose", "/etc/hostname"];
    node.output(&[&unit[..], &command[..]].concat()).unwrap();

    let limit = std::time::Duration::from_secs(30);
    let entry = eventually("the entry in the journal", limit, || {
        let entries = node.journal(&["--output=json", "_SYSTEMD_UNIT=landfall-test.service"]).ok()?;
        let entries = entries.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        entries.into_iter().find(|entry| entry["MESSAGE"] == "Read a source.")
    })
    .unwrap();
    assert_eq!(entry["PRIORITY"], "5");
    assert_eq!(entry["F_SOURCE"], "/etc/hostname");
    assert_eq!(entry["SYSLOG_IDENTIFIER"], "landfall");
}
