//! Rendered units under a real systemd: what they are not allowed must not be what they need.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use landfall_testkit::{Need, Node, NodeSpec, eventually, have};

use crate::command::Bench;

const LIMIT: Duration = Duration::from_secs(60);
const SOCKET: &str = "/etc/kubernetes/bootstrap-configs/landfall-tunnel/server.sock";

/// All files below `folder` as a machine has them.
fn host_files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap().flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                let place = Path::new("/").join(entry.path().strip_prefix(folder).unwrap());
                files.push((place, fs::read(entry.path()).unwrap()));
            }
        }
    }
    files
}

/// The tunnel's server as OpenShift has it, where its socket lies below /etc, and the hub, whose user owns none of its files.
#[test]
fn units_may_do_what_they_need() {
    if !have(&[Node::NEEDS, &[Need::Program("curl")]].concat()) {
        return;
    }
    let bench = Bench::new();
    let image = "registry.example/landfall:1";
    for words in [
        &["tunnel", "--for", "openshift", "--run-as", "unit", "--server", "127.0.0.1", "--image", image][..],
        &["hub", "--for", "openshift", "--server", "localhost"],
    ] {
        let run = bench.run(&[&["render"], words, &["-o", words[0]]].concat());
        assert_eq!(run.code, 0, "{run:?}");
    }
    let mut spec = NodeSpec::new("bootstrap");
    spec.files.push(("/usr/local/bin/landfall".into(), fs::read(env!("CARGO_BIN_EXE_landfall")).unwrap()));
    for folder in ["tunnel/host", "hub/host"] {
        spec.files.extend(host_files(&bench.path().join(folder)));
    }
    let mut node = Node::boot(&spec).unwrap();
    node.wait_for_boot().unwrap();
    node.output(&["chmod", "+x", "/usr/local/bin/landfall"]).unwrap();
    for unit in ["landfall-tunnel-server.service", "landfall-hub.service"] {
        let started = node.output(&["systemctl", "start", unit]);
        assert!(started.is_ok(), "{started:?}\n{}", node.journal(&["-u", unit]).unwrap());
    }
    node.output(&["test", "-S", SOCKET]).unwrap();
    let status = node.run(&["/usr/local/bin/landfall", "tunnel", "status"]).unwrap();
    // No agent has called yet, so it is not ready, and says so.
    assert!(String::from_utf8_lossy(&status.stdout).starts_with("Server "), "{status:?}");
    let page = format!("https://{}:8700/livez", node.address());
    eventually("the hub", LIMIT, || {
        Command::new("curl").args(["-sfk", "-m", "5", &page]).output().ok().filter(|run| run.status.success())
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", node.journal(&["-u", "landfall-hub.service"]).unwrap()));
}
