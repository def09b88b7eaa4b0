//! A report is shown on terminals, pasted into issues and sent on: neither secrets nor control sequences may leave with what
//! it quotes, be it a line of a log or the name of a file.

use landfall_model::report::{Evidence, Report};
use landfall_redact::{Options, Redactor};

/// Cleans every text of a report that comes from what was read. A redactor that knows a machine's own secrets removes them by
/// their value, any other by the form that secrets have.
pub fn clean_with(report: &mut Report, redactor: &Redactor) {
    let clean = |text: &mut String| {
        let (redacted, _) = redactor.redact(text.as_bytes(), Options::default());
        *text = String::from_utf8_lossy(&redacted).chars().map(visible).collect();
    };
    clean(&mut report.verdict.title);
    for finding in &mut report.findings {
        clean(&mut finding.title);
        clean(&mut finding.fix);
        finding.ruled_out.iter_mut().for_each(clean);
        finding.nodes.iter_mut().for_each(clean);
        finding.evidence.iter_mut().for_each(|evidence| clean_evidence(evidence, &clean));
    }
    report.last_seen.iter_mut().for_each(|evidence| clean_evidence(evidence, &clean));
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

fn clean_evidence(evidence: &mut Evidence, clean: &dyn Fn(&mut String)) {
    clean(&mut evidence.source);
    clean(&mut evidence.text);
    clean(&mut evidence.focus);
    evidence.before.iter_mut().chain(&mut evidence.after).for_each(clean);
}

/// Characters that move the cursor, turn the direction of text or cannot be seen become a mark that can.
fn visible(c: char) -> char {
    let hidden =
        matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    if hidden || c.is_control() { '\u{fffd}' } else { c }
}
