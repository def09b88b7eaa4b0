//! Runs the commands of the documentation like a reader.
//!
//! A block that begins with ```` ```console run ```` is run, page by page and in order, in an empty directory. With a
//! number after `run`, each of its commands must exit with that code. With `background`, its commands run until the
//! end of the page, and the following ones are retried until they succeed: a page with services needs its own
//! network, where their ports are free. With `cluster` there is a real API server with a node `worker-1`, and
//! `kubectl`. Lines that begin with `$ ` are commands, others are their output: if there are any they are compared,
//! and `…` matches anything.
//!
//! A block that cannot be run here states its requirement: ```` ```console needs cluster ````. For such commands the
//! test checks that the binary accepts all words.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use landfall_testkit::isolated::{self, in_network};
use landfall_testkit::{ApiServer, Binary, Process, eventually, have};
use serde_json::json;

use crate::command::Bench;

/// Enough for services to start and to discover each other.
const LIMIT: Duration = Duration::from_secs(120);

/// Requirements of commands that are not run. Each comment describes the item after it.
const NEEDS: [&str; 4] = [
    // A cluster with more components than an API server.
    "cluster", // A machine that is read or changed, as root.
    "machine", // A user or process at the other end.
    "peer",    // The sources, and a compiler for them.
    "sources",
];

/// Languages of blocks that would not be run.
const SHELLS: [&str; 5] = ["sh", "bash", "shell", "zsh", "shell-session"];

/// A command and its position.
struct Step {
    place: String,
    command: String,
    /// The output that the page shows.
    shown: Vec<String>,
    end: End,
}

/// The expected exit of a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    With(i32),
    WithThePage,
    InCluster,
    /// The command is not run.
    Never,
}

/// The environment that a page requires.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    WithServices,
    WithCluster,
}

#[test]
fn commands_of_the_documentation_do_what_it_says() {
    run_all(Kind::Plain, 30);
}

#[test]
fn services_of_the_documentation_do_what_it_says() {
    if !have(isolated::NEEDS) {
        return;
    }
    in_network("docs::services_of_the_documentation_do_what_it_says", || run_all(Kind::WithServices, 5));
}

#[test]
fn clusters_of_the_documentation_do_what_it_says() {
    if have(ApiServer::NEEDS) {
        run_all(Kind::WithCluster, 5);
    }
}

/// Detects words that were renamed in the binary and not on the page.
#[test]
fn commands_that_are_not_run_are_known_to_the_program() {
    let commands: Vec<Step> = all_pages()
        .iter()
        .flat_map(|page| steps(page))
        .filter(|step| step.end == End::Never)
        .filter_map(|step| {
            // Commands may also run from the sources, or as a plugin of kubectl.
            let own = ["landfall ", "cargo run --release -- ", "kubectl landfall "];
            let words = own.iter().find_map(|own| step.command.strip_prefix(own))?;
            Some(Step { command: format!("landfall {words}"), ..step })
        })
        .collect();
    assert!(commands.len() >= 20, "only {} commands were found", commands.len());
    let bench = Bench::new();
    for Step { place, command, .. } in commands {
        // Removes comments, pipes, and placeholders.
        let words = command.split(" | ").next().unwrap().split("  #").next().unwrap().replace(" …", "");
        // Words are parsed in order, so a wrong one is reported before `--help` takes effect.
        let run = shell(&bench, &format!("{words} --help")).output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{place}: `{command}`: {said}");
    }
}

/// Runs the pages of a kind. There must be at least `least` commands, because the test would otherwise pass without
/// any.
fn run_all(kind: Kind, least: usize) {
    let mut ran = 0;
    for page in all_pages() {
        let mut steps = steps(&page);
        let has = |end: End| steps.iter().any(|step| step.end == end);
        let is = match (has(End::InCluster), has(End::WithThePage)) {
            (true, _) => Kind::WithCluster,
            (false, true) => Kind::WithServices,
            (false, false) => Kind::Plain,
        };
        steps.retain(|step| step.end != End::Never);
        if is == kind {
            ran += steps.len();
            run_page(&steps, kind);
        }
    }
    assert!(ran >= least, "only {ran} commands were found");
}

fn run_page(steps: &[Step], kind: Kind) {
    let bench = Bench::new();
    let cluster = (kind == Kind::WithCluster).then(|| {
        let cluster = ApiServer::start().unwrap();
        cluster
            .apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker-1"}}))
            .unwrap();
        cluster
    });
    let mut services = Vec::new();
    for Step { place, command, shown, end } in steps {
        let run = || -> Output {
            let mut shell = shell(&bench, command);
            if let Some(cluster) = &cluster {
                shell.env("KUBECONFIG", cluster.admin_kubeconfig()).env("HOME", bench.path());
            }
            shell.output().unwrap()
        };
        match *end {
            End::Never => {}
            End::WithThePage => {
                let name = format!("service-{}", services.len());
                let start = format!("exec {command}");
                let service = Process::start(&name, Path::new("sh"), bench.path(), |shell| {
                    shell.args(["-c", &start]).current_dir(bench.path()).env_clear().env("PATH", path());
                });
                services.push(service.unwrap());
            }
            End::With(code) if services.is_empty() => {
                let run = run();
                let said = String::from_utf8_lossy(&run.stderr);
                assert_eq!(run.status.code(), Some(code), "{place}: `{command}`: {said}");
                assert!(is_shown(shown, &run), "{place}: `{command}` says otherwise: {run:?}");
            }
            End::With(_) | End::InCluster => {
                let code = if let End::With(code) = *end { code } else { 0 };
                eventually(&format!("{place}: `{command}`"), LIMIT, || {
                    let run = run();
                    (run.status.code() == Some(code) && is_shown(shown, &run)).then_some(())
                })
                .unwrap_or_else(|error| {
                    let logs: String = services.iter().map(Process::log).collect();
                    panic!("{error}\n{:?}\n{logs}", run())
                });
            }
        }
    }
}

