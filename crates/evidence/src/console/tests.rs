use std::sync::LazyLock;

use landfall_diagnose::{Engine, RuleSet};
use landfall_model::envelope::{ReportId, Signature};
use landfall_model::identity::NodeIdentity;
use landfall_model::report::Report;
use proptest::prelude::*;

use super::*;

const LINE: &str = "Jan 02 03:04:05 n1 kubeadm[7]: error execution phase preflight: couldn't validate the identity of \
                    the API Server: Get \"https://api.c1.example:6443/\": dial tcp: lookup api.c1.example on \
                    10.0.0.2:53: no such host";

fn report(line: &str) -> Report {
    let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
    let mut case = engine.open();
    let stream = landfall_diagnose::Stream::sniff("journal", line.as_bytes());
    let source = case.add_source("journal", "journal-text");
    case.add(source, engine.scan(&stream, 1, line.as_bytes()));
    case.finish()
}

fn message(number: u8) -> ReportMessage {
    static FIRST: LazyLock<ReportMessage> = LazyLock::new(first);
    let id = ReportId::new(FIRST.time, [number; 10]);
    ReportMessage { id, sequence: number.into(), ..FIRST.clone() }
}

fn first() -> ReportMessage {
    let time = "2026-01-02T03:04:05Z".parse().unwrap();
    ReportMessage {
        id: ReportId::new(time, [0; 10]),
        node: NodeIdentity {
            hostname: "n1".to_owned(),
            machine_id: None,
            boot_id: Some("b1".to_owned()),
            os: None,
            architecture: None,
            provider_id: None,
        },
        boot_number: None,
        sequence: 0,
        time,
        report: report(LINE),
    }
}

/// Returns an envelope whose payload differs in its layout from one that is serialized again.
fn envelope(message: &ReportMessage) -> Envelope {
    let signatures = vec![Signature { keyid: "00".repeat(32), sig: vec![0x11; 64] }];
    Envelope { signatures, ..Envelope::unsigned(format!("{} \n", json(message)).into_bytes()) }
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap()
}

fn framed(message: &ReportMessage) -> String {
    frame(json(&envelope(message)).as_bytes()).unwrap()
}

fn records(console: &[u8]) -> Vec<Record> {
    let mut tap = Tap::new(console);
    io::copy(&mut tap, &mut io::sink()).unwrap();
    tap.finish().collect()
}

fn found(console: &[u8]) -> Vec<ReportMessage> {
    records(console).into_iter().map(|record| record.message).collect()
}

#[test]
fn a_report_is_read_as_it_was_written() {
    let sent = message(1);
    let text = framed(&sent);
    assert!(text.lines().all(|line| line.len() <= 200), "{text}");
    assert_eq!(records(text.as_bytes())[0].envelope, envelope(&sent), "to the byte, as it was signed");
    assert_eq!(found(text.as_bytes()), std::slice::from_ref(&sent));
    assert!(found(&text.as_bytes()[..text.len() / 2]).is_empty());
    // As written by a terminal, after other output, with colors.
    let console = format!("[ 12.5] eth0: up\r\n\x1b[0;31m{}\x1b[0m login: ", text.replace('\n', "\r\n"));
    assert_eq!(found(console.as_bytes()), [sent]);
}

#[test]
fn repetitions_make_up_for_lines_that_were_written_into() {
    let sent = message(1);
    let text = framed(&sent);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() > 5, "the report is too short for this test");
    let mut console = String::new();
    for spoilt in [2, 3] {
        for (number, line) in lines.iter().enumerate() {
            console += &if number == spoilt {
                format!("{}[   99.1] oom-killer\r\n{}\r\n", &line[..40], &line[40..])
            } else {
                format!("{line}\r\n")
            };
        }
    }
    assert_eq!(found(console.as_bytes()), std::slice::from_ref(&sent));
    // One repetition is incomplete, and lines with wrong checksums are rejected.
    assert!(found(&console.as_bytes()[..console.len() / 2]).is_empty());
}

#[test]
fn the_last_64_kib_of_a_console_hold_a_whole_report() {
    let sent = message(1);
    let text = framed(&sent);
    let mut console = Vec::new();
    // Between two repetitions other programs may write half of the capture.
    for round in 0..12 {
        console.extend(text.as_bytes());
        for line in 0..400 {
            console.extend(
                format!("[{round:5}.{line:06}] some driver: says something every now and then\r\n").bytes(),
            );
        }
    }
    for cut in [0, 1, 777, 5000, 9999] {
        let window = &console[..console.len() - cut];
        let window = &window[window.len() - (64 << 10)..];
        assert_eq!(found(window), std::slice::from_ref(&sent), "cut {cut}");
    }
}

