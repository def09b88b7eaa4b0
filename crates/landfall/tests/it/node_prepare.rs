//! `landfall node prepare` on a directory that looks like a Container Linux node, with a bucket behind TLS.

use std::path::Path;
use std::process::Command;

use landfall_testkit::{FileServer, Need, Serve, have};
use serde_json::json;

use crate::command::{Bench, Run};

pub(crate) const OS: &str = "2000.0.0";
pub(crate) const IMAGE: &str = "root/var/lib/torcx/store/2000.0.0/docker:17.03.torcx.tgz";
pub(crate) const ENV: &str = "root/etc/kubernetes/kubelet.env";

/// A node and its bucket.
pub(crate) struct Node {
    pub(crate) bench: Bench,
    pub(crate) bucket: FileServer,
    pub(crate) image: Vec<u8>,
}

impl Node {
    pub(crate) fn new() -> Self {
        let bench = Bench::new();
        bench
            .file("root/usr/lib/os-release", format!("ID=coreos\nVERSION_ID={OS}\nCOREOS_BOARD=amd64-usr\n"));
        bench.file(
            "root/etc/kubernetes/installer/kubelet.env",
            "KUBELET_IMAGE_URL=\"quay.io/coreos/hyperkube\"\nKUBELET_IMAGE_TAG=\"v1.9.3_coreos.0\"\n",
        );
        let bucket = FileServer::start().unwrap();
        bench.file("ca.crt", bucket.authority());
        let image: Vec<u8> = (0..50_000_u32).flat_map(u32::to_le_bytes).collect();
        let node = Self { bench, bucket, image };
        node.bucket.file("/docker.tgz", node.image.clone());
        node.manifest(&node.hash());
        node
    }

    pub(crate) fn hash(&self) -> String {
        let path = self.bench.file("image", &self.image);
        let output = Command::new("sha512sum").arg(path).output().unwrap();
        String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
    }

    pub(crate) fn manifest(&self, hash: &str) {
        let manifest = json!({"kind": "torcx-package-list-v0", "value": {"packages": [{"name": "docker", "versions": [
            {"version": "17.03", "hash": format!("sha512-{hash}"), "locations": [{"url": self.bucket.url("/docker.tgz")}]},
        ]}]}});
        self.bucket.file(&format!("/amd64-usr/{OS}/m.json"), manifest.to_string());
    }

    pub(crate) fn run(&self, more: &[&str]) -> Run {
        self.command(&["prepare"], more).output().unwrap().into()
    }

    /// Returns `landfall node` with the flags of this node.
    pub(crate) fn command(&self, words: &[&str], more: &[&str]) -> Command {
        let url = format!("--torcx-manifest-url={}", self.bucket.url("/{{.Board}}/{{.OSVersion}}/m.json"));
        let mut arguments = vec!["node"];
        arguments.extend(words);
        arguments.extend(["--root", "root", "--ca-file", "ca.crt", "--upgrade-os=false"]);
        arguments.extend(more);
        arguments.push(&url);
        self.bench.command(&arguments)
    }

    pub(crate) fn status(&self) -> serde_json::Value {
        self.bench.run(&["node", "status", "--root", "root", "--output", "json"]).report()
    }

    pub(crate) fn text(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.bench.path().join(path)).ok()
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        self.bench.path().join(path).exists()
    }

    /// Replaces a word in the ledger and updates its checksum.
    pub(crate) fn rewrite_ledger(&self, from: &str, to: &str) {
        let runs = self.bench.path().join("root/var/lib/landfall/node-prepare");
        let script = "import sys,json,hashlib,pathlib\nfor p in pathlib.Path(sys.argv[1]).glob('*/ledger-*.jsonl'):\n h,b=p.read_text().rstrip('\\n').split('\\n')\n b=b.replace(sys.argv[2],sys.argv[3])\n h=json.loads(h);h['bytes']=len(b);h['sha256']=hashlib.sha256(b.encode()).hexdigest()\n p.write_text(json.dumps(h)+'\\n'+b+'\\n')\n";
        let done = Command::new("python3").args(["-c", script]).arg(runs).args([from, to]).status().unwrap();
        assert!(done.success());
    }

    /// Simulates a boot: the steps in the ledger get another boot ID.
    pub(crate) fn boot(&self) {
        let here = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        self.rewrite_ledger(here.trim(), "00000000-0000-0000-0000-000000000000");
        let profile = self.text("root/etc/torcx/profiles/tectonic.json").unwrap();
        self.bench.file("root/run/torcx/profile.json", profile);
        self.bench.file("root/run/metadata/torcx", "TORCX_UPPER_PROFILE=\"tectonic\"\n");
    }

    /// Simulates a boot in which torcx left no trace.
    pub(crate) fn boot_without_torcx(&self) {
        self.boot();
        std::fs::remove_dir_all(self.bench.path().join("root/run")).unwrap();
    }
}

