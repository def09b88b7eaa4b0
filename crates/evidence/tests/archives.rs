//! Compressed logs are read in all formats, and hostile archives are bounded and reported.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use landfall_diagnose::{Engine, RuleSet};
use landfall_evidence::read::{self, Input, ReadError};
use landfall_model::Phase;
use landfall_model::report::Report;
use landfall_testkit::{Need, have};
use tempfile::TempDir;

const LOG: &str = "failed to run Kubelet: running with swap on is not supported, please disable swap\n";

fn diagnose(path: &Path) -> Result<Report, ReadError> {
    let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
    read::diagnose(&engine, vec![Input::Path(path.to_owned())], &|_| {})
}

#[track_caller]
fn cause(path: &Path) -> String {
    let report = diagnose(path).unwrap();
    report.verdict.cause.unwrap_or_else(|| panic!("no cause: {:#?}", report.sources)).to_string()
}

/// Returns the errors of the report's sources.
fn errors(report: &Report) -> Vec<&str> {
    report.sources.iter().filter_map(|source| source.error.as_deref()).collect()
}

/// Runs an archiver in the directory and returns the path of its output.
#[track_caller]
fn pack(folder: &TempDir, script: &str, made: &str) -> PathBuf {
    let status = Command::new("sh").args(["-euc", script]).current_dir(folder.path()).status().unwrap();
    assert!(status.success(), "{script}");
    folder.path().join(made)
}

fn folder_with_log() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("logs/host")).unwrap();
    fs::write(folder.path().join("logs/host/kubelet.log"), LOG).unwrap();
    folder
}

#[test]
fn every_packing_of_the_field_is_opened() {
    if !have(&["tar", "gzip", "zstd", "xz", "zip"].map(Need::Program)) {
        return;
    }
    for (script, made) in [
        ("gzip -c logs/host/kubelet.log > a.gz", "a.gz"),
        ("zstd -q logs/host/kubelet.log -o a.zst", "a.zst"),
        ("xz -c logs/host/kubelet.log > a.xz", "a.xz"),
        ("tar -cf a.tar logs", "a.tar"),
        ("tar -czf renamed-to-anything logs", "renamed-to-anything"),
        ("tar --zstd -cf a.tar.zst logs", "a.tar.zst"),
        ("tar -cJf a.tar.xz logs", "a.tar.xz"),
        ("zip -qr a.zip logs", "a.zip"),
        ("zip -q0r a.zip logs", "a.zip"),
        ("tar -cz logs | zip -q a.zip -", "a.zip"),
        ("zip -qr inner.zip logs; tar -czf a.tar.gz inner.zip", "a.tar.gz"),
        (
            "tar -cf inner.tar logs; gzip inner.tar; tar -cf outer.tar inner.tar.gz; xz outer.tar",
            "outer.tar.xz",
        ),
        ("for part in 1 2 3; do gzip -c logs/host/kubelet.log; done > members.gz", "members.gz"),
    ] {
        let folder = folder_with_log();
        assert_eq!(cause(&pack(&folder, script, made)), "swap-enabled", "{script}");
    }
}

#[test]
fn evidence_names_the_file_inside_the_archive() {
    let folder = folder_with_log();
    let report = diagnose(&pack(&folder, "tar -czf a.tar.gz logs", "a.tar.gz")).unwrap();
    let source = &report.findings[0].evidence[0].source;
    assert!(source.ends_with("/a.tar.gz:logs/host/kubelet.log"), "{source}");
}

/// Logs of two nodes have the same names; only their directories differ.
#[test]
fn equal_names_are_told_apart_by_their_place() {
    let folder = tempfile::tempdir().unwrap();
    for node in ["node-a", "node-b"] {
        fs::create_dir_all(folder.path().join(node)).unwrap();
        fs::write(folder.path().join(node).join("kubelet.log"), LOG).unwrap();
        pack(&folder, &format!("gzip -kc {node}/kubelet.log > {node}/kubelet.log.1.gz"), "");
    }
    let report = diagnose(folder.path()).unwrap();
    let names: Vec<&str> = report.sources.iter().map(|source| source.name.as_str()).collect();
    let expected =
        ["node-a/kubelet.log", "node-a/kubelet.log.1.gz", "node-b/kubelet.log", "node-b/kubelet.log.1.gz"];
    assert_eq!(names, expected.map(|name| format!("{}/{name}", folder.path().display())));
}

#[test]
fn an_archive_inside_an_archive_keeps_its_whole_name() {
    let folder = folder_with_log();
    let script = "tar -czf inner.tar.gz logs; gzip -c logs/host/kubelet.log > lone.log.gz; tar -cJf a.tar.xz inner.tar.gz lone.log.gz";
    let report = diagnose(&pack(&folder, script, "a.tar.xz")).unwrap();
    let names: Vec<&str> = report.sources.iter().map(|source| source.name.as_str()).collect();
    let archive = folder.path().join("a.tar.xz").display().to_string();
    assert_eq!(
        names,
        [format!("{archive}:inner.tar.gz:logs/host/kubelet.log"), format!("{archive}:lone.log.gz")]
    );
}

