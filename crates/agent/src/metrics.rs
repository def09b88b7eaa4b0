//! The few numbers of an agent that matter to whoever watches many: what it says, when it said it, and what it cannot bring out.

use std::ffi::OsString;
use std::path::Path;

use landfall_model::envelope::Envelope;
use landfall_model::report::State;

/// Carriers there are, and more.
const MAX_CARRIERS: usize = 32;

/// The page, from the last report and the folder of the spools.
pub(crate) fn page(last: Option<&Envelope>, spools: &Path) -> String {
    write(last, &waiting(spools))
}

/// The page with everything there can be on it.
pub fn page_at_start() -> String {
    // A carrier that stands for any.
    write(None, &[("0".to_owned(), 0)])
}

fn write(last: Option<&Envelope>, waiting: &[(String, usize)]) -> String {
    let mut text = head("state", "gauge", "1 for the state the node is in, 0 for the others.");
    for state in State::ALL {
        let is_so = u8::from(last.is_some_and(|last| last.report.verdict.state == state));
        text += &format!("landfall_agent_state{{state=\"{}\"}} {is_so}\n", state.name());
    }
    let time = last.map_or(0, |last| last.time.as_second());
    text += &head("report_timestamp_seconds", "gauge", "When the last report was made; 0 before the first.");
    text += &format!("landfall_agent_report_timestamp_seconds {time}\n");
    text += &head("waiting_reports", "gauge", "Reports that a carrier has yet to bring.");
    for (carrier, count) in waiting {
        text += &format!("landfall_agent_waiting_reports{{carrier=\"{carrier}\"}} {count}\n");
    }
    text
}

fn head(name: &str, kind: &str, help: &str) -> String {
    format!("# HELP landfall_agent_{name} {help}\n# TYPE landfall_agent_{name} {kind}\n")
}

/// How many reports wait for each carrier. What cannot be listed waits in memory, if at all.
fn waiting(spools: &Path) -> Vec<(String, usize)> {
    let names = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name())
    };
    let is_report = |name: &OsString| Path::new(name).extension().is_some_and(|end| end == "json");
    let mut waiting: Vec<(String, usize)> = names(spools)
        .filter_map(|carrier| carrier.into_string().ok())
        .take(MAX_CARRIERS)
        .map(|carrier| {
            let count = names(&spools.join(&carrier)).filter(is_report).count();
            (carrier, count)
        })
        .collect();
    waiting.sort_unstable();
    waiting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_counted_for_each_carrier() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["hub/a.json", "hub/b.json", "hub/b.json.tmp", "console/c.json"] {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        let page = page(None, folder.path());
        for line in [
            "landfall_agent_state{state=\"failed\"} 0",
            "landfall_agent_report_timestamp_seconds 0",
            "landfall_agent_waiting_reports{carrier=\"console\"} 1",
            "landfall_agent_waiting_reports{carrier=\"hub\"} 2",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}: {page}");
        }
        assert!(!write(None, &waiting(&folder.path().join("none"))).contains("carrier="));
    }
}
