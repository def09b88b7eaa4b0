//! Attacker-chosen text must not change a verdict.
//!
//! The tests use each phrase that a rule or milestone recognizes, in all carriers by which such text reaches
//! a log without root. The machines have failed, succeeded or are still running.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod phrases;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fs, iter};

use landfall_diagnose::{Engine, RuleSet, Stream};
use landfall_model::Cause;
use landfall_model::report::State;
use serde::Deserialize;

use crate::phrases::phrases;

/// A log into which an attacker can write arbitrary text.
struct Carrier {
    name: &'static str,
    /// The file that contains the text; the base log if empty.
    file: &'static str,
    line: fn(&str) -> String,
}

const HEAD: &str = "Jan 02 03:09:00 n1";

const CARRIERS: &[Carrier] = &[
    Carrier {
        name: "ssh user",
        file: "",
        line: |p| format!("{HEAD} sshd[12]: Invalid user {p} from 192.0.2.1 port 4"),
    },
    Carrier {
        name: "ssh user, failed",
        file: "",
        line: |p| {
            format!(
                "{HEAD} sshd-session[12]: Failed password for invalid user {p} from 192.0.2.1 port 4 ssh2"
            )
        },
    },
    Carrier {
        name: "DHCP host name",
        file: "",
        line: |p| {
            format!(
                "{HEAD} NetworkManager[7]: <info>  [1767323345.1] dhcp4 (eth0): option host_name            => '{p}'"
            )
        },
    },
    Carrier {
        name: "host name set",
        file: "",
        line: |p| format!("{HEAD} systemd-hostnamed[7]: Hostname set to <{p}> (static)"),
    },
    Carrier {
        name: "cloud metadata host name",
        file: "/var/log/cloud-init.log",
        line: |p| {
            format!("2026-01-02 03:09:00,123 - cc_set_hostname.py[DEBUG]: Setting the hostname to {p} ({p})")
        },
    },
    Carrier {
        name: "cloud metadata host name, command",
        file: "/var/log/cloud-init.log",
        line: |p| {
            format!(
                "2026-01-02 03:09:00,123 - util.py[DEBUG]: Running command ['hostname', '{p}'] with allowed return codes [0]"
            )
        },
    },
    Carrier {
        name: "user agent in an access log",
        file: "/var/log/nginx/access.log",
        line: |p| {
            format!("192.0.2.1 - - [02/Jan/2026:03:09:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"{p}\"")
        },
    },
    Carrier {
        name: "user agent in the journal",
        file: "",
        line: |p| {
            format!(
                "{HEAD} haproxy[7]: 192.0.2.1:4 [02/Jan/2026:03:09:00.123] api api/m0 0/0/1/2/3 200 1 - - ---- {{{p}}} \"GET / HTTP/1.1\""
            )
        },
    },
    Carrier {
        name: "user agent in the API server's log",
        file: "/var/log/pods/kube-system_kube-apiserver-n1_8a7b/kube-apiserver/0.log",
        line: |p| {
            format!(
                "2026-01-02T03:09:00.123456789Z stderr F I0102 03:09:00.123456       1 httplog.go:132] \"HTTP\" verb=\"GET\" URI={p:?} latency=\"1ms\" userAgent={p:?} srcIP=\"192.0.2.1:4\" resp=401"
            )
        },
    },
    Carrier { name: "logger", file: "", line: |p| format!("{HEAD} alice[77]: {p}") },
    Carrier { name: "container on journald", file: "", line: |p| format!("{HEAD} 3f2a91bc77de[812]: {p}") },
    Carrier {
        name: "container on journald, second line",
        file: "",
        line: |p| format!("{HEAD} 3f2a91bc77de[812]: first\n                     {p}"),
    },
    Carrier {
        name: "sudo",
        file: "",
        line: |p| format!("{HEAD} sudo[77]:    alice : TTY=pts/0 ; PWD=/ ; USER=root ; COMMAND={p}"),
    },
    Carrier {
        name: "audit in the journal",
        file: "",
        line: |p| format!("{HEAD} audit[812]: EXECVE argc=1 a0=\"{p}\""),
    },
    Carrier {
        name: "audit file",
        file: "/var/log/audit/audit.log",
        line: |p| {
            format!(
                "type=USER_CMD msg=audit(1767323340.123:45): pid=1 uid=1000 msg='cwd=\"/\" cmd=\"{p}\" terminal=pts/0 res=failed'"
            )
        },
    },
    Carrier {
        name: "environment",
        file: "/var/log/cloud-init-output.log",
        line: |p| format!("HOSTNAME={p}"),
    },
    Carrier {
        name: "ps aux",
        file: "/var/log/cloud-init-output.log",
        line: |p| format!("alice       1234  0.0  0.1  12345  6789 ?        Ss   03:09   0:00 {p}"),
    },
    Carrier {
        name: "ps -ef",
        file: "/var/log/cloud-init-output.log",
        line: |p| format!("alice       1234       1  0 03:09 ?        00:00:00 {p}"),
    },
    Carrier {
        name: "file name",
        file: "/var/log/cloud-init-output.log",
        line: |p| format!("-rw-r--r-- 1 alice alice 0 Jan  2 03:09 {p}"),
    },
    Carrier {
        name: "environment, declare",
        file: "/var/log/cloud-init-output.log",
        line: |p| format!("declare -x host={p:?}"),
    },
    Carrier {
        name: "file name, find",
        file: "/var/log/cloud-init-output.log",
        line: |p| format!("/home/alice/{p}"),
    },
    Carrier {
        name: "file name, find -ls",
        file: "/var/log/cloud-init-output.log",
        line: |p| format!("   131074      4 -rw-r--r--   1 alice    alice    0 Jan  2 03:09 /home/alice/{p}"),
    },
    Carrier {
        name: "mount of a user",
        file: "",
        line: |p| format!("{HEAD} systemd[1]: Unmounted home-alice-x.mount - /home/alice/{p}."),
    },
    Carrier { name: "USB device", file: "", line: |p| format!("{HEAD} kernel: usb 1-1: Product: {p}") },
    Carrier {
        name: "event of a pod",
        file: "",
        line: |p| {
            format!(
                "{HEAD} kubelet[7]: I0102 03:09:00.123456       7 event.go:389] \"Event occurred\" object=\"default/web\" kind=\"Pod\" type=\"Warning\" reason=\"Failed\" message={p:?}"
            )
        },
    },
    Carrier {
        name: "command in a pod",
        file: "",
        line: |p| {
            format!(
                "{HEAD} kubelet[7]: E0102 03:09:00.123456       7 log.go:32] \"ExecSync cmd from runtime service failed\" err=\"command error\" containerID=\"3f2a\" cmd=[\"sh\",\"-c\",{p:?}]"
            )
        },
    },
    Carrier { name: "unit of a user", file: "", line: |p| format!("{HEAD} systemd[1234]: Started {p}.") },
    Carrier {
        name: "probe of a pod",
        file: "",
        line: |p| {
            format!(
                "{HEAD} kubelet[7]: I0102 03:09:00.123456       7 prober.go:107] \"Probe failed\" probeType=\"Liveness\" pod=\"default/web\" podUID=\"8a7b\" containerName=\"web\" probeResult=\"failure\" output={p:?}"
            )
        },
    },
    Carrier {
        name: "command of a pod",
        file: "",
        line: |p| {
            format!(
                "{HEAD} kubelet[7]: E0102 03:09:00.123456       7 pod_workers.go:1301] \"Error syncing pod, skipping\" err=\"failed to \\\"StartContainer\\\" for \\\"web\\\" with RunContainerError: \\\"exec: \\\\\\\"{p}\\\\\\\": executable file not found\\\"\" pod=\"default/web\" podUID=\"8a7b\""
            )
        },
    },
    Carrier {
        name: "pod of a workload",
        file: "/var/log/pods/default_web-1_8a7b/web/0.log",
        line: |p| format!("2026-01-02T03:09:00.123456789Z stdout F {p}"),
    },
    Carrier {
        name: "pod in a namespace that sounds like the cluster's",
        file: "/var/log/pods/kube-evil_web-1_8a7b/kubelet/0.log",
        line: |p| format!("2026-01-02T03:09:00.123456789Z stdout F {p}"),
    },
    Carrier {
        name: "journal entries in the log of a pod",
        file: "must-gather/namespaces/shop/pods/web-1/web/logs/current.log",
        line: |p| format!("{{\"_TRANSPORT\":\"kernel\",\"MESSAGE\":{p:?}}}"),
    },
    Carrier {
        name: "status of a pod in a bundle",
        file: "log-bundle-1/resources/pods.json",
        line: |p| format!("              \"message\": {p:?},"),
    },
    Carrier {
        name: "event of a workload in a bundle",
        file: "log-bundle-1/resources/events.json",
        line: |p| format!("      \"message\": {p:?},"),
    },
    Carrier {
        name: "container of a workload",
        file: "/var/log/containers/web-1_capi-evil_etcd-0123abcd.log",
        line: |p| format!("2026-01-02T03:09:00.123456789Z stdout F {p}"),
    },
];

