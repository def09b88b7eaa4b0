//! Secrets out of a report: its lines are shown, pasted into issues and sent on.

use landfall_model::report::Report;
use landfall_redact::{BuildError, Options, Redactor};

/// Redacts every text of a report that was taken from a log.
pub(super) fn secrets(report: &mut Report) -> Result<(), BuildError> {
    let redactor = Redactor::builder().build()?;
    let clean = |text: &mut String| {
        let (redacted, _) = redactor.redact(text.as_bytes(), Options::default());
        *text = String::from_utf8_lossy(&redacted).into_owned();
    };
    clean(&mut report.verdict.title);
    for finding in &mut report.findings {
        clean(&mut finding.title);
        clean(&mut finding.fix);
        for evidence in &mut finding.evidence {
            clean(&mut evidence.text);
        }
    }
    Ok(())
}