/// Returns whether the output of a run matches the page. A line of only `…` matches any lines.
fn is_shown(shown: &[String], run: &Output) -> bool {
    let said = [&run.stdout, &run.stderr].map(|said| String::from_utf8_lossy(said).into_owned());
    shown.is_empty()
        || said.iter().any(|said| {
            let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
            matches(shown, &lines)
        })
}

fn matches(shown: &[String], said: &[&str]) -> bool {
    match shown.split_first() {
        None => said.is_empty(),
        Some((line, rest)) if line == "…" => {
            (0..=said.len()).any(|skipped| matches(rest, &said[skipped..]))
        }
        Some((line, rest)) => {
            said.split_first().is_some_and(|(own, said)| is_line(line, own) && matches(rest, said))
        }
    }
}

/// The width of columns depends on their content.
fn is_line(shown: &str, said: &str) -> bool {
    let plain = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let (shown, said) = (plain(shown), plain(said));
    let mut parts = shown.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = said.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else { return rest.is_empty() };
    for part in between {
        match rest.split_once(*part) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[test]
fn what_a_page_shows_is_compared() {
    let shown = |lines: &[&str]| lines.iter().map(ToString::to_string).collect::<Vec<_>>();
    for (page, said, same) in [
        (&["a  b"][..], &["a b"][..], true),
        (&["a … c"], &["a b c"], true),
        (&["a … c"], &["a b d"], false),
        (&["a", "…"], &["a", "b", "c"], true),
        (&["…", "c"], &["a", "b", "c"], true),
        (&["a"], &["a", "b"], false),
        (&["a", "b"], &["a"], false),
        (&["x…"], &["ax"], false),
    ] {
        assert_eq!(matches(&shown(page), said), same, "{page:?} {said:?}");
    }
}

fn shell(bench: &Bench, command: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(bench.path()).env_clear().env("PATH", path());
    shell
}

/// Returns a `PATH` with the binary first, and kubectl if it is installed.
fn path() -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_landfall")).parent().unwrap().display().to_string();
    let kubectl = Binary::Kubectl.path().ok().and_then(|path| Some(path.parent()?.display().to_string()));
    let all = [Some(program), kubectl, std::env::var("PATH").ok()];
    all.into_iter().flatten().collect::<Vec<_>>().join(":")
}

fn all_pages() -> Vec<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = vec![repository.join("README.md")];
    pages(&repository.join("docs"), &mut found);
    found
}

fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|end| end == "md") {
            found.push(path);
        }
    }
}

fn steps(page: &Path) -> Vec<Step> {
    let text = fs::read_to_string(page).unwrap();
    let mut steps: Vec<Step> = Vec::new();
    let mut end = None;
    let mut goes_on = false;
    let mut open = false;
    let mut bare = false;
    for (number, line) in text.lines().enumerate() {
        let place = format!("{}:{}", page.display(), number + 1);
        if let Some(kind) = line.trim_start().strip_prefix("```") {
            // Commands in other kinds of blocks would never be run.
            let word = kind.split_whitespace().next().unwrap_or_default();
            assert!(!SHELLS.contains(&word), "{place}: commands are shown as `console`, settings as `ini`");
            open = !open;
            bare = open && word.is_empty();
            end = kind.strip_prefix("console").filter(|_| open).map(|wanted| how(wanted.trim(), &place));
            continue;
        }
        let Some(end) = end else {
            assert!(
                !(bare && line.trim_start().starts_with("$ ")),
                "{place}: a command that is not `console`"
            );
            continue;
        };
        let prompt =
            if end == End::Never { line.split_once("# ").filter(|(host, _)| is_host(host)) } else { None };
        let command = line.trim_start().strip_prefix("$ ").or(prompt.map(|(_, command)| command));
        match (goes_on, command) {
            (true, _) => {
                let step = steps.last_mut().unwrap();
                step.command = step.command.trim_end_matches('\\').to_owned() + line.trim();
            }
            (false, Some(command)) => {
                steps.push(Step { place, command: command.to_owned(), shown: Vec::new(), end });
            }
            (false, None) if line.trim().is_empty() => continue,
            (false, None) => {
                steps.last_mut().into_iter().for_each(|step| step.shown.push(line.trim().to_owned()));
                continue;
            }
        }
        goes_on = line.ends_with('\\');
    }
    steps
}

/// Returns whether a line has one of root's prompts, `host# ` and `# `.
fn is_host(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_lowercase())
}

fn how(wanted: &str, place: &str) -> End {
    let (verb, object) = wanted.split_once(' ').unwrap_or((wanted, ""));
    match (verb, object) {
        ("run", "") => End::With(0),
        ("run", "background") => End::WithThePage,
        ("run", "cluster") => End::InCluster,
        ("run", code) => End::With(code.parse().unwrap()),
        ("needs", need) if NEEDS.contains(&need) => End::Never,
        _ => panic!("{place}: neither `run` nor one of {NEEDS:?}"),
    }
}
