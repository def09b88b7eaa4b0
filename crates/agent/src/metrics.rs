//! The agent's metrics: the verdict, its time, and the reports that are not delivered.

use std::ffi::OsString;
use std::path::Path;

use landfall_model::envelope::ReportMessage;
use landfall_model::report::State;
use landfall_net::metrics::{MetricType, MetricsText};

/// Above the number of carriers that exist.
const MAX_CARRIERS: usize = 32;

/// Returns the metrics page, from the last report and the spool directory.
pub(crate) fn page(last: Option<&ReportMessage>, spools: &Path) -> String {
    write(last, &waiting(spools))
}

/// Returns the page with every metric that can appear on it.
pub fn page_at_start() -> String {
    // A placeholder for any carrier.
    write(None, &[("0".to_owned(), 0)])
}

fn write(last: Option<&ReportMessage>, waiting: &[(String, usize)]) -> String {
    let mut text = MetricsText::new("landfall_agent_");
    let mut states = text.family("state", MetricType::Gauge, "Whether the node is in this state.");
    for state in State::ALL {
        let current = last.is_some_and(|last| last.report.verdict.state == state);
        states.value(&[("state", state.name())], u8::from(current));
    }
    let time = last.map_or(0, |last| last.time.as_second());
    text.gauge("report_timestamp_seconds", "Time of the last report; 0 before the first one.", time);
    let help = "Number of reports that await delivery, by carrier.";
    let mut reports = text.family("waiting_reports", MetricType::Gauge, help);
    for (carrier, count) in waiting {
        reports.value(&[("carrier", carrier)], count);
    }
    text.finish()
}

/// Returns the number of spooled reports per carrier. Reports of an unreadable spool are in memory, if at
/// all.
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
