//! Secrets of several lines that start in omitted evidence: in the middle of a long file, or before the
//! requested time.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "machine/mod.rs"]
mod machine;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use landfall_evidence::collect::{Host, Plan};
use landfall_testkit::{Need, have};

use machine::{Bundle, Machine};

const REMOTE: &str = "/usr/lib/systemd/systemd-journal-remote";

/// Returns a secret value of a document.
fn value(number: usize) -> String {
    format!("v{:08x}x{number:06}", number.wrapping_mul(0x9e37_79b9) & 0xffff_ffff)
}

/// Documents of several lines whose values are not recognizable by name or form.
fn document(kind: &str, values: usize) -> String {
    let mut text = String::new();
    let mut line = |arguments: std::fmt::Arguments<'_>| writeln!(text, "{arguments}").unwrap();
    match kind {
        "ignition" => {
            line(format_args!("failed to fetch config: Full config:"));
            line(format_args!("{{\n  \"storage\": {{\n    \"files\": ["));
            for number in 0..values {
                line(format_args!("      {{ \"note\": \"{}\" }},", value(number)));
            }
            line(format_args!("    ]\n  }}\n}}"));
        }
        "cloud-config" => {
            line(format_args!("#cloud-config\nnotes:"));
            (0..values).for_each(|number| line(format_args!("  - {}", value(number))));
        }
        "here-document" => {
            line(format_args!("+ cat <<EOF > /etc/kubernetes/secret.env"));
            (0..values).for_each(|number| line(format_args!("{}", value(number))));
            line(format_args!("EOF"));
        }
        "block" => {
            line(format_args!("password: |"));
            (0..values).for_each(|number| line(format_args!("  {}", value(number))));
        }
        other => unreachable!("{other} is no document"),
    }
    text
}

const DOCUMENTS: [&str; 4] = ["ignition", "cloud-config", "here-document", "block"];

/// Returns the numbers of the values left in a bundle.
fn left(bundle: &Bundle, values: usize) -> Vec<usize> {
    (0..values).filter(|number| bundle.contains(&value(*number)).is_some()).take(10).collect()
}

fn machine_with(text: &str) -> Bundle {
    let machine = Machine::new();
    machine.file("var/log/boot.log", text).file(
        "etc/landfall/gather.d/all.toml",
        "[[item]]\nid = \"all\"\nto = \"all/\"\nmebibytes = 1\nsource.files.paths = [\"/var/log/*.log\"]\n",
    );
    machine.collect()
}

#[test]
fn documents_in_the_middle_of_long_files_do_not_leak() {
    let line = "Nov 19 05:38:09 node-1 kubelet[812]: a line like any other, one of very many of them\n";
    for kind in DOCUMENTS {
        let values = 3000;
        let text = format!(
            "{}{}{}the end of the file is here\n",
            line.repeat(4000),
            document(kind, 20_000),
            line.repeat(11_000)
        );
        let bundle = machine_with(&text);
        assert_eq!(left(&bundle, values), Vec::<usize>::new(), "{kind}");
        let kept = bundle.text("all/boot.log");
        assert!(
            kept.contains("bytes left out here") && kept.ends_with("the end of the file is here\n"),
            "{kind}"
        );
    }
}

#[test]
fn documents_that_begin_where_nobody_looked_do_not_leak() {
    // The document starts before the searched part and extends into the kept part.
    let text = format!(
        "{}{}{}the end of the file is here\n",
        "Nov 19 05:38:09 node-1 kubelet[812]: a line like any other\n".repeat(20_000),
        document("cloud-config", 3_300_000),
        "Nov 19 05:38:09 node-1 kubelet[812]: the kubelet of this node is now running\n".repeat(1000),
    );
    assert!(text.len() > 66 << 20, "{}", text.len());
    let bundle = machine_with(&text);
    let kept = bundle.text("all/boot.log");
    let last = value(3_299_999);
    assert!(!kept.contains(&last), "a value is left");
    assert!(kept.contains("***WITHHELD:context***"), "what was withheld is marked");
    assert!(kept.ends_with("the end of the file is here\n"));
}

/// Creates a journal with systemd's own program: one line per message, one second apart, starting at the
/// given time.
fn journal(root: &std::path::Path, messages: &[String], first: u64) {
    let folder = root.join("var/log/journal/0f1e2d3c4b5a69788796a5b4c3d2e1f0");
    std::fs::create_dir_all(&folder).unwrap();
    let mut export = String::new();
    for (number, message) in messages.iter().enumerate() {
        let time = first + number as u64 * 1000;
        write!(
            export,
            "__REALTIME_TIMESTAMP={time}\n__MONOTONIC_TIMESTAMP={time}\n_BOOT_ID=0f1e2d3c4b5a69788796a5b4c3d2e1f0\n\
             _MACHINE_ID=0f1e2d3c4b5a69788796a5b4c3d2e1f0\n_SYSTEMD_UNIT=boot.service\nSYSLOG_IDENTIFIER=boot\nMESSAGE={message}\n\n"
        )
        .unwrap();
    }
    let mut child = Command::new(REMOTE)
        .arg("-o")
        .arg(folder.join("system.journal"))
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(export.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn documents_that_begin_before_the_time_that_was_asked_for_do_not_leak() {
    if !have(&[Need::Program(REMOTE)]) {
        return;
    }
    for kind in DOCUMENTS {
        let values = 1500;
        let machine = Machine::new();
        machine.file("etc/machine-id", "0f1e2d3c4b5a69788796a5b4c3d2e1f0\n").file(
            "etc/landfall/gather.d/all.toml",
            "[[item]]\nid = \"all\"\nto = \"all/journal.log\"\nsource.journal.since = \"all\"\n",
        );
        let mut messages: Vec<String> = document(kind, values).lines().map(str::to_owned).collect();
        messages.push("Reached the target of the boot process.".to_owned());
        messages.push("ok".to_owned());
        let first = 1_763_530_000_000_000;
        journal(machine.root.path(), &messages, first);
        let host = Host::at(machine.root.path()).unwrap();
        let since = jiff::Timestamp::from_microsecond(i64::try_from(first + 750_000).unwrap()).unwrap();
        let plan = Plan::of(&host).unwrap().since(since);
        let bundle = Bundle::with_plan(host, &plan);
        assert_eq!(left(&bundle, values), Vec::<usize>::new(), "{kind}");
        let kept = bundle.text("all/journal.log");
        assert!(kept.contains("Reached the target") && kept.ends_with("ok\n"), "{kind}: {kept}");
    }
}
