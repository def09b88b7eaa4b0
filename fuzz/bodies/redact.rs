//! Bodies of the `redact_*` targets.

use std::sync::LazyLock;

use landfall_model::Secret;
use landfall_redact::{Format, Kind, Length, Names, Options, Redactor};

/// The secret that must not occur in the output.
const KNOWN: &str = "kn0wn-Secret_of.the/node+1";

static REDACTOR: LazyLock<Redactor> = LazyLock::new(|| {
    let known = Secret::new(KNOWN.to_owned());
    Redactor::builder()
        .known_secret(Kind::PASSWORD, &known)
        .host_name("node-1")
        .build()
        .expect("the rules are part of the program")
});

pub(crate) fn lines(bytes: &[u8]) {
    check(bytes, Format::Lines);
}

pub(crate) fn cri(bytes: &[u8]) {
    check(bytes, Format::Cri);
}

pub(crate) fn journal(bytes: &[u8]) {
    check(bytes, Format::JournalExport);
}

/// Any bytes: no panic, a result that does not depend on splits, the same length where required, and no known
/// secret in line-based text.
fn check(bytes: &[u8], format: Format) {
    for (length, names) in [(Length::Free, Names::Keep), (Length::Same, Names::Pseudonyms)] {
        let options = Options { format, length, names };
        let (whole, counts) = REDACTOR.redact(bytes, options);
        if length == Length::Same || format == Format::JournalExport {
            assert_eq!(whole.len(), bytes.len());
        }
        if format == Format::Lines {
            assert!(!whole.windows(KNOWN.len()).any(|window| window == KNOWN.as_bytes()));
        }
        let mut stream = REDACTOR.stream(options);
        let mut pieces = Vec::new();
        for piece in bytes.chunks(1 + bytes.len() / 7) {
            stream.push(piece, &mut pieces);
        }
        assert_eq!(stream.finish(&mut pieces), counts);
        assert_eq!(pieces, whole);
    }
}
