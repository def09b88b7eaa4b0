//! Scanning: chunks, bounds and hostile bytes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::LazyLock;

use landfall_diagnose::{Case, Engine, RuleSet, Stream};
use landfall_model::report::Report;

/// Enough to prove a bound, small enough for a test.
const MANY: usize = 200_000;

fn engine() -> &'static Engine {
    static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::new(RuleSet::embedded().unwrap()).unwrap());
    &ENGINE
}

fn add_chunks<'c>(engine: &Engine, case: &mut Case<'_>, chunks: impl IntoIterator<Item = &'c [u8]>) {
    let source = case.add_source("log", "text");
    let mut line = 1;
    for chunk in chunks {
        case.add(source, engine.scan(&Stream::default(), line, chunk));
        line += memchr::memchr_iter(b'\n', chunk).count() as u64;
    }
}

fn diagnose(engine: &Engine, bytes: &[u8]) -> Report {
    let mut case = engine.open();
    add_chunks(engine, &mut case, [bytes]);
    case.finish()
}

/// Returns the next number of a deterministic generator, so that failures can be reproduced.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn one_chunk_and_many_chunks_agree() {
    let engine = engine();
    let lines = [
        "Jan 02 03:04:05 n1 kubelet[1]: running with swap on is not supported",
        "plain text",
        "",
        "dial tcp: lookup api.c1.example on 10.0.0.2:53: no such host",
        "I0102 03:04:05.000000 1 kubelet.go:1] \"Successfully registered node\" node=\"n1\"",
        "	[ERROR Port-10250]: Port 10250 is in use",
        "2026-01-02T03:04:05Z write /x: no space left on device",
        "connection refused https://10.0.0.1:6443/api/v1/nodes",
    ];
    let mut state = 7;
    for round in 0..200 {
        let mut bytes = Vec::new();
        let mut ends = vec![0];
        for _ in 0..next(&mut state) % 60 {
            let index = usize::try_from(next(&mut state)).unwrap() % lines.len();
            bytes.extend_from_slice(lines[index].as_bytes());
            bytes.push(b'\n');
            if next(&mut state).is_multiple_of(4) {
                ends.push(bytes.len());
            }
        }
        ends.push(bytes.len());
        let mut case = engine.open();
        add_chunks(engine, &mut case, ends.windows(2).map(|pair| &bytes[pair[0]..pair[1]]));
        assert_eq!(case.finish(), diagnose(engine, &bytes), "round {round}");
    }
}

#[test]
fn line_numbers_count_every_line() {
    let report = diagnose(engine(), b"\n\nx\r\nrunning with swap on is not supported\r\n\nlast");
    assert_eq!(report.findings[0].evidence[0].line, 4);
    assert_eq!(report.findings[0].evidence[0].text, "running with swap on is not supported");
    assert_eq!(report.sources[0].lines, 6);
}

#[test]
fn a_flood_of_matching_lines_leaves_bounded_evidence() {
    let line = "running with swap on is not supported\n";
    let report = diagnose(engine(), line.repeat(MANY).as_bytes());
    assert_eq!(report.verdict.cause.unwrap().as_str(), "swap-enabled");
    assert!(report.findings[0].evidence.len() <= 6);
    assert_eq!(report.findings[0].evidence[0].line, MANY as u64, "the last line is among them");
    assert_eq!(report.sources[0].lines, MANY as u64);
}

#[test]
fn one_line_full_of_matches_is_read_in_linear_time() {
    let bytes = "connection refused https://10.0.0.1:6443/api ".repeat(MANY / 8);
    let report = diagnose(engine(), bytes.as_bytes());
    assert_eq!(report.sources[0].lines, 1);
    assert!(report.findings[0].evidence[0].text.len() < 2048);
}

#[test]
fn foreign_bytes_do_no_harm() {
    let engine = engine();
    let mut state = 3;
    let mut bytes: Vec<u8> = (0..1 << 18).map(|_| next(&mut state).to_le_bytes()[0]).collect();
    bytes.extend_from_slice(b"\n\0\0running with swap on is not supported\xff\xfe\x1b[31m\n");
    let report = diagnose(engine, &bytes);
    assert_eq!(report.verdict.cause.as_ref().unwrap().as_str(), "swap-enabled");
    let text = &report.findings[0].evidence[0].text;
    assert!(text.chars().all(|c| !c.is_control()), "{text:?}");
}

#[test]
fn cut_heads_are_no_times() {
    let engine = engine();
    let line = "2026-01-02T03:04:05.123+01:00 host kubelet[12]: E0102 03:04:05.678901 1 a.go:1] running with swap on is not supported";
    for end in 0..line.len() {
        let report = diagnose(engine, &line.as_bytes()[..end]);
        assert!(report.sources[0].lines <= 1);
    }
}

#[test]
fn a_bad_rule_file_is_refused_with_its_name() {
    let causes = include_str!("../../../rules/causes.toml");
    let sources = include_str!("../../../rules/sources.toml");
    let head = "[[rule]]\nid = \"r\"\nstrength = \"fair\"\n";
    let rule = |body: &str| format!("{head}sources = [\"kubelet\"]\n{body}\n");
    let parse = |text: &str| {
        let files = [("causes.toml", causes), ("sources.toml", sources), ("extra.toml", text)];
        RuleSet::parse(files).unwrap_err().to_string()
    };
    for (body, complaint) in [
        ("cause = \"disk-full\"\nmatch.any = [\"abcdef\"]", "`r` cannot be matched"),
        ("cause = \"disk-full\"\nmatch.any = []", "`r` cannot be matched"),
        ("cause = \"disk-full\"\nmatch.any = [\"abcdefg\"]\nmatch.regex = '('", "`r` cannot be matched"),
        ("cause = \"no-such-cause\"\nmatch.any = [\"abcdefg\"]", "names `no-such-cause`"),
        ("cause = \"disk-full\"\nmatch.any = [\"abcdefg\"]\ncleared_by = [\"nothing\"]", "names `nothing`"),
        ("cause = \"disk-full\"\nmatch.any = [\"abcdefg\"]\ncolour = 1", "`extra.toml` is not a rule file"),
    ] {
        let error = parse(&rule(body));
        assert!(error.contains(complaint), "{body}: {error}");
    }
    // Sources must be declared and must exist.
    let line = "cause = \"disk-full\"\nmatch.any = [\"abcdefg\"]";
    let error = parse(&format!("{head}{line}\n"));
    assert!(error.contains("`r` declares no `sources`"), "{error}");
    let error = parse(&format!("{head}sources = [\"nobody\"]\n{line}\n"));
    assert!(error.contains("names `nobody`"), "{error}");
    let error = parse(&rule("cause = \"disk-full\""));
    assert!(error.contains("either `match` or `fact`"), "{error}");
}
