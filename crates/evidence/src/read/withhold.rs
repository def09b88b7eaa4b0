//! Cleaning of reports.
//!
//! A report is shown on terminals, pasted into issues and forwarded, so neither quoted lines nor file names
//! may contain secrets or control sequences.

use landfall_model::report::{Evidence, Report};
use landfall_redact::{Options, Redactor};

/// Replaces a line that may belong to a secret.
const WITHHELD: &str = "***WITHHELD:context***";

/// Minimum length of lines of encoded text.
const ENCODED_MIN: usize = 40;

/// Cleans all texts of a report that come from its inputs.
///
/// A redactor with a machine's own secrets removes them by value; any other redactor removes secrets by form.
pub fn clean_with(report: &mut Report, redactor: &Redactor) {
    let redact = |text: &str| {
        let (redacted, _) = redactor.redact(text.as_bytes(), Options::default());
        String::from_utf8_lossy(&redacted).into_owned()
    };
    let clean = |text: &mut String| *text = shown(&redact(text));
    clean(&mut report.verdict.title);
    for finding in &mut report.findings {
        clean(&mut finding.title);
        clean(&mut finding.fix);
        finding.ruled_out.iter_mut().for_each(clean);
        finding.nodes.iter_mut().for_each(clean);
        finding.evidence.iter_mut().for_each(|evidence| clean_evidence(evidence, &redact));
    }
    report.last_seen.iter_mut().for_each(|evidence| clean_evidence(evidence, &redact));
    if let Some(reasoning) = &mut report.reasoning {
        reasoning.verdict.iter_mut().chain(&mut reasoning.versions).for_each(clean);
        for finding in &mut reasoning.findings {
            for line in &mut finding.lines {
                clean(&mut line.source);
                line.because.iter_mut().for_each(clean);
            }
        }
        for stage in &mut reasoning.stages {
            clean(&mut stage.stage);
            clean(&mut stage.place);
        }
    }
    for source in &mut report.sources {
        clean(&mut source.name);
        source.error.iter_mut().for_each(clean);
    }
}

fn clean_evidence(evidence: &mut Evidence, redact: &dyn Fn(&str) -> String) {
    for text in [&mut evidence.source, &mut evidence.focus] {
        *text = shown(&redact(text));
    }
    // Joined, because a single line does not show its context.
    let mut lines: Vec<&mut String> =
        evidence.before.iter_mut().chain([&mut evidence.text]).chain(&mut evidence.after).collect();
    let joined = lines.iter().map(|line| line.replace('\n', " ")).collect::<Vec<_>>().join("\n");
    let redacted = redact(&joined);
    if redacted.split('\n').count() == lines.len() {
        for (line, redacted) in lines.iter_mut().zip(redacted.split('\n')) {
            **line = shown(redacted);
        }
    } else {
        evidence.text = shown(&redact(&evidence.text));
        evidence.before.iter_mut().chain(&mut evidence.after).for_each(|line| WITHHELD.clone_into(line));
    }
    let is_part = |line: &&mut String| is_encoded(line);
    evidence
        .before
        .iter_mut()
        .chain(&mut evidence.after)
        .filter(is_part)
        .for_each(|line| WITHHELD.clone_into(line));
}

/// Returns whether a line is a single long Base64 word: a part of data that started before the quoted lines.
fn is_encoded(line: &str) -> bool {
    let word = line.trim();
    word.len() >= ENCODED_MIN
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=_-".contains(&byte))
}

/// Replaces invisible characters in a text.
fn shown(text: &str) -> String {
    text.chars().map(visible).collect()
}

/// Replaces characters that move the cursor, change the text direction or are invisible.
fn visible(c: char) -> char {
    let hidden =
        matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    if hidden || c.is_control() { '\u{fffd}' } else { c }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beside_a_quoted_line_are_cleaned_with_it() {
        let key = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7";
        let redactor = Redactor::builder().build().unwrap();
        let redact =
            |text: &str| String::from_utf8(redactor.redact(text.as_bytes(), Options::default()).0).unwrap();
        for before in [vec!["-----BEGIN PRIVATE KEY-----", key], vec![key]] {
            let mut evidence: Evidence = serde_json::from_value(serde_json::json!({
                "source": "a.log", "line": 7, "time": null, "text": "ValueError: not a key",
                "before": before, "after": ["  File \"a.py\", line 7"],
            }))
            .unwrap();
            clean_evidence(&mut evidence, &redact);
            assert!(!format!("{evidence:?}").contains(&key[..8]), "{evidence:?}");
            assert_eq!(evidence.text, "ValueError: not a key");
        }
    }
}