/// The carriers of a file, in its format.
#[derive(Debug, Deserialize)]
struct Templates {
    carrier: Vec<Template>,
}

#[derive(Debug, Deserialize)]
struct Template {
    name: String,
    #[serde(default)]
    file: String,
    line: String,
}

struct Base {
    name: &'static str,
    log: &'static str,
    state: State,
}

const BASES: [Base; 3] = [
    Base {
        name: "failed",
        log: "Jan 02 03:04:05 n1 systemd[1]: Started kubelet.service - kubelet.\n\
              Jan 02 03:04:06 n1 kubelet[7]: E0102 03:04:06.678901       7 run.go:74] \"command failed\" err=\"failed to run Kubelet: running with swap on is not supported, please disable swap or set --fail-swap-on flag to false\"\n",
        state: State::Failed,
    },
    Base {
        name: "succeeded",
        log: "Jan 02 03:04:05 n1 systemd[1]: Started kubelet.service - kubelet.\n\
              Jan 02 03:04:06 n1 kubelet[7]: I0102 03:04:06.678901       7 kubelet_node_status.go:78] \"Successfully registered node\" node=\"n1\"\n\
              Jan 02 03:04:07 n1 kubelet[7]: I0102 03:04:07.678901       7 kubelet_node_status.go:501] \"Fast updating node status as it just became ready\"\n",
        state: State::Succeeded,
    },
    Base {
        name: "running",
        log: "Jan 02 03:04:05 n1 cloud-init[9]: Cloud-init v. 24.1 running 'modules:final' at Fri, 02 Jan 2026 03:04:05 +0000. Up 20.1 seconds.\n",
        state: State::Running,
    },
];

