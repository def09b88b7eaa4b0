use std::path::Path;
use std::process::Command;

use landfall_testkit::{Binary, Need, Process, free_port, have};

use crate::command::Bench;
use crate::gateway::kubeadm;

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

/// Completion scripts are checked by their shells, not only by eye.
#[test]
fn completions_are_taken_by_their_shells() {
    let bench = Bench::new();
    let shell = |program: &str, script: &str| {
        let mut shell = Command::new(program);
        shell
            .args(["-c", script])
            .current_dir(bench.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .output()
            .unwrap()
    };
    for name in ["bash", "zsh"] {
        bench.file(name, bench.run(&["completions", name]).stdout);
        // Skipped without zsh.
        if Path::new("/usr/bin").join(name).exists() || name == "bash" {
            let read = shell(name, &format!("{name} -n ./{name}"));
            assert!(read.status.success() && read.stderr.is_empty(), "{read:?}");
        }
    }
    for (words, wanted) in [(&["landfall", "rend"][..], "render"), (&["landfall", "render", "ag"], "agent")] {
        let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
        let script = format!(
            "source ./bash; COMP_WORDS=({}); COMP_CWORD={}; _landfall landfall {last} {before}; echo \"${{COMPREPLY[*]}}\"",
            words.join(" "),
            words.len() - 1
        );
        let completed = shell("bash", &script);
        assert_eq!(String::from_utf8_lossy(&completed.stdout).trim(), wanted, "{completed:?}");
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
    // Each page has the exit codes of its own command.
    let status = |page: &str| {
        let text = std::fs::read_to_string(bench.path().join("pages").join(page)).unwrap();
        let (_, rest) = text.split_once(".SH \"EXIT STATUS\"\n").unwrap();
        rest.split("\n.SH").next().unwrap().to_owned()
    };
    assert!(status("landfall-gather.1").contains("\\fB69\\fR\n\\&the bootstrap machine was not found"));
    assert!(status("landfall-node-in-place.1").contains("\\fB100\\fR"));
    assert!(!status("landfall-render.1").contains("\\fB2\\fR"));
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

/// Finds the cluster like kubectl: with the kubeconfig of the environment only.
#[test]
fn kubectl_gathers_from_the_cluster_of_its_kubeconfig() {
    if !have(&[Need::Built(Binary::Kubectl)]) {
        return;
    }
    let bench = Bench::new();
    kubeadm(&bench);
    bench.file("root/var/log/cloud-init-output.log", "[ERROR Swap]: running with swap on is not supported\n");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_landfall"), bench.path().join("kubectl-landfall"))
        .unwrap();
    let (port, upstream) = (free_port().unwrap(), free_port().unwrap());
    let program = Path::new(env!("CARGO_BIN_EXE_landfall"));
    let _gateway = Process::start("gateway", program, bench.path(), |command| {
        command.current_dir(bench.path()).args(["gateway", "--root", "root"]);
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        command.args(["--upstream", &format!("127.0.0.1:{upstream}")]).env("RUNTIME_DIRECTORY", bench.path());
    })
    .unwrap();
    let kubeconfig = bench.file(
        "kubeconfig",
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: \"https://localhost:{port}\", certificate-authority: root/etc/kubernetes/pki/ca.crt}}}}]\n\
             users: [{{name: u, user: {{client-certificate: admin.crt, client-key: admin.key}}}}]\n"
        ),
    );
    let mut kubectl = Command::new(Binary::Kubectl.path().unwrap());
    kubectl.args(["landfall", "gather", "-o", "bundle.tar.gz", "--wait", "60", "--output", "json"]);
    kubectl.current_dir(bench.path()).env_clear().env("PATH", bench.path()).env("KUBECONFIG", kubeconfig);
    let gathered = kubectl.output().unwrap();
    assert_eq!(gathered.status.code(), Some(2), "{gathered:?}");
    let report: serde_json::Value = serde_json::from_slice(&gathered.stdout).unwrap();
    assert_eq!(report["verdict"]["cause"], "swap-enabled");
    assert!(bench.path().join("bundle.tar.gz").is_file());
}