#[test]
fn a_cut_archive_is_read_as_far_as_it_goes() {
    let folder = folder_with_log();
    let noise: String =
        (0..200_000_u32).map(|n| format!("line {}\n", n.wrapping_mul(2_654_435_761))).collect();
    fs::write(folder.path().join("logs/zz.log"), noise).unwrap();
    let whole = pack(&folder, "tar --sort=name -czf a.tar.gz logs", "a.tar.gz");
    let bytes = fs::read(&whole).unwrap();
    fs::write(&whole, &bytes[..bytes.len() * 2 / 3]).unwrap();
    let report = diagnose(&whole).unwrap();
    assert_eq!(report.verdict.cause.as_ref().unwrap().as_str(), "swap-enabled");
    assert!(errors(&report).iter().any(|error| error.contains("incomplete")), "{:#?}", report.sources);
}

#[test]
fn links_escapes_and_repeated_names_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.tar");
    let mut archive = tar::Builder::new(fs::File::create(&path).unwrap());
    for name in ["../../../etc/kubelet.log", "/etc/kubelet.log", "twice.log", "twice.log"] {
        let mut header = tar::Header::new_gnu();
        // Written manually: the library rejects such names.
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(LOG.len() as u64);
        header.set_cksum();
        archive.append(&header, LOG.as_bytes()).unwrap();
    }
    let mut link = tar::Header::new_gnu();
    link.set_entry_type(tar::EntryType::Symlink);
    link.set_size(0);
    archive.append_link(&mut link, "link.log", "/etc/shadow").unwrap();
    archive.finish().unwrap();
    drop(archive);

    let report = diagnose(&path).unwrap();
    assert_eq!(
        errors(&report),
        ["1 links not followed; 2 names that lead out of the archive, taken as plain names; \
          1 names that occur again, all read"]
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is unpacked");
}

#[test]
fn packing_without_end_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = LOG.as_bytes().to_vec();
    for _ in 0..9 {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&bytes).unwrap();
        bytes = encoder.finish().unwrap();
    }
    let path = folder.path().join("deep.gz");
    fs::write(&path, bytes).unwrap();
    let error = landfall_model::chain(&diagnose(&path).unwrap_err()).to_string();
    assert!(error.ends_with("it is packed more than 6 times"), "{error}");
}

#[test]
fn a_zip_that_is_cut_or_encrypted_says_so() {
    if !have(&[Need::Program("zip")]) {
        return;
    }
    let folder = folder_with_log();
    let cut = pack(&folder, "zip -qr a.zip logs; truncate -s -30 a.zip", "a.zip");
    let error = landfall_model::chain(&diagnose(&cut).unwrap_err()).to_string();
    assert!(error.contains("it may be cut off"), "{error}");

    let encrypted = pack(&folder, "zip -qr --password x b.zip logs", "b.zip");
    let error = landfall_model::chain(&diagnose(&encrypted).unwrap_err()).to_string();
    assert!(error.ends_with("/b.zip`: it is encrypted"), "{error}");
}

#[test]
fn a_journal_is_read_in_all_its_forms() {
    let programs = ["/usr/lib/systemd/systemd-journal-remote", "journalctl", "tar"].map(Need::Program);
    if !have(&programs) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let export: String = (1..=3).map(|number| exported(number, 1, LOG)).collect();
    fs::write(folder.path().join("a.export"), export).unwrap();
    let remote = "/usr/lib/systemd/systemd-journal-remote -o a.journal a.export >/dev/null 2>&1";
    for (script, made) in [
        ("true", "a.export"),
        (remote, "a.journal"),
        (&format!("{remote}; journalctl --file a.journal -o json > a.json"), "a.json"),
        (&format!("{remote}; tar -czf a.tgz a.journal"), "a.tgz"),
    ] {
        let report = diagnose(&pack(&folder, script, made)).unwrap();
        assert_eq!(report.verdict.cause.as_ref().unwrap().as_str(), "swap-enabled", "{made}");
        let evidence = &report.findings[0].evidence[0];
        assert!(evidence.time.unwrap().to_string().starts_with("2026-01-02T03:04:05.00000"), "{made}");
        assert!(evidence.source.ends_with(":kubelet.service"), "{made}: {}", evidence.source);
        let _ = fs::remove_file(folder.path().join("a.journal"));
    }
}

#[test]
fn the_boots_of_a_journal_are_told_apart() {
    if !have(&[Need::Program("/usr/lib/systemd/systemd-journal-remote")]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut export = exported(1, 1, LOG);
    for number in 2..40 {
        export += &exported(number, 1, "still here");
    }
    export += &exported(40, 2, "Successfully registered node n1");
    fs::write(folder.path().join("a.export"), export).unwrap();
    let remote = "/usr/lib/systemd/systemd-journal-remote -o a.journal a.export >/dev/null 2>&1";
    for (script, made) in [("true", "a.export"), (remote, "a.journal")] {
        let report = diagnose(&pack(&folder, script, made)).unwrap();
        let boots: Vec<_> = report.timeline.iter().map(|entry| (entry.phase, entry.boot)).collect();
        assert!(boots.contains(&(Phase::Kubelet, Some(2))), "{made}: {boots:?}");
    }
}

/// Returns a kubelet entry in the format of `journalctl -o export`.
fn exported(number: u64, boot: u64, message: &str) -> String {
    format!(
        "__CURSOR=s={number:032x};i={number};b={boot:032x};m={number};t={number};x={number}\n\
         __REALTIME_TIMESTAMP={}\n__MONOTONIC_TIMESTAMP={number}\n_BOOT_ID={boot:032x}\n\
         _HOSTNAME=n1\nSYSLOG_IDENTIFIER=kubelet\n_PID=7\n_SYSTEMD_UNIT=kubelet.service\nMESSAGE={message}\n\n",
        1_767_323_045_000_000_u64 + number
    )
}
