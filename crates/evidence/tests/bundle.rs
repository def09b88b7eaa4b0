//! A truncated bundle can be verified, and changed, removed or added files are detected.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::io::{Read, Write};

use flate2::read::MultiGzDecoder;
use jiff::Timestamp;
use landfall_evidence::bundle::{
    BundleWriter, Packing, VerifyError, Walked, bundle_id, verify, verify_within, walk,
};
use landfall_model::bundle::{BundleItem, ItemOutcome};
use landfall_model::identity::NodeIdentity;
use sha2::{Digest as _, Sha256};

fn node() -> NodeIdentity {
    NodeIdentity {
        hostname: "n1".to_owned(),
        machine_id: None,
        boot_id: None,
        os: None,
        architecture: None,
        provider_id: None,
    }
}

fn item(path: &str) -> BundleItem {
    BundleItem {
        path: path.to_owned(),
        source: "test".to_owned(),
        outcome: ItemOutcome::Collected,
        duration_ms: 1,
        bytes: 0,
        truncated: 0,
        sha256: None,
        redactions: BTreeMap::new(),
    }
}

/// Generates text that compresses poorly.
fn noise(seed: u64, lines: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let line = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        format!("line {state}\n")
    };
    (0..lines).map(line).collect::<String>().into_bytes()
}

fn make(packing: Packing, files: u64, lines: u64) -> Vec<u8> {
    let started = Timestamp::from_second(1_767_323_045).unwrap();
    let mut bundle = BundleWriter::new(Vec::new(), packing, &bundle_id(started), node(), started);
    for number in 0..files {
        bundle.add(item(&format!("bootstrap/{number}.log")), &noise(number + 1, lines)).unwrap();
    }
    let mut absent = item("bootstrap/absent.log");
    absent.outcome = ItemOutcome::Absent;
    bundle.note(absent);
    bundle.finish(started).unwrap().out
}

#[test]
fn a_whole_bundle_is_verified_in_both_packings() {
    for packing in [Packing::Gzip, Packing::Zstd] {
        let bytes = make(packing, 20, 500);
        let verified = verify(&bytes[..]).unwrap();
        assert!(verified.is_complete(), "{packing:?}: {verified:?}");
        assert_eq!(verified.whole.len(), 21);
        let manifest = verified.manifest.unwrap();
        assert_eq!((manifest.id.as_str(), manifest.items.len()), ("20260102030405", 21));
        assert_eq!(make(packing, 20, 500), bytes, "the same content gives the same bytes");
    }
}

#[test]
fn a_bundle_that_is_cut_anywhere_can_be_read_and_verified_up_to_there() {
    for packing in [Packing::Gzip, Packing::Zstd] {
        let bytes = make(packing, 40, 1000);
        let mut before = 0;
        for twentieth in 1..20 {
            let cut = bytes.len() * twentieth / 20;
            let verified = verify(&bytes[..cut]).unwrap();
            assert!(verified.wrong.is_empty(), "{packing:?} {twentieth}/20: {:?}", verified.wrong);
            assert!(verified.cut && !verified.is_complete() && verified.manifest.is_none());
            let whole = verified.whole.len();
            assert!(whole >= before, "more bytes, fewer files");
            // At most the last compressed block of the received data is lost: an eighth of 1 MiB here.
            assert!(whole + 8 >= 40 * twentieth / 20, "{packing:?} {twentieth}/20: only {whole} files");
            before = whole;
        }
    }
}

#[test]
fn a_changed_file_is_noticed() {
    let bytes = make(Packing::Gzip, 3, 100);
    let mut archive = Vec::new();
    MultiGzDecoder::new(&bytes[..]).read_to_end(&mut archive).unwrap();
    let at = archive.windows(5).rposition(|window| window == b"line ").unwrap();
    archive[at] = b'L';
    let verified = verify(&repack(&archive)[..]).unwrap();
    assert_eq!(verified.wrong[0].1, "its content is not what was collected");
    assert!(!verified.is_complete());
}

