//! The commands of the documentation, run as a reader runs them.
//!
//! A block that begins with ```` ```console run ```` is run, page by page and in order, in an empty folder; with a number behind
//! `run` every command of it has to end with that exit code. Lines that begin with `$ ` are commands, others what they print.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::Bench;

/// A command, where it stands, and how it has to end.
struct Step {
    place: String,
    command: String,
    code: i32,
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
    let mut code = None;
    for (number, line) in text.lines().enumerate() {
        if let Some(kind) = line.trim_start().strip_prefix("```") {
            let wanted = kind.strip_prefix("console run").map(str::trim);
            code = wanted.map(|wanted| if wanted.is_empty() { 0 } else { wanted.parse().unwrap() });
        } else if let (Some(code), Some(command)) = (code, line.strip_prefix("$ ")) {
            let place = format!("{}:{}", page.display(), number + 1);
            steps.push(Step { place, command: command.to_owned(), code });
        }
    }
    steps
}

#[test]
fn commands_of_the_documentation_do_what_it_says() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = vec![repository.join("README.md")];
    pages(&repository.join("docs"), &mut found);
    let program = Path::new(env!("CARGO_BIN_EXE_landfall")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut ran = 0;
    for page in found {
        let bench = Bench::new();
        for Step { place, command, code } in steps(&page) {
            let run = Command::new("sh")
                .args(["-c", &command])
                .current_dir(bench.path())
                .env_clear()
                .env("PATH", &path)
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&run.stderr);
            assert_eq!(run.status.code(), Some(code), "{place}: `{command}`: {said}");
            ran += 1;
        }
    }
    // A marker nobody finds any more would make this test prove nothing.
    assert!(ran >= 10, "only {ran} commands were found");
}
