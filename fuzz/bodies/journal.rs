//! Bodies of the `journal_*` targets.

use landfall_journal::{Cursor, ExportReader, Filter, JournalFile, JsonReader, Seek};

/// Any bytes as a journal file: reads it completely, filtered, and from the middle.
pub(crate) fn file(bytes: &[u8]) {
    let Ok(mut file) = JournalFile::new(bytes) else { return };
    let mut export = Vec::new();
    let mut middle: Option<Cursor> = None;
    while let Some(mut entry) = file.next().expect("memory does not fail to read") {
        middle = Some(entry.cursor());
        while let Some(field) = entry.next_field().expect("memory does not fail to read") {
            assert!(!field.name().is_empty());
        }
        export.clear();
        entry.write_export(&mut export).expect("memory does not fail to read");
    }
    let seeks = [Seek::Time(1_700_000_000_500_000), Seek::End].into_iter();
    for seek in seeks.chain(middle.map(Seek::At)).chain(middle.map(Seek::After)) {
        file.seek(seek).expect("memory does not fail to read");
        while file.next().expect("memory does not fail to read").is_some() {}
    }
    file.set_filter(Filter::unit("ssh.service").or().field("_PID", "3"))
        .expect("memory does not fail to read");
    while file.next().expect("memory does not fail to read").is_some() {}
    file.values("_PID", |_| {}).expect("memory does not fail to read");
    file.refresh().expect("memory does not fail to read");
}

/// Any bytes as an export stream; parsed entries must be parsed again after writing.
pub(crate) fn export(bytes: &[u8]) {
    let mut reader = ExportReader::new(bytes);
    while let Some(record) = reader.next().expect("memory does not fail to read") {
        let mut written = Vec::new();
        record.write_export(&mut written);
        let mut again = ExportReader::new(written.as_slice());
        let second = again.next().expect("memory does not fail to read").expect("an entry was written");
        assert!(record.fields().eq(second.fields()));
        assert_eq!(record.cursor(), second.cursor());
        assert_eq!(record.realtime(), second.realtime());
    }
}

/// Any bytes as a JSON stream.
pub(crate) fn json(bytes: &[u8]) {
    let mut reader = JsonReader::new(bytes);
    while let Some(record) = reader.next().expect("memory does not fail to read") {
        let mut written = Vec::new();
        record.write_export(&mut written);
        let mut again = ExportReader::new(written.as_slice());
        let second = again.next().expect("memory does not fail to read").expect("an entry was written");
        assert!(record.fields().eq(second.fields()));
    }
}
