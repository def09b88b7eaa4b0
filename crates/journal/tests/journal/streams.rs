//! Reading the output of journalctl.

use landfall_journal::{ExportReader, JsonReader};

use crate::workshop::{START, USUAL, Workshop, assert_same, expect_success, journalctl, sample};

#[test]
fn an_export_stream_is_read_back_to_the_byte() {
    let Some(workshop) = Workshop::open() else { return };
    let path = workshop.journal("a.journal", USUAL, &sample(500, 51, START));
    let stream = journalctl(&[&format!("--file={}", path.display())]);
    let mut reader = ExportReader::new(stream.as_slice());
    let mut written = Vec::new();
    let mut entries = 0;
    while let Some(record) = reader.next().unwrap() {
        assert_eq!(record.cursor().unwrap().realtime, record.realtime().unwrap());
        assert!(record.get("_SYSTEMD_UNIT").is_some());
        record.write_export(&mut written);
        entries += 1;
    }
    assert_eq!((entries, reader.skipped()), (500, 0));
    assert_same(&written, &stream, "export");
}

#[test]
fn a_json_stream_says_the_same_as_an_export_stream() {
    let Some(workshop) = Workshop::open() else { return };
    let path = workshop.journal("a.journal", USUAL, &sample(500, 52, START));
    let file = format!("--file={}", path.display());
    let export = journalctl(&[&file]);
    for (format, all) in [("json", true), ("json-seq", true), ("json-sse", true)] {
        let mut command = std::process::Command::new("journalctl");
        command.args(["--quiet", &format!("--output={format}"), &file]).args(all.then_some("--all"));
        let json = expect_success("journalctl", command.output().unwrap()).stdout;
        let mut from_export = ExportReader::new(export.as_slice());
        let mut from_json = JsonReader::new(json.as_slice());
        let mut entries = 0;
        while let Some(expected) = from_export.next().unwrap() {
            let record = from_json.next().unwrap().unwrap();
            assert_eq!(record.cursor(), expected.cursor(), "{format}");
            assert_eq!((record.realtime(), record.monotonic()), (expected.realtime(), expected.monotonic()));
            let sorted = |record: &landfall_journal::Record| {
                let mut fields: Vec<Vec<u8>> = record.fields().map(|field| field.bytes().to_vec()).collect();
                fields.sort_unstable();
                fields
            };
            assert_eq!(sorted(record), sorted(expected), "{format}");
            entries += 1;
        }
        assert!(from_json.next().unwrap().is_none());
        assert_eq!((entries, from_json.skipped()), (500, 0), "{format}");
    }
}