#[test]
fn a_node_is_prepared_across_a_reboot_exactly_once() {
    let node = Node::new();
    let flags = ["--no-verify-signatures"];
    let run = node.run(&flags);
    assert_eq!((run.code, run.stdout.as_str()), (100, ""), "{run:?}");
    assert_eq!(std::fs::read(node.bench.path().join(IMAGE)).unwrap(), node.image);
    assert_eq!(node.text("root/etc/torcx/next-profile").as_deref(), Some("tectonic\n"));
    assert!(!node.has(ENV), "the kubelet could start before the reboot");
    assert!(node.has("root/run/systemd/system/torcx-docker-cleanup.service"));

    // A second run in the same boot still waits for the reboot.
    let asked = node.bucket.asked().len();
    assert_eq!(node.run(&flags).code, 100);
    node.boot();
    let run = node.bench.run(&["node", "resume", "--root", "root"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(
        node.text(ENV).as_deref(),
        Some("KUBELET_IMAGE_URL=quay.io/coreos/hyperkube\nKUBELET_IMAGE_TAG=v1.9.3_coreos.0\n")
    );
    let run = node.run(&flags);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stderr.contains("is prepared"), "{run:?}");
    assert_eq!(node.bucket.asked().len(), asked, "something was fetched twice: {:?}", node.bucket.asked());

    let run = node.bench.run(&["node", "status", "--root", "root", "--output", "json"]);
    let status = run.report();
    assert_eq!(status["ended"]["is"], "done", "{status}");
    assert_eq!(status["decision"]["runtimes"][0]["chosen"], "17.03");
    assert!(
        node.bench.run(&["node", "status", "--root", "root"]).stdout.contains("write-kubelet-env   done")
    );
}

#[test]
fn a_dry_run_tells_everything_and_changes_nothing() {
    let node = Node::new();
    let run = node.run(&["--no-verify-signatures", "--dry-run", "--output", "json"]);
    assert_eq!(run.code, 0, "{run:?}");
    let plan = run.report();
    assert_eq!(plan["inputs"]["clusterVersion"]["value"], "v1.9.3+coreos.0");
    assert_eq!(plan["inputs"]["clusterVersion"]["origin"]["kind"], "file");
    let passed = &plan["inputs"]["clusterVersion"]["passedOver"][0];
    assert_eq!(passed["origin"]["kind"], "api-server");
    assert!(passed["reason"].as_str().unwrap().contains("kubeconfig"), "{passed}");
    assert_eq!(plan["inputs"]["runtimeMappings"]["origin"]["kind"], "embedded");
    assert_eq!(plan["artefacts"][0]["action"]["is"], "fetch");
    assert_eq!(plan["reboot"]["needed"], true);
    let unit = "/run/systemd/system/torcx-docker-cleanup.service";
    assert_eq!(
        plan["reboot"]["files"][0]["path"], unit,
        "what clears docker's data is part of the plan: {plan}"
    );
    // The next boot cannot be determined, and the plan reports that consistently.
    assert_eq!(plan["inputs"]["nextOs"]["origin"]["kind"], "assumed");
    assert!(
        !node.has("root/var") && !node.has(ENV) && !node.has("root/etc/torcx"),
        "a dry run wrote something"
    );
    let run = node.run(&["--no-verify-signatures", "--dry-run"]);
    assert!(run.stdout.contains("SIGNATURE NOT VERIFIED"), "{run:?}");
    assert!(run.stdout.contains("Next boot         the same operating system, assumed\n"), "{run:?}");
    assert!(run.stdout.contains(&format!("Write             {unit}: clears `/var/lib/docker`")), "{run:?}");
}

/// After the reboot there is no trace of torcx, or it did not finish: the kubelet must not start without its runtime.
#[test]
fn a_boot_without_its_runtime_does_not_let_the_kubelet_start() {
    let node = Node::new();
    assert_eq!(node.run(&["--no-verify-signatures"]).code, 100);
    node.boot_without_torcx();
    let resume = || node.bench.run(&["node", "resume", "--root", "root"]);
    let run = resume();
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("there is no `/run/torcx/profile.json`"), "{run:?}");
    assert!(run.stderr.contains("then `landfall node resume`"), "{run:?}");
    assert_eq!(node.status()["why"], "not-active");
    assert!(!node.has(ENV));
    let profile = node.text("root/etc/torcx/profiles/tectonic.json").unwrap();
    node.bench.file("root/run/torcx/profile.json", profile.replace("17.03", "1.12"));
    let run = resume();
    assert!(run.code == 1 && run.stderr.contains("was to have docker 17.03 and has 1.12"), "{run:?}");
    node.bench.file("root/run/torcx/profile.json", profile);
    let run = resume();
    assert!(run.code == 1 && run.stderr.contains("`/run/metadata/torcx` does not exist"), "{run:?}");
    assert!(!node.has(ENV));
    node.bench.file("root/run/metadata/torcx", "TORCX_UPPER_PROFILE=\"tectonic\"\n");
    let run = resume();
    assert!(
        run.code == 0 && run.stderr.contains("This node is prepared: `/etc/kubernetes/kubelet.env`"),
        "{run:?}"
    );
    assert!(node.has(ENV));
}