#[test]
fn what_does_not_fit_is_cut_to_what_matters() {
    let mut sent = message(1);
    let long: Vec<String> = (0..4000_u64)
        .map(|number| {
            format!(
                "{:x}{:x}",
                number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                number.wrapping_mul(0xc2b2_ae3d_27d4_eb4f)
            )
        })
        .collect();
    sent.report.findings[0].evidence[0].after.clone_from(&long);
    let text = framed(&sent);
    assert!(text.len() <= 16 << 10, "{}", text.len());
    let Record { message: read, envelope } = records(text.as_bytes()).remove(0);
    assert_eq!(read.report.verdict, sent.report.verdict);
    assert_eq!(read.report.findings.len(), 1);
    assert_eq!((envelope.signatures, read.id), (Vec::new(), sent.id), "what was cut is not signed");

    sent.report.findings[0].evidence[0].text = long.concat();
    let read = found(framed(&sent).as_bytes()).remove(0);
    assert_eq!(read.report.verdict, sent.report.verdict);
    assert!(read.report.findings.is_empty());
}

#[test]
fn the_lines_of_a_record_lead_to_its_verdict() {
    let record = Record { message: message(1), envelope: envelope(&message(1)) };
    assert_eq!(report(&record.lines()).verdict, record.message.report.verdict);
}

#[test]
fn frames_quoted_by_a_program_are_rejected() {
    let sent = message(1);
    let text = framed(&sent);
    let behind = |prefix: &str| -> String { text.lines().map(|line| format!("{prefix}{line}\n")).collect() };
    for prefix in ["2026-01-02T03:04:05.123456Z ", "[2026-01-02 03:04:05] ", "[   12.345678] "] {
        assert_eq!(found(behind(prefix).as_bytes()), std::slice::from_ref(&sent), "{prefix}");
    }
    for prefix in [
        "Jan 02 03:09:00 n1 sshd[12]: Invalid user ",
        "Jan 02 03:09:00 n1 alice[77]: ",
        "2026-01-02T03:09:00.123456789Z stdout F ",
        "192.0.2.1 - - [02/Jan/2026:03:09:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"",
    ] {
        assert!(found(behind(prefix).as_bytes()).is_empty(), "{prefix}");
    }
}

#[test]
fn many_reports_are_bounded_and_the_latest_stay() {
    let console: String = (0..40).map(|number| framed(&message(number))).collect();
    let sequences: Vec<u64> = found(console.as_bytes()).iter().map(|message| message.sequence).collect();
    assert_eq!(sequences, (24..40).collect::<Vec<u64>>());
}

#[test]
fn a_few_lines_do_not_unpack_to_more_than_a_report_has() {
    let mut sent = message(1);
    let step = "again and again ".to_owned();
    sent.report.next_steps = vec![step.clone(); 50 << 10];
    assert_eq!(found(framed(&sent).as_bytes()).len(), 1);
    sent.report.next_steps = vec![step; 64 << 10];
    let text = framed(&sent);
    assert!(text.len() < 4 << 10, "{}", text.len());
    assert!(found(text.as_bytes()).is_empty());
}

/// Returns at most the given number of bytes per read.
struct Dripping<'a>(&'a [u8], usize);

impl Read for Dripping<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.1.min(buffer.len()).min(self.0.len());
        buffer[..count].copy_from_slice(&self.0[..count]);
        self.0 = &self.0[count..];
        Ok(count)
    }
}

proptest! {
    #[test]
    fn how_the_bytes_arrive_does_not_matter(step in 1_usize..3000, noise in "[@landfall/1 \n]{0,40}") {
        let text = framed(&message(1));
        let console = format!("{noise}{}{noise}", text.replace('\n', &format!("\n{noise}\n")));
        let mut tap = Tap::new(Dripping(console.as_bytes(), step));
        let mut through = Vec::new();
        tap.read_to_end(&mut through).unwrap();
        prop_assert_eq!(through, console.as_bytes());
        prop_assert_eq!(tap.finish().count(), 1);
    }
}
