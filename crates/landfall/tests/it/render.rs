//! `landfall render`, as an operator runs it.

use std::os::unix::fs::PermissionsExt as _;

use landfall_pki::Authority;

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
    let written = bench.run(&[&TUNNEL[..], &["--teardown", "-o", "x"]].concat());
    assert!(written.code == 64 && written.stderr.contains("'--teardown' cannot be used with"), "{written:?}");
}

#[test]
fn what_cannot_be_meant_is_refused_in_one_line() {
    let bench = Bench::new();
    bench.file("file", "");
    for (arguments, code, error) in [
        (&["--namespace", "Not A Name"][..], 64, "invalid namespace"),
        (&["--namespace", "kube-system"], 64, "is not the tunnel's alone"),
        (&["--namespace", "landfall-hub"], 64, "is not the tunnel's alone"),
        (&["--complete-when", "later"], 64, "invalid completion signal"),
        (&["--complete-when", "marker"], 64, "invalid completion signal"),
        (&["--server", "10.0.0.0/24"], 64, "invalid server address"),
        (&["--days", "0"], 64, "cannot live 0 days"),
        (&["--agent-port", "8092"], 64, "cannot be used together"),
        (&["--agent-port", "443"], 64, "may not listen on port 443"),
        (
            &["--binary-url", "https://a/b", "--binary-sha256", &"a".repeat(64)],
            64,
            "a pod cannot download the binary",
        ),
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

#[test]
fn what_no_role_can_be_is_refused_in_one_line() {
    let bench = Bench::new();
    let long = "n".repeat(64);
    let certificate = "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n";
    bench.file("ca", certificate);
    bench.file("key", format!("{certificate}-----BEGIN PRIVATE KEY-----\n"));
    bench.file("log", "not what was meant\n");
    let expired = Authority::new("old", 0).unwrap();
    bench.file("expired/ca.crt", expired.certificate());
    bench.file("expired/ca.key", expired.key().expose());
    let near = Authority::new("near its end", 5).unwrap();
    bench.file("near/ca.crt", near.certificate());
    bench.file("near/ca.key", near.key().expose());
    bench.file("mixed/ca.crt", near.certificate());
    bench.file("mixed/ca.key", expired.key().expose());
    let image = "registry.example/landfall:1";
    for (words, code, error) in [
        (&["tunnel", "--for", "kubeadm", "--image", image][..], 64, "the address of the server is missing"),
        (
            &["tunnel", "--for", "kubeadm", "--image", image, "--server", "auto"],
            64,
            "can discover its own address",
        ),
        (
            &["tunnel", "--for", "kubeadm", "--image", image, "--format", "installer", "--server", "a"],
            64,
            "cannot be rendered as `installer`",
        ),
        (
            &["tunnel", "--for", "openshift", "--image", image, "--format", "installer", "--server", "a"],
            64,
            "refusing to write a private key",
        ),
        (
            &["tunnel", "--for", "openshift", "--image", image, "--server", "auto", "--ca", "near"],
            64,
            "creates its own CA",
        ),
        (
            &["tunnel", "--for", "openshift", "--image", image, "--server", "auto", "--format", "helm"],
            64,
            "cannot be rendered as `helm`",
        ),
        (&["gateway", "--for", "kubeadm", "--allow", "10.0.0.1/8"], 64, "invalid network"),
        (
            &["gateway", "--for", "kubeadm", "--redirect", "6444"],
            64,
            "the ports 6444, 6444 cannot be used together",
        ),
        (&["gateway", "--for", "capi", "--format", "ignition"], 64, "its own Ignition file"),
        (&["gateway", "--for", "k3s", "--format", "installer"], 64, "cannot be rendered as `installer`"),
        (&["agent", "--for", "kubeadm", "--by", "pod"], 64, "the image is missing"),
        (&["agent", "--for", "kubeadm", "--by", "first-boot"], 64, "is missing"),
        (
            &["agent", "--for", "kubeadm", "--by", "image", "--format", "helm"],
            64,
            "cannot be rendered as `helm`",
        ),
        (&["agent", "--for", "k3s", "--by", "image", "--image", image], 64, "`--image` is for pods"),
        (
            &["agent", "--for", "k3s", "--by", "pod", "--image", image, "--namespace", "a"],
            64,
            "`--namespace` is the DaemonSet's",
        ),
        (&["hub", "--for", "k3s", "--server", "a", "--image", image], 64, "are for a hub in a pod"),
        (&["hub", "--for", "k3s", "--server", "a", "--namespace", "a"], 64, "are for a hub in a pod"),
        (&["pki", "--leaf", "viewer=ca.crt"], 64, "two files would be written to `ca.crt/viewer.crt`"),
        (&["pki", "--leaf", "viewer=a", "--leaf", "viewer=a"], 64, "two files would be written to"),
        (&["agent", "--for", "k3s", "--by", "image", "--hub", "hub"], 64, "invalid URL"),
        (
            &["agent", "--for", "k3s", "--by", "image", "--hub", "http://hub.corp"],
            64,
            "refusing to send secrets to",
        ),
        (
            &["agent", "--for", "k3s", "--by", "image", "--hub", "https://h", "--hub-ca", "key"],
            1,
            "private key",
        ),
        (
            &["agent", "--for", "k3s", "--by", "image", "--hub", "https://h", "--hub-ca", "log"],
            1,
            "no certificate",
        ),
        (&["agent", "--for", "k3s", "--by", "image", "--objects", "fleet"], 64, "it begins with `s3://`"),
        (&["agent", "--for", "k3s", "--by", "image", "--objects", "az://fleet"], 64, "`?account=NAME`"),
        (&["agent", "--for", "k3s", "--by", "image", "--events", "queue"], 64, "invalid URL"),
        (
            &["agent", "--for", "k3s", "--by", "image", "--nats", "nats://nats.corp"],
            64,
            "invalid NATS server URL",
        ),
        (
            &["agent", "--for", "k3s", "--by", "image", "--nats", "tls://n", "--nats-subject", "a.>"],
            64,
            "invalid NATS subject",
        ),
        (&["agent", "--for", "k3s", "--by", "image", "--console", "/etc/motd"], 64, "invalid console device"),
        (
            &["agent", "--for", "k3s", "--by", "pod", "--image", image, "--console", "/dev/ttyS0"],
            64,
            "cannot write to the console",
        ),
        (
            &["agent", "--for", "k3s", "--by", "image", "--serve", "443", "--serve-client-ca", "ca"],
            64,
            "invalid serve address `443`",
        ),
        (
            &["agent", "--for", "k3s", "--by", "image", "--neighbour", "node", "--neighbour-ca", "ca"],
            64,
            "invalid peer address",
        ),
        (&["in-place", "--for", "k3s", "--image", image, "--node", &long], 64, "invalid node name"),
        (&["agent", "--for", "capi", "--by", "image"], 64, "cannot add files to images"),
        (&["gateway", "--for", "kubeadm", "--gatherers", ""], 64, "invalid group ``"),
        (&["pki", "--server", ""], 64, "invalid server address"),
        (&["pki", "--server", "10.0.0.0/8"], 64, "invalid server address"),
        (&["pki", "--server", "a", "--ca", "expired"], 1, "has expired"),
        (&["controller", "--image", image, "--", "--bogus"], 64, "unexpected argument '--bogus'"),
        (&["controller", "--image", image, "--", "--max-unavailable=abc"], 64, "'abc'"),
        (
            &["controller", "--for", "capi", "--image", image, "--", "--bogus"],
            64,
            "unexpected argument '--bogus'",
        ),
        (&["pki", "--server", "a", "--ca", "near"], 64, "ends in 4 days, before certificates of 7"),
        (&["pki", "--server", "a", "--ca", "mixed"], 1, "is not that of the authority's certificate"),
        (&["pki", "--leaf", "master=me"], 64, "invalid certificate `master=me`"),
        (&["pki", "--leaf", "operator=../me"], 64, "invalid certificate"),
        (&["pki", "--leaf", "agent=n1,10.0.0.0/8"], 64, "invalid server address"),
        (&["pki", "--leaf", "node=N1"], 64, "invalid node name"),
        (&["pki", "--server", "a", "--add-ca", "log"], 1, "no certificate"),
        (&["pki", "--server", "a", "--add-ca", "key"], 1, "private key"),
        (
            &["hub", "--for", "kubeadm", "--server", "a", "--store", "sqlite:a", "--objects", "file:b"],
            64,
            "several hubs cannot share it",
        ),
        (
            &[
                "hub",
                "--for",
                "kubeadm",
                "--server",
                "a",
                "--store",
                "postgres://u:p@h/d",
                "--objects",
                "file:b",
            ],
            64,
            "can see a password in the URL",
        ),
        (
            &[
                "hub",
                "--for",
                "kubeadm",
                "--server",
                "a",
                "--replicas",
                "3",
                "--store",
                "postgres://h/d",
                "--objects",
                "s3://bundles?credentials-file=/c",
            ],
            64,
            "refusing to render 3 hubs",
        ),
        (
            &[
                "agent",
                "--for",
                "k3s",
                "--by",
                "image",
                "--bootstrap-report",
                "edge",
                "--bootstrap-report-server",
                "https://mgmt:6443",
                "--bootstrap-report-ca",
                "ca",
            ],
            64,
            "invalid object",
        ),
        (&["controller", "--image", image, "--selector", "a b"], 64, "invalid label selector `a b`"),
        (&["controller", "--image", image, "--secret-template", "A"], 64, "invalid object name `A`"),
        (
            &["controller", "--for", "capi", "--image", image, "--hub", "http://hub.corp"],
            64,
            "refusing to send secrets to",
        ),
        (
            &["controller", "--for", "capi", "--image", image, "--hub", "https://h", "--hub-secret", "a b"],
            64,
            "invalid object name",
        ),
        (&["hub", "--for", "capi", "--server", "a"], 64, "would install the hub on all machines"),
        (&["controller", "--image", image, "--namespace", "Not"], 64, "invalid namespace"),
        (&["controller", "--image", image, "--format", "ignition"], 64, "cannot be rendered as `ignition`"),
        (&["hub", "--for", "kubeadm", "--server", "a b"], 64, "invalid server address"),
        (&["hub", "--for", "kubeadm", "--server", "a", "-o", "/proc/landfall"], 1, "cannot make the folder"),
    ] {
        bench.run(&[&["render"], words].concat()).assert_refused(code, error);
    }
}

#[test]
fn secrets_are_new_each_time_and_written_for_their_owner() {
    let bench = Bench::new();
    let token = |folder: &str| {
        let run = bench.run(&["render", "gateway", "--for", "kubeadm", "-o", folder]);
        assert_eq!(run.code, 0, "{run:?}");
        let path = bench.path().join(folder).join("host/etc/landfall/gather-token");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::read_to_string(path).unwrap()
    };
    assert_ne!(token("one"), token("other"));
    bench.run(&["render", "gateway", "--for", "kubeadm", "-o", "one"]).assert_refused(1, "is there already");
}

/// Applying the manifests of one role must not change the permissions of another.
#[test]
fn no_two_roles_have_an_object_of_the_same_name() {
    let bench = Bench::new();
    let image = "registry.example/landfall:1";
    let mut seen = std::collections::BTreeMap::new();
    for words in [
        &["tunnel", "--for", "openshift", "--server", "a", "--image", image][..],
        &["gateway", "--for", "openshift", "--gatherers", "support"],
        &["agent", "--for", "openshift", "--by", "daemon-set", "--image", image],
        &["hub", "--for", "openshift", "--run-as", "pod", "--server", "a", "--image", image],
        &["in-place", "--for", "openshift", "--node", "n", "--image", image],
        &["controller", "--image", image, "--approve-certificates", "--namespace", "one"],
        &["controller", "--for", "capi", "--image", image, "--namespace", "other"],
    ] {
        let shown = bench.run(&[&["render"], words, &["--dry-run"]].concat());
        for object in shown.stdout.split("\n==> manifests/").skip(1) {
            let value =
                |key: &str| object.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
            let (kind, name) = (value("kind: "), value("  name: "));
            let place = (kind.to_owned(), value("  namespace: ").to_owned(), name.to_owned());
            assert!(!kind.is_empty() && !name.is_empty(), "{object}");
            let other = seen.insert(place.clone(), words[0]);
            assert!(other.is_none(), "{place:?} is of {words:?} and of {other:?}");
        }
    }
    assert!(seen.len() > 30, "{seen:?}");
}

/// OpenShift assigns user IDs itself, and requires a binding for privileged pods.
#[test]
fn controllers_follow_the_rules_of_their_cluster() {
    let bench = Bench::new();
    let shown = |words: &[&str]| {
        let image = ["--image", "registry.example/landfall:1", "--dry-run"];
        let run = bench.run(&[&["render", "controller"], words, &image[..]].concat());
        assert_eq!(run.code, 0, "{run:?}");
        run.stdout
    };
    let bound = "name: system:openshift:scc:privileged";
    let usual = shown(&[]);
    // The same words that were in use when this was the only work.
    for words in [&["--for", "in-place"][..], &["--for", "kubeadm"], &["--for", "k3s", "--work", "in-place"]]
    {
        assert_eq!(shown(words), usual, "{words:?}");
    }
    assert!(usual.contains("runAsUser: 65532") && !usual.contains(bound), "{usual}");
    let openshift = shown(&["--for", "openshift"]);
    assert!(!openshift.contains("runAsUser") && openshift.contains(bound), "{openshift}");
    let capi = ["--hub", "https://hub.corp:8700", "--hub-secret", "landfall-hub"];
    let management = shown(&[&["--for", "capi"], &capi[..]].concat());
    assert_eq!(shown(&[&["--work", "capi"], &capi[..]].concat()), management);
    assert!(management.contains("--capi") && management.contains("fsGroup: 65532"), "{management}");
    let on_openshift = shown(&[&["--for", "openshift", "--work", "capi"], &capi[..]].concat());
    assert!(on_openshift.contains("--capi"), "{on_openshift}");
    for word in ["runAsUser", "fsGroup", bound] {
        assert!(!on_openshift.contains(word), "{word} in {on_openshift}");
    }
}
