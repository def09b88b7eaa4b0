use super::*;

fn time_of(line: &str) -> Option<String> {
    head(line.as_bytes()).time.map(|time| match time {
        Time::Full(_) => time.timestamp().unwrap().to_string(),
        Time::Yearless(_) => format!("yearless {}", time.in_year(2026).timestamp().unwrap()),
        Time::Uptime(micros) => format!("up {micros}"),
    })
}

#[test]
fn times_of_every_known_head() {
    let table = [
        ("2026-01-02T03:04:05.5Z text", "2026-01-02T03:04:05.5Z"),
        ("2026-01-02T03:04:05+0100 host kubelet[1]: x", "2026-01-02T02:04:05Z"),
        ("2026-01-02T03:04:05-01:30 host kubelet[1]: x", "2026-01-02T04:34:05Z"),
        ("2026-01-02 03:04:05,123 - util.py[DEBUG]: x", "2026-01-02T03:04:05.123Z"),
        ("[CLOUDINIT]2026-01-28 10:40:29,470 - handlers.py[DEBUG]: x", "2026-01-28T10:40:29.47Z"),
        ("[2026-06-01 21:08:13] [preflight] x", "2026-06-01T21:08:13Z"),
        ("2026/01/02 03:04:05 etcd: x", "2026-01-02T03:04:05Z"),
        ("Jan  2 03:04:05 host kubelet[12]: x", "yearless 2026-01-02T03:04:05Z"),
        ("Jan 12 03:04:05.123456 host kubelet[12]: x", "yearless 2026-01-12T03:04:05.123456Z"),
        ("E0102 03:04:05.678901    1234 server.go:1] x", "yearless 2026-01-02T03:04:05.678901Z"),
        ("[   12.345678] systemd[1]: x", "up 12345678"),
        ("Jan 2 03:04:05 host kubelet[12]: x", "yearless 2026-01-02T03:04:05Z"),
        ("[Fri Jan  2 03:04:05 2026] systemd[1]: x", "2026-01-02T03:04:05Z"),
        ("Fri 2026-01-02 03:04:05 UTC host kubelet[12]: x", "2026-01-02T03:04:05Z"),
        ("10月 01 12:34:47 host kubelet[12]: x", "yearless 2026-10-01T12:34:47Z"),
        ("time=\"2026-01-02T03:04:05Z\" level=info msg=\"x\"", "2026-01-02T03:04:05Z"),
        ("{\"level\":\"warn\",\"ts\":\"2026-01-02T03:04:05.000Z\",\"msg\":\"x\"}", "2026-01-02T03:04:05Z"),
        (
            "Jan 02 03:04:05 host k3s[1]: time=\"2026-01-02T03:04:06Z\" level=fatal msg=\"x\"",
            "2026-01-02T03:04:06Z",
        ),
        (
            "2026-01-02T03:04:05.123456789Z stderr F E0102 03:04:06.000000 1 a.go:1] x",
            "2026-01-02T03:04:05.123456Z",
        ),
        ("+++ [2026-01-01T00:00:00+00:00] running", "2026-01-01T00:00:00Z"),
    ];
    for (line, expected) in table {
        assert_eq!(time_of(line).as_deref(), Some(expected), "{line}");
    }
}

#[test]
fn what_is_no_time_is_left_alone() {
    for line in [
        "",
        "[preflight] Running",
        "E0102",
        "Jan",
        "[",
        "2026-13-45T99:99:99Z",
        "[  .1]",
        "I1399 99:99:99.1 x",
    ] {
        assert_eq!(time_of(line), None, "{line}");
    }
}

#[test]
fn the_process_is_named() {
    for (line, process) in [
        ("Jan  2 03:04:05 host kubelet[12]: x", "kubelet"),
        ("2026-01-02T03:04:05+0100 host systemd[1]: x", "systemd"),
        ("[   12.345678] ignition[612]: x", "ignition"),
        ("[   12.345678] cloud-init[612]: x", "cloud-init"),
    ] {
        assert_eq!(head(line.as_bytes()).process, Some(process), "{line}");
    }
}

#[test]
fn what_follows_the_head_keeps_its_indentation() {
    for (line, message, begins) in [
        ("Jan  2 03:04:05 host cloud-init[12]:   File \"x\"", "  File \"x\"", false),
        ("2026-01-02T03:04:05.5Z stderr F   main.go:1", "  main.go:1", false),
        ("[2026-06-01 21:08:13] \t[ERROR Swap]: x", "\t[ERROR Swap]: x", false),
        ("\t[ERROR Swap]: x", "\t[ERROR Swap]: x", false),
        ("2026-01-02 03:04:05,123 - util.py[DEBUG]: x", "- util.py[DEBUG]: x", true),
        ("E0102 03:04:05.678901    1234 server.go:1] x", "    1234 server.go:1] x", true),
        ("[   12.345678] ignition[612]: x", "x", false),
        ("plain", "plain", false),
    ] {
        let head = head(line.as_bytes());
        assert_eq!(
            (String::from_utf8_lossy(head.message).as_ref(), head.begins),
            (message, begins),
            "{line}"
        );
    }
}

