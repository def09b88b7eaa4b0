//! The commands of the documentation, run as a reader runs them.
//!
//! A block that begins with ```` ```console run ```` is run, page by page and in order, in an empty folder; with a number behind
//! `run` every command of it has to end with that exit code. With `background` its commands go on until the page ends, and those
//! that follow are tried until they do what they should: a page with services needs a network of its own, where their ports
//! are free. Lines that begin with `$ ` are commands, others what they print.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use landfall_testkit::isolated::{self, in_network};
use landfall_testkit::{Process, eventually, have};

use crate::command::Bench;

/// For services to start and to learn of each other.
const LIMIT: Duration = Duration::from_secs(120);

/// A command, and where it stands.
struct Step {
    place: String,
    command: String,
    end: End,
}

/// How a command has to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    With(i32),
    WithThePage,
}

/// What a page wants to be run in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    WithServices,
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

/// Runs the pages of a kind. A marker nobody finds any more would make this prove nothing, so there are `least` commands.
fn run_all(kind: Kind, least: usize) {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = vec![repository.join("README.md")];
    pages(&repository.join("docs"), &mut found);
    let mut ran = 0;
    for page in found {
        let steps = steps(&page);
        let services = steps.iter().any(|step| step.end == End::WithThePage);
        if services == (kind == Kind::WithServices) {
            ran += steps.len();
            run_page(&steps);
        }
    }
    assert!(ran >= least, "only {ran} commands were found");
}

fn run_page(steps: &[Step]) {
    let bench = Bench::new();
    let program = Path::new(env!("CARGO_BIN_EXE_landfall")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut services = Vec::new();
    for Step { place, command, end } in steps {
        let run = || -> Output {
            let mut shell = Command::new("sh");
            shell.args(["-c", command]).current_dir(bench.path()).env_clear().env("PATH", &path);
            shell.output().unwrap()
        };
        match *end {
            End::WithThePage => {
                let name = format!("service-{}", services.len());
                let start = format!("exec {command}");
                let service = Process::start(&name, Path::new("sh"), bench.path(), |shell| {
                    shell.args(["-c", &start]).current_dir(bench.path()).env_clear().env("PATH", &path);
                });
                services.push(service.unwrap());
            }
            End::With(code) if services.is_empty() => {
                let run = run();
                let said = String::from_utf8_lossy(&run.stderr);
                assert_eq!(run.status.code(), Some(code), "{place}: `{command}`: {said}");
            }
            End::With(code) => {
                eventually(&format!("{place}: `{command}`"), LIMIT, || {
                    (run().status.code() == Some(code)).then_some(())
                })
                .unwrap_or_else(|error| {
                    let logs: String = services.iter().map(Process::log).collect();
                    panic!("{error}\n{}\n{logs}", String::from_utf8_lossy(&run().stderr))
                });
            }
        }
    }
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
    let mut steps = Vec::new();
    let mut end = None;
    for (number, line) in text.lines().enumerate() {
        if let Some(kind) = line.trim_start().strip_prefix("```") {
            end = kind.strip_prefix("console run").map(str::trim).map(|wanted| match wanted {
                "" => End::With(0),
                "background" => End::WithThePage,
                code => End::With(code.parse().unwrap()),
            });
        } else if let (Some(end), Some(command)) = (end, line.strip_prefix("$ ")) {
            let place = format!("{}:{}", page.display(), number + 1);
            steps.push(Step { place, command: command.to_owned(), end });
        }
    }
    steps
}
