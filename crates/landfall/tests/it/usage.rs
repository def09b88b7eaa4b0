use std::process::Command;

use landfall_testkit::{Binary, Need, have};

use crate::command::Bench;

#[test]
fn version_is_one_line_of_data() {
    let run = Bench::new().run(&["--version"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    assert_eq!(run.stdout, format!("landfall {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn help_lists_only_commands_that_work() {
    let bench = Bench::new();
    let run = bench.run(&["--help"]);
    let commands: Vec<&str> = run
        .stdout
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.len() >= 4, "{commands:?}");
    for command in commands {
        let run = bench.run(&[command, "--help"]);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{command}");
        assert!(run.stdout.contains("Usage: landfall"), "{command}: {run:?}");
    }
}

#[test]
fn wrong_usage_exits_64_and_says_so_on_stderr() {
    let bench = Bench::new();
    for arguments in
        [&["frobnicate"][..], &[], &["diagnose", "--root", "/", "x"], &["diagnose", "--output", "poem", "x"]]
    {
        let run = bench.run(arguments);
        assert_eq!((run.code, run.stdout.as_str()), (64, ""), "{arguments:?}: {run:?}");
        assert!(!run.stderr.is_empty());
    }
}

#[test]
fn completions_are_made_for_every_shell() {
    let bench = Bench::new();
    for (shell, sign) in
        [("bash", "complete -F _landfall"), ("zsh", "#compdef landfall"), ("fish", "complete -c landfall")]
    {
        let run = bench.run(&["completions", shell]);
        assert_eq!(run.code, 0);
        assert!(run.stdout.contains(sign), "{shell}");
    }
}

#[test]
fn manual_pages_cover_every_command() {
    let bench = Bench::new();
    assert!(bench.run(&["man"]).stdout.contains(".TH landfall 1"));
    let run = bench.run(&["man", "--directory", "pages"]);
    assert_eq!((run.code, run.stdout.as_str()), (0, ""));
    for page in ["landfall.1", "landfall-diagnose.1", "landfall-man.1"] {
        assert!(bench.path().join("pages").join(page).is_file(), "{page}");
    }
}

#[test]
fn kubectl_runs_it_as_a_plugin() {
    if !have(&[Need::Built(Binary::Kubectl)]) {
        return;
    }
    let bench = Bench::new();
    let log = bench.file("bin/kubeadm.log", "[ERROR Swap]: running with swap on is not supported\n");
    let folder = bench.path().join("bin");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_landfall"), folder.join("kubectl-landfall")).unwrap();
    let kubectl = |words: &[&str]| {
        let mut kubectl = Command::new(Binary::Kubectl.path().unwrap());
        kubectl.args(words).env_clear().env("PATH", &folder).env("HOME", bench.path()).output().unwrap()
    };
    let plugins = kubectl(&["plugin", "list"]);
    assert!(String::from_utf8_lossy(&plugins.stdout).contains("kubectl-landfall"), "{plugins:?}");
    let explained = kubectl(&["landfall", "explain", "swap-enabled"]);
    assert!(explained.status.success() && !explained.stdout.is_empty(), "{explained:?}");
    let diagnosed = kubectl(&["landfall", "diagnose", &log.display().to_string()]);
    assert_eq!(diagnosed.status.code(), Some(2), "{diagnosed:?}");
}