#[test]
fn message_begins_after_every_known_head() {
    for line in [
        "TEXT",
        "Jan  2 03:04:05 host kubelet[12]: TEXT",
        "Jan  2 03:04:05 host kubelet[12]: I0102 03:04:05.678901      12 server.go:1] \"TEXT\" node=\"n1\"",
        "I0102 03:04:05.678901      12 server.go:1] TEXT",
        "2026-01-02T03:04:05.123456789Z stderr F I0102 03:04:06.000000 1 a.go:1] TEXT",
        "2026-01-02 03:04:05.514330 I | etcdmain: TEXT",
        "Jan 02 03:04:05 host k3s[1]: time=\"2026-01-02T03:04:06Z\" level=info msg=\"TEXT\"",
        "time=\"2026-01-02T03:04:06Z\" level=info msg=TEXT",
        "{\"level\":\"info\",\"ts\":\"2026-01-02T03:04:05Z\",\"caller\":\"a.go:1\",\"msg\":\"TEXT\"}",
        "[   12.345678] TEXT",
        "[  OK  ] TEXT",
        "systemd[1]: TEXT",
        "kubelet: I0102 03:04:05.678901      12 server.go:1] TEXT",
    ] {
        let message = message(line.as_bytes());
        assert!(message.starts_with(b"TEXT"), "{line}: {}", String::from_utf8_lossy(message));
    }
}

#[test]
fn cloud_init_says_when_it_speaks() {
    let line = b"Cloud-init v. 24.1 running 'init' at Thu, 01 Jan 2026 01:00:12 +0100. Up 12.1 seconds.";
    assert_eq!(spoken_time(line).unwrap().timestamp().unwrap().to_string(), "2026-01-01T00:00:12Z");
    for end in 0..60 {
        assert_eq!(spoken_time(&line[..end]), None, "{end}");
    }
}

#[test]
fn the_head_of_a_journal_tells_its_year() {
    let line = b"-- Logs begin at Fri 2025-12-31 10:00:00 UTC, end at Fri 2026-01-02 03:04:05 UTC. --";
    assert_eq!(journal_end(line).and_then(Time::year), Some(2026));
    assert_eq!(
        journal_end(b"-- Journal begins at Fri 2025-12-31 10:00:00 UTC. --").and_then(Time::year),
        Some(2025)
    );
    assert_eq!(journal_end(b"2026-01-02T03:04:05Z x"), None);
}

#[test]
fn informational_lines_are_known() {
    assert!(head(b"I0102 03:04:05.678901 1 a.go:1] x").informational);
    assert!(head(b"time=\"2026-01-02T03:04:05Z\" level=info msg=x").informational);
    assert!(!head(b"E0102 03:04:05.678901 1 a.go:1] x").informational);
}

#[test]
fn messages_continue_after_the_unit_or_device() {
    for (message, rest) in [
        ("kubelet.service: Failed with result 'oom-kill'.", "Failed with result 'oom-kill'."),
        ("EXT4-fs (sda1): Remounting", "Remounting"),
        ("EXT4-fs error (device sda1): x: y", "x: y"),
        ("<warn>  [1767323345.1] dhcp4 (eth0): request timed out", "request timed out"),
        ("<warn>  [1767323345.1] text", "text"),
    ] {
        assert_eq!(&message[subject(message.as_bytes())..], rest);
    }
    for message in ["Started run-u1.service - x: y", "9pnet Could: x", "Started error: x", "(x", ""] {
        assert_eq!(subject(message.as_bytes()), 0, "{message}");
    }
}

#[test]
fn reports_of_cloud_init_are_recognized() {
    for (line, expected, subject) in [
        ("2026-01-02 03:09:00,123 - cc_locale.py[DEBUG]: Setting locale to x", true, "Setting locale to x"),
        ("cc_locale.py[INFO]: Setting locale to x", true, "Setting locale to x"),
        ("2026-01-02 03:09:00,123 - util.py[WARNING]: Failed running x", false, "Failed running x"),
        (
            "2026-01-02 03:09:00,123 - handlers.py[DEBUG]: finish: init: SUCCESS: x",
            false,
            "finish: init: SUCCESS: x",
        ),
        ("kubelet: Started", false, "kubelet: Started"),
    ] {
        let message = message(line.as_bytes());
        assert_eq!(is_report_of_cloud_init(message), expected, "{line}");
        if line.contains(".py[") {
            assert_eq!(String::from_utf8_lossy(&message[super::subject(message)..]), subject, "{line}");
        }
    }
}