#[test]
fn a_file_that_is_taken_out_is_noticed() {
    let bytes = make(Packing::Gzip, 3, 100);
    let mut archive = Vec::new();
    MultiGzDecoder::new(&bytes[..]).read_to_end(&mut archive).unwrap();
    // From the record of the second file to that of the third.
    let records: Vec<usize> =
        (0..archive.len() - 10).filter(|at| archive[*at..].starts_with(b" comment={")).collect();
    let header = |record: usize| record / 512 * 512 - 512;
    archive.drain(header(records[1])..header(records[2]));
    let verified = verify(&repack(&archive)[..]).unwrap();
    assert!(
        verified.wrong.iter().all(|(_, what)| what == "files before it are missing"),
        "{:?}",
        verified.wrong
    );
    assert!(verified.whole.len() == 1 && !verified.is_complete(), "{verified:?}");
}

fn repack(archive: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(archive).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn names_of_any_length_and_equal_names_survive() {
    let started = Timestamp::from_second(0).unwrap();
    let mut bundle = BundleWriter::new(Vec::new(), Packing::Zstd, "1", node(), started);
    let long = format!("bootstrap/pods/{}/0.log", "ä".repeat(100));
    for path in [long.as_str(), "twice.log", "twice.log"] {
        bundle.add(item(path), b"x\n").unwrap();
    }
    let verified = verify(&bundle.finish(started).unwrap().out[..]).unwrap();
    assert!(verified.is_complete(), "{verified:?}");
    let paths: Vec<&str> = verified.whole.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, [&long, "twice.log", "twice.log~2", "manifest.json"]);
}

#[test]
fn what_is_no_bundle_is_refused() {
    assert!(matches!(verify(&b"hello"[..]), Err(VerifyError::Packing)));
    assert!(matches!(verify(&b""[..]), Err(VerifyError::Packing)));
    let empty = verify(&repack(b"")[..]).unwrap();
    assert!(!empty.is_complete());
}

#[test]
fn ordinary_tar_reads_it_without_complaint() {
    if !landfall_testkit::have(&[landfall_testkit::Need::Program("tar")]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("b.tar.gz"), make(Packing::Gzip, 2, 10)).unwrap();
    let output =
        std::process::Command::new("tar").args(["xzf", "b.tar.gz"]).current_dir(folder.path()).output();
    let output = output.unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let file = folder.path().join("log-bundle-20260102030405/bootstrap/1.log");
    assert_eq!(std::fs::read(file).unwrap(), noise(2, 10));
}

#[test]
fn a_bundle_that_unpacks_to_more_than_allowed_is_given_up() {
    let bytes = make(Packing::Zstd, 3, 1000);
    assert!(verify_within(bytes.as_slice(), 10 << 20).unwrap().is_complete());
    let refused = verify_within(bytes.as_slice(), 10 << 10);
    assert!(matches!(refused, Err(VerifyError::TooLarge { most: 10_240, .. })), "{refused:?}");
}

/// Builds a file with this record, as in an untrusted bundle.
fn entry(record: &str, content: &[u8]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_pax_extensions([("comment", record.as_bytes())]).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(content.len() as u64);
    archive.append_data(&mut header, "log-bundle-1/manifest.json", content).unwrap();
    let mut bytes = archive.into_inner().unwrap();
    bytes.truncate(bytes.len() - 1024);
    bytes
}

#[track_caller]
fn too_large(bytes: &[u8], expected: &str) {
    let refused = verify(bytes).unwrap_err();
    assert_eq!(refused.to_string(), expected);
}

#[test]
fn records_and_paths_longer_than_ours_are_refused() {
    let one = |item: BundleItem| {
        let started = Timestamp::from_second(0).unwrap();
        let mut bundle = BundleWriter::new(Vec::new(), Packing::Zstd, "1", node(), started);
        bundle.add(item, b"x\n").unwrap();
        bundle.finish(started).unwrap().out
    };
    let mut redacted = item("a.log");
    redacted.redactions = (0..12_000).map(|number| (format!("{number:x}"), 1)).collect();
    too_large(&one(redacted), "the record of a file has more than 16384 bytes");
    too_large(&one(item(&"p".repeat(2000))), "the path of a file has more than 1024 bytes");
    // The worst-case item of a collector stays readable.
    let mut honest = item(&"p".repeat(240));
    honest.source = "\"".repeat(5000);
    honest.outcome = ItemOutcome::Failed { error: "\"".repeat(20_000) };
    honest.redactions = (0..40).map(|number| (format!("KIND-{number}"), u64::MAX)).collect();
    assert!(verify(&one(honest)[..]).unwrap().is_complete());
}

