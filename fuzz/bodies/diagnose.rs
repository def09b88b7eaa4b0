//! Body of the `diagnose_lines` target.

use std::sync::LazyLock;

use landfall_diagnose::present::{self, Size};
use landfall_diagnose::{Engine, RuleSet, Stream};

static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    Engine::new(RuleSet::embedded().expect("the rules are part of the program"))
        .expect("the rules are part of the program")
});

/// Any bytes: no panic, bounded evidence, and valid output in all formats.
pub(crate) fn lines(bytes: &[u8]) {
    let stream = Stream::sniff("fuzz.log", bytes);
    let mut case = ENGINE.open();
    let source = case.add_source("fuzz.log", stream.kind.name());
    case.add(source, ENGINE.scan(&stream, 1, bytes));
    let report = case.finish();
    assert_eq!(report.sources[0].bytes, bytes.len() as u64);
    for finding in &report.findings {
        assert!(finding.evidence.len() <= 6);
        for evidence in &finding.evidence {
            assert!(
                evidence.line >= 1 && evidence.line <= report.sources[0].lines.max(1) || is_records(&stream)
            );
            let texts =
                evidence.before.iter().chain(&evidence.after).chain([&evidence.text, &evidence.focus]);
            assert!(texts.clone().all(|text| text.len() < 4096 && !text.chars().any(char::is_control)));
        }
    }
    for width in [1, 80] {
        let screen = present::plain(&present::screen(&report, Size { width, height: 24 }));
        assert!(screen.lines().all(|line| line.chars().count() <= width.max(40)));
    }
    assert!(!present::html(&report).contains("<script"));
    assert!(present::markdown(&report).starts_with("## "));
}

/// Stage records are converted to separate lines, whose number differs from that of the file's lines.
fn is_records(stream: &Stream) -> bool {
    stream.kind == landfall_diagnose::StreamKind::ServiceRecords
}