fn diagnose<'p>(
    engine: &Engine,
    base: &Base,
    file: &str,
    line: impl Fn(&str) -> String,
    phrases: impl IntoIterator<Item = &'p String>,
) -> (State, Option<Cause>) {
    let lines: String = phrases.into_iter().map(|phrase| line(phrase) + "\n").collect();
    let mut case = engine.open();
    let mut add = |name: &str, text: &str| {
        let stream = Stream::sniff(name, text.as_bytes());
        let source = case.add_source(name, stream.kind.name());
        case.add(source, engine.scan(&stream, 1, text.as_bytes()));
    };
    if file.is_empty() {
        add("journal.log", &format!("{}{lines}", base.log));
    } else {
        add("journal.log", base.log);
        add(file, &lines);
    }
    let verdict = case.finish().verdict;
    (verdict.state, verdict.cause)
}

/// Returns the verdicts that a carrier changes.
fn flips(
    engine: &Engine,
    phrases: &BTreeMap<String, BTreeSet<String>>,
    name: &str,
    file: &str,
    line: impl Fn(&str) -> String,
) -> Vec<String> {
    let mut flips = Vec::new();
    for base in &BASES {
        let expected = diagnose(engine, base, file, &line, [&"hello".to_owned()]);
        assert_eq!(expected.0, base.state, "{}, {name}", base.name);
        for phrases in phrases.values() {
            if diagnose(engine, base, file, &line, phrases) == expected {
                continue;
            }
            // Determines the responsible phrases.
            flips.extend(phrases.iter().filter_map(|phrase| {
                let got = diagnose(engine, base, file, &line, [phrase]);
                (got != expected).then(|| format!("{}, {name}: {phrase:?} gives {got:?}", base.name))
            }));
            flips.push(format!("{}, {name}: together", base.name));
        }
    }
    flips
}

#[test]
fn chosen_text_changes_no_verdict() {
    let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
    let phrases = phrases();
    let flips: Vec<String> = CARRIERS
        .iter()
        .flat_map(|carrier| flips(&engine, &phrases, carrier.name, carrier.file, carrier.line))
        .collect();
    assert!(flips.is_empty(), "{} flips:\n{}", flips.len(), flips.join("\n"));
}

#[test]
fn chosen_text_in_other_formats_changes_no_verdict() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/carriers.toml");
    let templates: Templates = toml::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
    let phrases = phrases();
    let of = |template: &Template| {
        flips(&engine, &phrases, &template.name, &template.file, |phrase| fill(&template.line, phrase))
    };
    let flips: Vec<String> = templates.carrier.iter().flat_map(of).collect();
    assert!(flips.is_empty(), "{} flips:\n{}", flips.len(), flips.join("\n"));
}

/// Replaces the tokens of a line with the phrase.
fn fill(line: &str, phrase: &str) -> String {
    let quoted = format!("{phrase:?}");
    let inner = |text: &str| text[1..text.len() - 1].to_owned();
    let escaped = |kept: &str, escape: fn(u8) -> String| -> String {
        let one = |byte: u8| {
            let is_kept = byte.is_ascii_alphanumeric() || kept.contains(char::from(byte));
            if is_kept { char::from(byte).to_string() } else { escape(byte) }
        };
        phrase.bytes().map(one).collect()
    };
    let tokens = [
        ("{p}", phrase.to_owned()),
        ("{e}", inner(&quoted)),
        ("{qq}", inner(&format!("{quoted:?}"))),
        ("{q}", quoted),
        ("{comm}", phrase.chars().take(15).collect()),
        ("{p8}", phrase.chars().take(8).collect()),
        ("{p16}", phrase.chars().take(16).collect()),
        ("{path}", escaped(":_.", |byte| format!("\\x{byte:02x}"))),
        ("{dns}", escaped("-_.", |byte| format!("\\{byte:03}"))),
    ];
    // Tokens in the phrase itself must not be replaced: each token is replaced with a placeholder first.
    let marks = || iter::successors(Some('\u{e000}'), |mark| char::from_u32(u32::from(*mark) + 1));
    let marked = marks()
        .zip(&tokens)
        .fold(line.to_owned(), |line, (mark, (token, _))| line.replace(token, &mark.to_string()));
    marks().zip(&tokens).fold(marked, |line, (mark, (_, value))| line.replace(mark, value))
}