#[test]
fn all_records_together_have_a_bound() {
    let block = entry(&"x".repeat(16 << 10 >> 1), b"").repeat(512);
    let frame = zstd::bulk::compress(&block, 3).unwrap();
    assert!(verify(&frame.repeat(8)[..]).is_ok());
    too_large(&frame.repeat(17), "the records of its files have more than 67108864 bytes");
}

#[test]
fn sources_and_manifests_of_strangers_are_cut_to_what_is_needed() {
    let items = |count: usize| {
        let item = "{\"path\":\"a\",\"redactions\":{\"B\":1}}";
        let items = vec![item; count].join(",");
        format!("{{\"id\":\"1\",\"node\":{{\"hostname\":\"n1\"}},\"items\":[{items}]}}").into_bytes()
    };
    let record = |content: &[u8]| {
        let sha256 = hex::encode(Sha256::digest(content));
        let (source, bytes) = ("s".repeat(5000), content.len());
        serde_json::json!({"sequence": 0, "path": "manifest.json", "source": source, "outcome": {"is": "collected"},
            "durationMs": 0, "bytes": bytes, "sha256": sha256})
        .to_string()
    };
    let packed = |count| {
        let content = items(count);
        repack(&entry(&record(&content), &content))
    };
    let verified = verify(&packed(20_000)[..]).unwrap();
    assert_eq!((verified.whole.len(), verified.manifest.unwrap().items.len()), (1, 20_000));
    assert!(verify(&packed(20_001)[..]).unwrap().manifest.is_none());
    let mut source = 0;
    let walked = walk(&packed(1)[..], u64::MAX, &mut |_, record, _| {
        source = record.unwrap().item.source.len();
        Ok(std::ops::ControlFlow::Continue(()))
    });
    assert_eq!((walked.unwrap(), source), (Walked::Whole, 1024));
}

/// Returns the report's remarks about its sources, by the end of their names.
fn remarks(bundle: &[u8]) -> Vec<(String, String)> {
    let engine = landfall_diagnose::Engine::new(landfall_diagnose::RuleSet::embedded().unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("b.tar");
    std::fs::write(&path, bundle).unwrap();
    let inputs = vec![landfall_evidence::read::Input::Path(path)];
    let report = landfall_evidence::read::diagnose(&engine, inputs, &|_| {}).unwrap();
    let remarks = report.sources.into_iter().filter_map(|source| Some((source.name, source.error?)));
    remarks.map(|(name, error)| (name.rsplit('/').next().unwrap().to_owned(), error)).collect()
}

#[test]
fn report_names_changed_missing_and_added_files() {
    let mut unpacked = Vec::new();
    MultiGzDecoder::new(&make(Packing::Gzip, 4, 3)[..]).read_to_end(&mut unpacked).unwrap();
    assert!(remarks(&unpacked).is_empty(), "{:?}", remarks(&unpacked));

    let mut changed = unpacked.clone();
    let at = changed.windows(5).position(|window| window == b"line ").unwrap();
    changed[at] = b'L';
    let found = remarks(&changed);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].0 == "0.log" && found[0].1.contains("not what was collected"), "{found:?}");

    // An entry is preceded by the header of its record.
    let starts: Vec<usize> = (0..unpacked.len())
        .step_by(512)
        .filter(|at| unpacked[*at + 257..].starts_with(b"ustar") && unpacked[at + 156] == b'x')
        .collect();
    let missing = [&unpacked[..starts[1]], &unpacked[starts[2]..]].concat();
    assert!(remarks(&missing).iter().any(|(_, what)| what.contains("1 file(s) of the bundle are missing")));

    let cut = [&unpacked[..*starts.last().unwrap()], &[0; 1024][..]].concat();
    assert!(remarks(&cut).iter().any(|(_, what)| what.contains("before its manifest")));

    let mut added = tar::Builder::new(unpacked[..*starts.last().unwrap()].to_vec());
    let mut header = tar::Header::new_ustar();
    header.set_size(6);
    header.set_cksum();
    added.append_data(&mut header, "x/added.log", &b"hello\n"[..]).unwrap();
    let added = added.into_inner().unwrap();
    assert!(remarks(&added).iter().any(|(name, what)| name == "added.log" && what.contains("no record")));
}
