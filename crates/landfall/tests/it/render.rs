//! `landfall render`, as an operator runs it.

use std::os::unix::fs::PermissionsExt as _;

use crate::command::Bench;

const TUNNEL: [&str; 8] = [
    "render",
    "tunnel",
    "--for",
    "kubeadm",
    "--server",
    "10.0.0.5",
    "--image",
    "registry.example/landfall:1",
];

#[test]
fn files_are_shown_written_once_and_renewed_from_the_same_authority() {
    let bench = Bench::new();
    let shown = bench.run(&[&TUNNEL[..], &["--dry-run"]].concat());
    assert_eq!(shown.code, 0, "{shown:?}");
    assert!(shown.stdout.contains("kind: DaemonSet") && !shown.stdout.contains("PRIVATE KEY"), "{shown:?}");

    let pki = bench.run(&["render", "pki", "--server", "10.0.0.5", "-o", "pki"]);
    assert_eq!(pki.code, 0, "{pki:?}");
    let key = bench.path().join("pki/ca.key").metadata().unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);

    let into = [&TUNNEL[..], &["--ca", "pki", "-o", "tunnel"]].concat();
    assert_eq!(bench.run(&into).code, 0);
    let read = |name: &str| std::fs::read_to_string(bench.path().join(name)).unwrap();
    assert_eq!(read("tunnel/host/etc/landfall/tunnel/ca.crt"), read("pki/ca.crt"));
    bench.run(&into).assert_refused(1, "is there already");
    assert_eq!(bench.run(&[&into[..], &["--force"]].concat()).code, 0);

    let teardown = bench.run(&[&TUNNEL[..], &["--teardown"]].concat());
    assert!(teardown.stdout.starts_with("#!/bin/sh\n"), "{teardown:?}");
}

#[test]
fn what_cannot_be_meant_is_refused_in_one_line() {
    let bench = Bench::new();
    bench.file("file", "");
    for (arguments, code, error) in [
        (&["--namespace", "Not A Name"][..], 64, "is no name of a namespace"),
        (&["--server", "10.0.0.0/24"], 64, "is no address or name"),
        (&["--days", "0"], 64, "cannot live 0 days"),
        (&["--agent-port", "8092"], 64, "not all different"),
        (&["--ca", "nowhere"], 1, "cannot read"),
        (&["-o", "file"], 1, "cannot make the folder"),
    ] {
        let whole: Vec<&str> = if arguments[0] == "--server" {
            [&TUNNEL[..4], arguments, &TUNNEL[6..]].concat()
        } else {
            [&TUNNEL[..], arguments].concat()
        };
        bench.run(&whole).assert_refused(code, error);
    }
}
