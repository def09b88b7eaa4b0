//! Stage records of the OpenShift bootstrap machine (`/var/log/openshift/*.json`), converted to lines.
//!
//! Each file is one JSON array. Each entry becomes a line that the milestones match, and each line of an
//! error message becomes a separate line for the rules.

use std::fmt::Write as _;

use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    timestamp: Option<String>,
    phase: String,
    stage: Option<String>,
    pre_command: Option<String>,
    post_command: Option<String>,
    result: Option<String>,
    error_line: Option<String>,
    error_message: Option<String>,
}

/// Converts records to lines; `None` if the text is not an array of records and must be read as plain text.
pub(crate) fn lines(unit: &str, text: &[u8]) -> Option<Vec<u8>> {
    let entries: Vec<Entry> = serde_json::from_slice(text).ok()?;
    let mut out = String::new();
    for entry in entries {
        let time = entry.timestamp.unwrap_or_default();
        let name = entry.stage.or(entry.pre_command).or(entry.post_command).unwrap_or_else(|| "-".to_owned());
        let result = entry.result.map(|result| format!(" with {result}")).unwrap_or_default();
        let place = entry.error_line.map(|line| format!(" at {line}")).unwrap_or_default();
        let _ = writeln!(
            out,
            "{time} bootstrap {unit}[0]: record of {unit}: {} {name}{result}{place}",
            entry.phase
        );
        for line in entry.error_message.iter().flat_map(|message| message.lines()) {
            let _ = writeln!(out, "{time} bootstrap {unit}[0]: {line}");
        }
    }
    Some(out.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_becomes_a_line_and_its_error_lines_too() {
        let text = br#"[{"phase":"service start","timestamp":"2026-08-20T10:00:00Z"},
            {"phase":"stage end","stage":"cvo-bootstrap","result":"failure","errorLine":"199 main bootkube.sh",
             "errorMessage":"l1\nl2","timestamp":"2026-08-20T10:01:00Z","later":1}]"#;
        assert_eq!(
            String::from_utf8(lines("bootkube", text).unwrap()).unwrap(),
            "2026-08-20T10:00:00Z bootstrap bootkube[0]: record of bootkube: service start -\n\
             2026-08-20T10:01:00Z bootstrap bootkube[0]: record of bootkube: stage end cvo-bootstrap with failure at 199 main bootkube.sh\n\
             2026-08-20T10:01:00Z bootstrap bootkube[0]: l1\n\
             2026-08-20T10:01:00Z bootstrap bootkube[0]: l2\n"
        );
    }

    #[test]
    fn what_is_no_array_of_records_is_left_alone() {
        for text in [&b""[..], b"{}", b"[1]", b"[{\"phase\":1}]", b"[{\"phase\":\"service start\"}"] {
            assert!(lines("bootkube", text).is_none());
        }
    }
}