/// The output names the location that delivered an image, and why the others failed.
#[test]
fn the_mirror_that_answered_is_the_one_that_is_named() {
    let node = Node::new();
    let mirror = FileServer::start().unwrap();
    node.bench.file("ca.crt", format!("{}{}", node.bucket.authority(), mirror.authority()));
    let path = format!("/amd64-usr/{OS}/m.json");
    let (gone, there) = (node.bucket.url(&path), mirror.url(&path));
    node.bucket.serve(&path, Serve::Status(404));
    // The last location of a list is tried first.
    let list = json!({"kind": "torcx-package-list-v0", "value": {"packages": [{"name": "docker", "versions": [
        {"version": "17.03", "hash": format!("sha512-{}", node.hash()),
         "locations": [{"url": mirror.url("/docker.tgz")}, {"url": node.bucket.url("/gone.tgz")}]},
    ]}]}});
    mirror.file(&path, list.to_string());
    mirror.file("/docker.tgz", node.image.clone());
    let flag = format!("--manifest-mirror={}", mirror.url("/{{.Board}}/{{.OSVersion}}/m.json"));
    let flags = ["--no-verify-signatures", &flag];
    let plan = node.run(&[&flags[..], &["--dry-run", "--output=json"]].concat()).report();
    let index = &plan["inputs"]["indexes"][0];
    assert_eq!(index["url"], there.as_str(), "{index}");
    assert_eq!(index["passedOver"][0]["origin"]["url"], gone.as_str(), "{index}");
    assert!(index["passedOver"][0]["reason"].as_str().unwrap().contains("answered 404"), "{index}");

    let run = node.run(&[&flags[..], &["--output=json"]].concat());
    assert_eq!(run.code, 100, "{run:?}");
    // A run prints the same document at its end that the status prints, and that is stored for tools that collect
    // files.
    let document = run.report();
    assert_eq!(document, node.status());
    let fetched = &document["fetched"][0];
    assert_eq!(fetched["url"], mirror.url("/docker.tgz").as_str(), "{document}");
    assert_eq!(fetched["passedOver"][0]["origin"]["url"], node.bucket.url("/gone.tgz").as_str(), "{fetched}");
    assert_eq!(document["decision"]["inputs"]["indexes"][0]["url"], there.as_str());
    let told = node.bench.run(&["node", "status", "--root", "root"]).stdout;
    assert!(told.contains(&format!("    from {}", mirror.url("/docker.tgz"))), "{told}");
}

