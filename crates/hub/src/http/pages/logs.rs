//! The log viewer: the files of a bundle, their lines, search, and links to lines of evidence.

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Redirect;
use serde::Deserialize;

use super::super::Served;
use super::shown;
use super::{Looking, Page, PageProblem, render};
use crate::bundles::{LogFile, LogLine, LogQuery};
use crate::proof::{Place, Wanted};

/// Number of lines on a page.
const LINES: u32 = 400;
/// Number of lines shown before the target line.
const BEFORE: u64 = 30;
/// Number of characters to search for if the quoted line is not found.
const WORDS: usize = 80;

#[derive(Deserialize)]
pub(super) struct Parameters {
    #[serde(default)]
    path: String,
    from: Option<u64>,
    mark: Option<u64>,
    #[serde(default)]
    q: String,
}

#[derive(Deserialize)]
pub(super) struct Sought {
    source: String,
    line: u64,
    text: String,
}

#[derive(Template)]
#[template(path = "logs.html")]
struct LogsPage {
    place: &'static str,
    node: String,
    digest: String,
    heading: String,
    path: String,
    q: String,
    clear: String,
    files: Vec<FileView>,
    lines: Vec<LineView>,
    earlier: Option<String>,
    later: Option<String>,
}

struct FileView {
    path: String,
    source: String,
    size: String,
    truncated: bool,
    link: String,
}

struct LineView {
    path: String,
    show_path: bool,
    number: u64,
    text: String,
    marked: bool,
    link: String,
}

pub(super) async fn page(
    State(served): State<Served>,
    Looking(caller): Looking,
    Path(digest): Path<String>,
    Query(parameters): Query<Parameters>,
) -> Page {
    let record = served.hub.bundle(&caller, &digest).await?;
    let Parameters { path, from, mark, q } = parameters;
    let from = from.unwrap_or(1).max(1);
    let file_link =
        |path: &str, from: u64| format!("/logs/{digest}?path={}&from={from}", shown::escaped(path));
    let mut page = LogsPage {
        place: "",
        node: record.node,
        heading: if path.is_empty() { format!("{} files", record.files) } else { shown::text(&path) },
        clear: if path.is_empty() { format!("/logs/{digest}") } else { file_link(&path, 1) },
        files: Vec::new(),
        lines: Vec::new(),
        earlier: None,
        later: None,
        digest: digest.clone(),
        path: path.clone(),
        q: q.clone(),
    };
    if path.is_empty() && q.is_empty() {
        let files = served.hub.log_files(&caller, &digest).await?;
        page.files = files.iter().map(|file| FileView::new(file, file_link(&file.path, 1))).collect();
        return render(&page);
    }
    let query = LogQuery {
        path: (!path.is_empty()).then(|| path.clone()),
        from,
        count: LINES,
        search: q.chars().take(200).collect(),
    };
    let found = served.hub.log_lines(&caller, &digest, query).await?;
    if q.is_empty() {
        page.earlier = (from > 1).then(|| file_link(&path, from.saturating_sub(u64::from(LINES))));
        page.later = found.more.then(|| file_link(&path, from + u64::from(LINES)));
    } else {
        page.heading = match (found.lines.len(), found.more) {
            (0, _) => "No line holds this".to_owned(),
            (count, true) => format!("The first {count} lines that hold this"),
            (count, false) => shown::counted(count as u64, "line holds this", "lines hold this"),
        };
    }
    let searched = !q.is_empty();
    page.lines = found
        .lines
        .iter()
        .map(|line| {
            let place = line.line.saturating_sub(BEFORE).max(1);
            let link = if searched {
                format!("{}&mark={n}#L{n}", file_link(&line.path, place), n = line.line)
            } else {
                format!("#L{}", line.line)
            };
            LineView::new(line, searched && path.is_empty(), mark == Some(line.line), link)
        })
        .collect();
    render(&page)
}

/// Redirects to the line of a bundle that a report quotes. If the bundle does not contain it, redirects to a search
/// for its text.
pub(super) async fn find(
    State(served): State<Served>,
    Looking(caller): Looking,
    Path(digest): Path<String>,
    Query(sought): Query<Sought>,
) -> Result<Redirect, PageProblem> {
    let Sought { source, line, text } = sought;
    let words: String = text.chars().take(WORDS).collect();
    let place = served.hub.place_of(&caller, &digest, Wanted { source, line, text }).await?;
    Ok(Redirect::to(&match place {
        Some(Place { path, line }) => {
            let from = line.saturating_sub(BEFORE).max(1);
            format!("/logs/{digest}?path={}&from={from}&mark={line}#L{line}", shown::escaped(&path))
        }
        None => format!("/logs/{digest}?q={}", shown::escaped(&words)),
    }))
}

// === impl FileView ===

impl FileView {
    fn new(file: &LogFile, link: String) -> Self {
        Self {
            path: shown::text(&file.path),
            source: shown::text(&file.source),
            size: shown::size(file.bytes),
            truncated: file.truncated > 0,
            link,
        }
    }
}

// === impl LineView ===

impl LineView {
    fn new(line: &LogLine, show_path: bool, marked: bool, link: String) -> Self {
        Self {
            path: shown::text(&line.path),
            show_path,
            number: line.line,
            text: shown::text(&line.text),
            marked,
            link,
        }
    }
}
