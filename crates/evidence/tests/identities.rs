//! Secret files under other names: links, mounts and renamed files are withheld, and logs are not.

#[path = "machine/mod.rs"]
mod machine;

use std::fs;

use landfall_model::bundle::ItemOutcome;
use landfall_testkit::have;
use landfall_testkit::isolated::{NEEDS, in_network, shell};

use machine::Machine;

const SECRET: &str = "xkcd-936-correct-horse";

fn machine() -> Machine {
    let machine = Machine::new();
    machine
        .file("etc/shadow", format!("root:{SECRET}:1:2\n"))
        .file("etc/kubernetes/pki/etcd/notes.txt", format!("{SECRET}\n"))
        .file("var/log/kern.log", "kernel: a line\n")
        .file(
            "etc/landfall/gather.d/all.toml",
            "[[item]]\nid = \"all\"\nto = \"all/\"\nsource.files.paths = [\"/var/log/**/*\", \"/srv/*\"]\n",
        );
    machine
}

/// Collects a bundle, and checks that files with these paths are withheld and the log is not.
#[track_caller]
fn assert_withheld(machine: &Machine, paths: &[&str]) {
    let bundle = machine.collect();
    for path in paths {
        let outcome = bundle.outcome(path);
        assert!(matches!(outcome, ItemOutcome::Withheld { .. }), "{path}: {outcome:?}");
    }
    assert_eq!(bundle.contains(SECRET), None);
    assert!(bundle.text("all/kern.log").contains("a line"));
}

#[test]
fn hard_links_to_secret_files_are_withheld() {
    let machine = machine();
    let root = machine.root.path();
    for (from, to) in
        [("etc/shadow", "var/log/x.log"), ("etc/kubernetes/pki/etcd/notes.txt", "var/log/y.log")]
    {
        fs::hard_link(root.join(from), root.join(to)).unwrap();
    }
    assert_withheld(&machine, &["/var/log/x.log", "/var/log/y.log"]);
}

#[test]
fn symbolic_links_to_secret_files_are_withheld() {
    let machine = machine();
    machine
        .link("var/log/x.log", "/etc/shadow")
        .link("var/log/y.log", "../../etc/kubernetes/pki/etcd/notes.txt")
        .link("srv/pki", "/etc/kubernetes/pki")
        .link("srv/z", "/srv/pki/etcd/notes.txt");
    assert_withheld(&machine, &["/var/log/x.log", "/var/log/y.log", "/srv/z"]);
}

#[test]
fn directory_of_secrets_that_is_a_link_is_withheld() {
    let machine = machine();
    let root = machine.root.path();
    fs::create_dir_all(root.join("srv")).unwrap();
    fs::rename(root.join("etc/kubernetes/pki"), root.join("var/log/pki")).unwrap();
    machine.link("etc/kubernetes/pki", "/var/log/pki");
    assert_withheld(&machine, &["/var/log/pki/etcd/notes.txt"]);
}

#[test]
fn bind_mounts_of_secret_files_are_withheld() {
    if !have(NEEDS) {
        return;
    }
    in_network("bind_mounts_of_secret_files_are_withheld", || {
        let machine = machine();
        let root = machine.root.path().display();
        machine
            .file("var/log/x.log", "")
            .file("var/log/pki/placeholder", "")
            .file("var/log/etcd/placeholder", "")
            .file("var/lib/kubelet/pods/uid/volume-subpaths/logs/app/0/placeholder", "")
            .file("var/log/app/app.log", "app: a line\n");
        shell(&format!("mount --bind {root}/etc/shadow {root}/var/log/x.log"));
        shell(&format!("mount --bind {root}/etc/kubernetes/pki {root}/var/log/pki"));
        shell(&format!("mount --bind {root}/etc/kubernetes/pki/etcd {root}/var/log/etcd"));
        // A container with a log directory.
        shell(&format!(
            "mount --bind {root}/var/log/app {root}/var/lib/kubelet/pods/uid/volume-subpaths/logs/app/0"
        ));
        assert_withheld(
            &machine,
            &["/var/log/x.log", "/var/log/pki/etcd/notes.txt", "/var/log/etcd/notes.txt"],
        );
        assert!(machine.collect().text("all/app/app.log").contains("a line"));
        shell(&format!(
            "umount {root}/var/log/x.log {root}/var/log/pki {root}/var/log/etcd {root}/var/lib/kubelet/pods/uid/volume-subpaths/logs/app/0"
        ));
    });
}