#[test]
fn without_runtime_setup_only_the_environment_is_written() {
    let node = Node::new();
    let run = node.run(&["--torcx-skip-setup", "--force-kube-version=v1.9.9+coreos.1"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(node.text(ENV).unwrap().ends_with("KUBELET_IMAGE_TAG=v1.9.9_coreos.1\n"));
    assert!(!node.has("root/etc/torcx"));
    assert_eq!(node.bucket.asked(), [""; 0]);
}

/// Each of these leaves no `kubelet.env`, no image, and one clear line.
#[test]
fn whatever_the_bucket_does_nothing_is_half_done() {
    type Break = fn(&Node, &str);
    let hash = Node::new().hash();
    let cases: [(&str, i32, &str, Break); 7] = [
        ("answered 404", 69, "fetch", |node, _| {
            node.bucket.serve(&format!("/amd64-usr/{OS}/m.json"), Serve::Status(404));
        }),
        ("is not JSON", 1, "unusable", |node, _| {
            node.bucket.file(&format!("/amd64-usr/{OS}/m.json"), "{\"kind\":");
        }),
        ("its sha512 is", 1, "wrong-hash", |node, _| node.bucket.file("/docker.tgz", "something else")),
        ("its sha512 is", 1, "wrong-hash", |node, _| node.manifest(&"0e".repeat(64))),
        // A missing document is the same kind of failure, whether it is the list or an image.
        ("answered 403", 69, "fetch", |node, _| node.bucket.serve("/docker.tgz", Serve::Status(403))),
        ("answered 404", 69, "fetch", |node, _| node.bucket.serve("/docker.tgz", Serve::Status(404))),
        ("no suitable version", 1, "no-runtime", |node, hash| {
            let text = json!({"kind": "torcx-package-list-v0", "value": {"packages": [{"name": "docker", "versions": [
                {"version": "9", "hash": format!("sha512-{hash}"), "locations": [{"url": "https://h/"}]}]}]}});
            node.bucket.file(&format!("/amd64-usr/{OS}/m.json"), text.to_string());
        }),
    ];
    for (told, code, why, break_it) in cases {
        let node = Node::new();
        break_it(&node, &hash);
        let run = node.run(&["--no-verify-signatures"]);
        assert_eq!(run.code, code, "{told}: {run:?}");
        let error = run.stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
        assert!(error.contains(told), "{told}: {run:?}");
        assert!(run.stderr.contains("hint: "), "{run:?}");
        assert!(
            !run.stderr.lines().any(|line| line.starts_with('{')),
            "log entries without being asked: {run:?}"
        );
        assert_eq!(node.status()["why"], why, "{told}");
        assert!(!node.has(ENV) && !node.has(IMAGE) && !node.has("root/etc/torcx"), "{told}");
    }
}

#[test]
fn a_bad_signature_is_fatal_and_a_good_one_is_not() {
    if !have(&[Need::Program("gpg")]) {
        return;
    }
    let node = Node::new();
    let home = tempfile::Builder::new().prefix("gpg-").tempdir().unwrap();
    let gpg = |arguments: &[&str]| {
        let output = Command::new("gpg")
            .args(["--batch", "--yes", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""])
            .args(arguments)
            .env("GNUPGHOME", home.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    gpg(&["--quick-generate-key", "release@example.com", "ed25519", "sign", "never"]);
    node.bench.file("root/pubring.gpg", gpg(&["--armor", "--export"]));
    let signature_path = format!("/amd64-usr/{OS}/m.json.asc");
    let other = node.bench.file("other", "other bytes");
    node.bucket
        .file(&signature_path, gpg(&["--armor", "--detach-sign", "--output", "-", other.to_str().unwrap()]));
    let run = node.run(&["--dry-run"]);
    assert_eq!(run.code, 1, "{run:?}");
    run.assert_refused(1, "cannot trust the manifest for 2000.0.0");

    let client = node.bench.file("m.json", "");
    let manifest = json!({"kind": "torcx-package-list-v0", "value": {"packages": [{"name": "docker", "versions": [
        {"version": "17.03", "hash": format!("sha512-{}", node.hash()), "locations": [{"url": node.bucket.url("/docker.tgz")}]},
    ]}]}})
    .to_string();
    std::fs::write(&client, &manifest).unwrap();
    node.bucket.file(&format!("/amd64-usr/{OS}/m.json"), manifest);
    node.bucket
        .file(&signature_path, gpg(&["--armor", "--detach-sign", "--output", "-", client.to_str().unwrap()]));
    let run = node.run(&["--dry-run"]);
    assert!(run.code == 0 && run.stdout.contains("signed by "), "{run:?}");
    // A missing signature is an error like a wrong one.
    node.bucket.serve(&signature_path, Serve::Status(404));
    assert_eq!(node.run(&["--dry-run"]).code, 69);
    let _ = Command::new("gpgconf").args(["--kill", "all"]).env("GNUPGHOME", home.path()).output();
}

/// Runs the command in its own mount namespace, prepared by a script; reports partial files.
pub(crate) fn run_where(node: &Node, prepare: &str) -> Run {
    let url = node.bucket.url("/{{.Board}}/{{.OSVersion}}/m.json");
    let script = format!(
        "mount --make-rprivate / && {prepare} && \"$0\" node prepare --root root --ca-file ca.crt --upgrade-os=false --no-verify-signatures --torcx-manifest-url=\"$1\"; code=$?; find root/var/lib/torcx root/etc -name '*landfall-*' -o -name '*part*' -o -name '*draft*' >&2; exit $code"
    );
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_landfall"), &url])
        .current_dir(node.bench.path())
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap();
    output.into()
}

/// Runs with a read-only `/etc`, and with a disk that is too small, each in its own mount namespace.
#[test]
fn a_full_disk_and_a_read_only_one_are_told_and_left_clean() {
    if !have(&[Need::Root]) {
        return;
    }
    let cases = [
        ("mount --bind root/etc root/etc && mount -o remount,ro,bind root/etc", "Read-only file system"),
        (
            "mkdir -p root/var/lib/torcx && mount -t tmpfs -o size=64k tmpfs root/var/lib/torcx",
            "there is room for",
        ),
    ];
    for (prepare, told) in cases {
        let node = Node::new();
        let run = run_where(&node, prepare);
        assert_eq!(run.code, 1, "{run:?}");
        assert!(run.stderr.contains(told), "{told}: {run:?}");
        assert!(!node.has(ENV), "{told}");
        assert!(!run.stderr.lines().any(|line| line.starts_with("root/")), "{run:?}");
    }
}

/// A decision outlives its inputs until another one is requested.
#[test]
fn what_was_wrong_in_the_list_is_decided_anew() {
    let node = Node::new();
    let path = format!("/amd64-usr/{OS}/m.json");
    let list = |hash: &str| {
        let version = json!({"version": "17.03", "hash": format!("sha512-{hash}"), "locations": [{"url": node.bucket.url("/docker.tgz")}]});
        json!({"kind": "torcx-package-list-v0", "value": {"packages": [{"name": "docker", "versions": [version]}]}})
    };
    node.bucket.file(&path, list(&"0".repeat(128)).to_string());
    assert_eq!(node.run(&["--no-verify-signatures"]).code, 1);
    node.bucket.file(&path, list(&node.hash()).to_string());
    assert_eq!(node.run(&["--no-verify-signatures"]).code, 1, "the decision holds");
    assert_eq!(node.run(&["--no-verify-signatures", "--start-over"]).code, 100);
}

#[test]
fn another_request_does_not_take_over_silently() {
    let node = Node::new();
    assert_eq!(node.run(&["--no-verify-signatures"]).code, 100);
    let run = node.run(&["--no-verify-signatures", "--force-kube-version=v1.8.0"]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(
        run.stderr.contains("`landfall node resume` continues") && run.stderr.contains("--start-over"),
        "{run:?}"
    );
    assert_eq!(
        node.run(&["--no-verify-signatures", "--force-kube-version=v1.8.0", "--start-over"]).code,
        100
    );
    // A node whose file was removed is prepared again.
    let done = Node::new();
    assert_eq!(done.run(&["--torcx-skip-setup"]).code, 0);
    std::fs::remove_file(done.bench.path().join(ENV)).unwrap();
    assert_eq!(done.run(&["--torcx-skip-setup"]).code, 0);
    assert!(done.has(ENV));
}

/// A run without a decision has written nothing, so the advice of its hint can be followed immediately.
#[test]
fn before_anything_is_decided_other_flags_just_count() {
    let node = Node::new();
    std::fs::remove_file(node.bench.path().join("root/etc/kubernetes/installer/kubelet.env")).unwrap();
    let run = node.run(&["--no-verify-signatures"]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("--force-kube-version") && run.stderr.contains("run it again"), "{run:?}");
    let run = node.run(&["--no-verify-signatures", "--force-kube-version=v1.9.3"]);
    assert_eq!(run.code, 100, "{run:?}");
    // A decision is kept, and the hint of a failure under it explains how to continue.
    let node = Node::new();
    node.bucket.serve("/docker.tgz", Serve::Status(404));
    let run = node.run(&["--no-verify-signatures"]);
    let hint = run.stderr.lines().find(|line| line.starts_with("hint: ")).unwrap();
    assert!(hint.contains("`landfall node resume`") && hint.contains("--start-over"), "{run:?}");
    node.bucket.file("/docker.tgz", node.image.clone());
    assert_eq!(node.bench.run(&["node", "resume", "--root", "root"]).code, 100);
}

#[test]
fn the_old_name_is_the_old_program() {
    let node = Node::new();
    let link = node.bench.path().join("tectonic-torcx-bootstrap");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_landfall"), &link).unwrap();
    let run: Run = Command::new(&link)
        .args(["--root=root", "--upgrade-os=false", "--torcx-skip-setup=true", "--verbose=info"])
        .args(["--force-kube-version=v1.7.5+coreos.1", "--kubelet-env-path=/etc/kubernetes/kubelet.env"])
        .current_dir(node.bench.path())
        .env_clear()
        .output()
        .unwrap()
        .into();
    assert_eq!(run.code, 0, "{run:?}");
    assert!(node.text(ENV).unwrap().contains("KUBELET_IMAGE_TAG=v1.7.5_coreos.1"));
    assert!(Path::new(&link).exists());
}
