//! One page of HTML that needs nothing from outside and runs nothing.

use std::fmt::{self, Write as _};

use landfall_model::report::{PhaseOutcome, Report, State};

use super::{Groups, facts, state_word};

const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1b1f;background:#fff}
h1{font-size:1.4rem;padding:.8rem 1rem;border-left:.5rem solid #b3261e;background:#f6f3f2;margin:0 0 .5rem}
h1.good{border-color:#1e7a34}h1.open{border-color:#a86b00}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f3f3f6;padding:.6rem .8rem;margin:.2rem 0 .8rem;border-radius:.3rem}
.place,.facts{color:#5b5b63;font-size:.9rem}ol.bar{display:flex;gap:.2rem;list-style:none;padding:0;flex-wrap:wrap}
ol.bar li{flex:1 1 auto;padding:.3rem .6rem;background:#d9ead9;border-radius:.2rem}
ol.bar li.failed{background:#f4c7c3}ol.bar li.open{background:#f6e3b4}
@media(prefers-color-scheme:dark){body{color:#e6e6ea;background:#16161a}h1,pre{background:#232329}
.place,.facts{color:#a3a3ad}ol.bar li{background:#24472a}ol.bar li.failed{background:#6b2723}ol.bar li.open{background:#5b4713}}";

/// Text that is shown, never read as markup.
struct Escaped<'a>(&'a str);

/// Renders the report as a self-contained page.
pub fn html(report: &Report) -> String {
    let verdict = &report.verdict;
    let title = format!("{}: {}", state_word(verdict.state), verdict.title);
    let class = match verdict.state {
        State::Failed | State::Hung => "bad",
        State::Succeeded => "good",
        State::Running | State::Degraded | State::Unknown => "open",
    };
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{0}</title>\n<style>\n{STYLE}\n</style>\n<h1 class=\"{class}\">{0}</h1>",
        Escaped(&title)
    );
    let _ = writeln!(out, "<p class=\"facts\">{}</p>", Escaped(&facts(report).join(" · ")));
    let groups = Groups::new(report);
    if let Some(finding) = groups.named {
        out.push_str("<h2>Evidence</h2>\n");
        for evidence in &finding.evidence {
            let time = evidence.time.map(|time| format!(" · {time:.0}")).unwrap_or_default();
            let _ = writeln!(
                out,
                "<div class=\"place\">{}:{}{time}</div>\n<pre>{}</pre>",
                Escaped(&evidence.source),
                evidence.line,
                Escaped(&evidence.text)
            );
        }
        let _ = writeln!(out, "<h2>Fix</h2>\n<p>{}</p>", Escaped(&finding.fix));
    }
    for (name, findings) in groups.titled().into_iter().filter(|(_, findings)| !findings.is_empty()) {
        let _ = writeln!(out, "<h2>{name}</h2>\n<ul>");
        for finding in findings {
            let _ = writeln!(
                out,
                "<li><code>{}</code>: {}</li>",
                Escaped(finding.cause.as_str()),
                Escaped(&finding.title)
            );
        }
        out.push_str("</ul>\n");
    }
    if !report.timeline.is_empty() {
        out.push_str("<h2>Timeline</h2>\n<ol class=\"bar\">\n");
        for entry in &report.timeline {
            let (class, word) = match entry.outcome {
                PhaseOutcome::Ok => ("ok", "ok"),
                PhaseOutcome::Failed => ("failed", "failed"),
                PhaseOutcome::Open => ("open", "open"),
            };
            let _ = writeln!(out, "<li class=\"{class}\">{} {word}</li>", entry.phase);
        }
        out.push_str("</ol>\n");
    }
    out.push_str("<h2>Sources</h2>\n<ul>\n");
    for source in &report.sources {
        let error = source.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        let _ = writeln!(
            out,
            "<li>{} ({}, {} lines){}</li>",
            Escaped(&source.name),
            Escaped(&source.kind),
            source.lines,
            Escaped(&error)
        );
    }
    out.push_str("</ul>\n</html>\n");
    out
}

// === impl Escaped ===

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                _ => f.write_char(c)?,
            }
        }
        Ok(())
    }
}
