//! Layouts of other collectors: a small example of each, compressed like its tool does.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::Command;

use landfall_diagnose::{Engine, RuleSet};
use landfall_evidence::read::{self, Input};
use landfall_testkit::{Need, have};
use tempfile::TempDir;

const FAILURE: &str = "Jan 02 03:04:05 n1 kubelet[7]: failed to run Kubelet: running with swap on is not supported, please disable swap\n";
const FINE: &str = "Jan 02 03:04:05 n1 systemd[1]: Started session.\n";

/// Creates and packs the files, and checks that the evidence is found in the given file and unit.
#[track_caller]
fn opened(files: &[(&str, &str)], script: &str, made: &str, place: &str) {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let status = Command::new("sh").args(["-euc", script]).current_dir(folder.path()).status().unwrap();
    assert!(status.success(), "{script}");
    let report = diagnose(&folder.path().join(made));
    assert_eq!(
        report.verdict.cause.as_ref().map(ToString::to_string).as_deref(),
        Some("swap-enabled"),
        "{made}"
    );
    let source = &report.findings[0].evidence[0].source;
    assert_eq!(*source, format!("{}/{place}", folder.path().display()));
}

fn diagnose(path: &Path) -> landfall_model::report::Report {
    let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
    read::diagnose(&engine, vec![Input::Path(path.to_owned())], &|_| {}).unwrap()
}

#[test]
fn a_sosreport() {
    opened(
        &[
            ("sosreport-n1-2026-01-02-abc/sos_commands/logs/journalctl_--no-pager", FAILURE),
            ("sosreport-n1-2026-01-02-abc/var/log/messages", FINE),
            ("sosreport-n1-2026-01-02-abc/version.txt", "sosreport: 4.7.2\n"),
        ],
        "ln -s /etc/hostname sosreport-n1-2026-01-02-abc/hostname; tar -cJf sosreport.tar.xz sosreport-n1-2026-01-02-abc",
        "sosreport.tar.xz",
        "sosreport.tar.xz:sosreport-n1-2026-01-02-abc/sos_commands/logs/journalctl_--no-pager:kubelet",
    );
}

/// The same, created by `sos` itself.
#[test]
fn a_sosreport_of_sos() {
    if !have(&[Need::Root, Need::Program("sos")]) {
        return;
    }
    let folder = TempDir::new().unwrap();
    let (machine, made) = (folder.path().join("machine"), folder.path().join("made"));
    fs::create_dir_all(machine.join("var/log")).unwrap();
    fs::create_dir(&made).unwrap();
    fs::write(machine.join("var/log/messages"), FAILURE).unwrap();
    let output = Command::new("sos")
        .args(["report", "--batch", "--quiet", "--only-plugins", "logs", "-z", "xz", "--sysroot"])
        .arg(&machine)
        .arg("--tmp-dir")
        .arg(&made)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let archive = fs::read_dir(&made).unwrap().map(|entry| entry.unwrap().path());
    let archive =
        archive.into_iter().find(|path| path.extension().is_some_and(|suffix| suffix == "xz")).unwrap();
    let report = diagnose(&archive);
    assert_eq!(report.verdict.cause.as_ref().unwrap().as_str(), "swap-enabled");
    let source = &report.findings[0].evidence[0].source;
    assert!(source.ends_with("/var/log/messages:kubelet"), "{source}");
}

#[test]
fn a_troubleshoot_support_bundle() {
    opened(
        &[
            (
                "support-bundle-2026-01-02T03_04_05/version.yaml",
                "apiVersion: troubleshoot.sh/v1beta2\nkind: SupportBundle\n",
            ),
            ("support-bundle-2026-01-02T03_04_05/host-collectors/run-host/journalctl-kubelet.txt", FAILURE),
            (
                "support-bundle-2026-01-02T03_04_05/cluster-info/cluster_version.json",
                "{\"string\": \"v1.33.1\"}\n",
            ),
        ],
        "tar -czf support-bundle.tar.gz support-bundle-2026-01-02T03_04_05",
        "support-bundle.tar.gz",
        "support-bundle.tar.gz:support-bundle-2026-01-02T03_04_05/host-collectors/run-host/journalctl-kubelet.txt",
    );
}

#[test]
fn an_eks_log_collection() {
    opened(
        &[
            ("kubelet/kubelet.log", FAILURE),
            ("system/instance-id.txt", "i-0123456789abcdef0\n"),
            ("var_log/messages", FINE),
        ],
        "tar -czf eks_i-0123456789abcdef0.tar.gz ./kubelet ./system ./var_log",
        "eks_i-0123456789abcdef0.tar.gz",
        "eks_i-0123456789abcdef0.tar.gz:kubelet/kubelet.log",
    );
}

#[test]
fn an_aks_collection() {
    opened(
        &[("collect/aks/kubelet.log", FAILURE), ("collect/var/log/azure/cluster-provision.log", FINE)],
        "cd collect && zip -qr ../aks_logs.zip aks var",
        "aks_logs.zip",
        "aks_logs.zip:aks/kubelet.log",
    );
}

#[test]
fn an_exported_folder_of_kind() {
    opened(
        &[
            ("out/kind-control-plane/kubelet.log", FINE),
            ("out/kind-worker/kubelet.log", FAILURE),
            (
                "out/kind-worker/containers/a_kube-system_b-0.log",
                "2026-01-02T03:04:05.000000001Z stdout F fine\n",
            ),
            ("out/docker-info.txt", "Server Version: 28.0\n"),
        ],
        "true",
        "out",
        "out/kind-worker/kubelet.log",
    );
}

#[test]
fn logs_of_minikube() {
    let text =
        format!("\n==> Audit <==\n|---|\n\n==> dmesg <==\n[  +0.000001] fine\n\n==> kubelet <==\n{FAILURE}");
    opened(&[("logs.txt", &text)], "true", "logs.txt", "logs.txt:kubelet");
}

#[test]
fn a_log_bundle_of_openshift() {
    opened(
        &[
            ("log-bundle-1/bootstrap/journals/kubelet.log", FINE),
            ("log-bundle-1/control-plane/10.0.0.5/journals/kubelet.log", FAILURE),
        ],
        "tar -czf log-bundle-1.tar.gz log-bundle-1",
        "log-bundle-1.tar.gz",
        "log-bundle-1.tar.gz:log-bundle-1/control-plane/10.0.0.5/journals/kubelet.log",
    );
}

#[test]
fn a_support_archive_of_talos() {
    opened(
        &[
            ("s/10.0.0.5/kubelet.log", FAILURE),
            ("s/10.0.0.5/dmesg.log", FINE),
            ("s/cluster/kubernetesResources/nodes.yaml", "kind: List\n"),
        ],
        "cd s && zip -qr ../support.zip 10.0.0.5 cluster",
        "support.zip",
        "support.zip:10.0.0.5/kubelet.log",
    );
}

#[test]
fn text_of_windows() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("kubelet.err.log");
    let units = format!("\u{feff}{FAILURE}").replace('\n', "\r\n");
    fs::write(&path, units.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>()).unwrap();
    let report = diagnose(&path);
    assert_eq!(report.verdict.cause.unwrap().to_string(), "swap-enabled");
}
