//! Attacker-chosen text must not change the verdict about a journal.
//!
//! The tests write all phrases that a rule or milestone recognizes into real journal files. They use all kinds
//! of entries through which such text reaches a journal without root.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod carriers;
#[path = "../machine/mod.rs"]
mod machine;
#[path = "../../../diagnose/tests/phrases/mod.rs"]
mod phrases;
mod writer;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use landfall_diagnose::{Engine, RuleSet};
use landfall_evidence::read::{self, Input};
use landfall_model::Cause;
use landfall_model::report::{State, Trust};
use landfall_testkit::{Need, have};

use self::carriers::{CARRIERS, CLOUD_INIT, Carrier, KUBELET, SYSTEMD};
use self::machine::Machine;
use self::phrases::phrases;
use self::writer::Writer;

const REMOTE: &str = "/usr/lib/systemd/systemd-journal-remote";

const MACHINE_ID: &str = "0123456789abcdef0123456789abcdef";

/// Microseconds from the base machine's entries to the first entry with chosen text.
const LATER: u64 = 300_000_000;

/// Approximate number of entries per journal.
const ENTRIES: usize = 20_000;

struct Base {
    name: &'static str,
    entries: &'static [(Writer, &'static str)],
    state: State,
}

const BASES: [Base; 3] = [
    Base {
        name: "failed",
        entries: &[
            (SYSTEMD, "Started kubelet.service - kubelet."),
            (
                KUBELET,
                "E0102 03:04:06.678901       7 run.go:74] \"command failed\" err=\"failed to run Kubelet: running with swap on is not supported, please disable swap or set --fail-swap-on flag to false\"",
            ),
        ],
        state: State::Failed,
    },
    Base {
        name: "succeeded",
        entries: &[
            (SYSTEMD, "Started kubelet.service - kubelet."),
            (
                KUBELET,
                "I0102 03:04:06.678901       7 kubelet_node_status.go:78] \"Successfully registered node\" node=\"n1\"",
            ),
            (
                KUBELET,
                "I0102 03:04:07.678901       7 kubelet_node_status.go:501] \"Fast updating node status as it just became ready\"",
            ),
        ],
        state: State::Succeeded,
    },
    Base {
        name: "running",
        entries: &[(
            CLOUD_INIT,
            "Cloud-init v. 24.1 running 'modules:final' at Fri, 02 Jan 2026 03:04:05 +0000. Up 20.1 seconds.",
        )],
        state: State::Running,
    },
];

type Verdict = (State, Option<Cause>, Trust);

/// The format in which entries are read.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    JournalFile,
    /// Much faster, and subject to the same rules.
    Export,
    /// The journal as text in a bundle, without journald's fields.
    Bundle,
}

/// The entries written after those of a base machine: each phrase in each carrier.
#[derive(Clone, Copy, Debug)]
struct Attack<'a> {
    carriers: &'a [Carrier],
    phrases: &'a [String],
}

fn diagnose(engine: &Engine, form: Form, base: &Base, attack: Attack<'_>) -> Verdict {
    let mut export = Vec::new();
    for (number, (writer, message)) in (0..).zip(base.entries) {
        writer.entry(number * 1_000_000, message, &[], &mut export);
    }
    let mut number = LATER;
    for carrier in attack.carriers {
        for phrase in attack.phrases {
            carrier.entry(number, phrase, &mut export);
            number += 1;
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let mut journal = folder.path().join("entries.export");
    fs::write(&journal, export).unwrap();
    if form == Form::JournalFile {
        let file = folder.path().join("system.journal");
        convert(&journal, &file);
        journal = file;
    }
    if form == Form::Bundle {
        let machine = Machine::new();
        machine.file("etc/machine-id", MACHINE_ID);
        let file = machine.root.path().join("var/log/journal").join(MACHINE_ID).join("system.journal");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        convert(&journal, &file);
        journal = folder.path().join("bundle.tar.gz");
        fs::write(&journal, machine.collect().packed).unwrap();
    }
    let report = read::diagnose(engine, vec![Input::Path(journal)], &|_| {}).unwrap();
    (report.verdict.state, report.verdict.cause, report.verdict.trust)
}

/// Creates a journal file with systemd from entries in the export format.
fn convert(from: &Path, to: &Path) {
    let output = Command::new(REMOTE)
        .args(["--split-mode=none", "--compress=false", "--output"])
        .arg(to)
        .arg("-")
        .stdin(File::open(from).unwrap())
        .stdout(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the verdict changes of an attack in a format, each with one carrier and a minimal set of phrases
/// that cause it.
fn flips(engine: &Engine, form: Form, base: &Base, attack: Attack<'_>, expected: &Verdict) -> Vec<String> {
    let verdict = |attack| diagnose(engine, form, base, attack);
    let is_flip = |attack| verdict(attack) != *expected;
    let each = attack.carriers.iter().map(|carrier| Attack { carriers: slice::from_ref(carrier), ..attack });
    let flips = each.filter(|attack| is_flip(*attack)).map(|mut attack| {
        while attack.phrases.len() > 1 {
            let (first, second) = attack.phrases.split_at(attack.phrases.len() / 2);
            let halves = [first, second].map(|phrases| Attack { phrases, ..attack });
            let Some(half) = halves.into_iter().find(|half| is_flip(*half)) else { break };
            attack = half;
        }
        let name = attack.carriers.first().map(|carrier| carrier.name);
        format!("{}, {name:?}: {:?} gives {:?}", base.name, attack.phrases, verdict(attack))
    });
    let flips: Vec<String> = flips.collect();
    if flips.is_empty() { vec![format!("{}: {attack:?} together", base.name)] } else { flips }
}

#[test]
fn chosen_text_in_a_journal_changes_no_verdict() {
    attack(Form::JournalFile, Form::Export);
}

#[test]
fn chosen_text_in_a_bundle_changes_no_verdict() {
    attack(Form::Bundle, Form::Bundle);
}

/// Writes each phrase with each carrier to machines and reads them in one format.
///
/// Verdict changes are reduced in another format, which may be faster.
fn attack(form: Form, explained_in: Form) {
    if !have(&[Need::Program(REMOTE)]) {
        return;
    }
    let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
    let mut phrases: Vec<Vec<String>> =
        phrases().into_values().map(|phrases| phrases.into_iter().collect()).collect();
    // The carriers themselves must not change a verdict either.
    phrases.push(vec!["hello".to_owned()]);
    let attacks: Vec<Attack<'_>> = phrases
        .iter()
        .flat_map(|phrases| {
            let groups = CARRIERS.chunks((ENTRIES / phrases.len()).max(1));
            groups.map(move |carriers| Attack { carriers, phrases })
        })
        .collect();
    let tasks: Vec<(&Base, Attack<'_>)> =
        BASES.iter().flat_map(|base| attacks.iter().map(move |attack| (base, *attack))).collect();
    let expected = BASES.each_ref().map(|base| {
        let verdict = diagnose(&engine, form, base, Attack { carriers: &[], phrases: &[] });
        assert_eq!(verdict.0, base.state, "{}", base.name);
        (base.state, verdict)
    });
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((base, attack)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Some((_, expected)) = expected.iter().find(|(state, _)| *state == base.state) else {
                continue;
            };
            if diagnose(&engine, form, base, *attack) != *expected {
                let mut flips = flips(&engine, explained_in, base, *attack, expected);
                found.lock().unwrap_or_else(PoisonError::into_inner).append(&mut flips);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            scope.spawn(work);
        }
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(found.is_empty(), "{} flips:\n{}", found.len(), found.join("\n"));
}
