//! Validation of received reports.

use jiff::Timestamp;
use landfall_model::envelope::{FORMAT, ReportId, Signature, signed_bytes};
use landfall_model::identity::NodeIdentity;
use landfall_model::report::{self, Report};
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::name::{InvalidNodeName, NodeName};
use crate::store::{Arrival, Standing};

/// Maximum decompressed size of a report. Reports of this version are below 100 KiB; the rest is a reserve for
/// future rules.
pub(crate) const MAX_REPORT: usize = 1 << 20;
/// Maximum length of a title, which is one line of the fleet view.
const MAX_TITLE: usize = 1024;
/// Maximum length of IDs of machines and boots, and of names of systems and components.
const MAX_NAME: usize = 256;
/// Maximum length of the searchable text of a report; the stored report is not truncated.
const MAX_WORDS: usize = 32 << 10;
/// Maximum count that JSON readers with double precision represent exactly.
const MAX_COUNT: u64 = 1 << 53;

/// Reasons why a body is not a report. All are errors of the sender; retrying does not help.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportError {
    #[error("it is not a report in its envelope")]
    Json(#[source] serde_json::Error),
    #[error("it has format {found} of the {what}; this hub reads {known}")]
    Format { what: &'static str, found: u32, known: u32 },
    #[error("its node cannot be known by this host name")]
    Name(#[source] InvalidNodeName),
    #[error("its {what} is too long")]
    TooLong { what: &'static str },
    #[error("its {what} is not between 1 and 2^53")]
    Count { what: &'static str },
    #[error("its signature is not a key of 32 bytes and a value of 64 in hexadecimal")]
    SignatureForm,
    #[error("its signature does not fit")]
    Signature,
}

/// The envelope with the unparsed report, so that fields unknown to this version are preserved.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Incoming<'a> {
    format: u32,
    id: ReportId,
    node: NodeIdentity,
    #[serde(default)]
    boot_number: Option<u64>,
    sequence: u64,
    time: Timestamp,
    #[serde(borrow)]
    report: &'a RawValue,
    /// Unparsed, so that it can be cut out of the body.
    #[serde(borrow, default)]
    signature: Option<&'a RawValue>,
}

/// Parses and validates one report. The caller authorizes the sender and sets `standing`.
pub(crate) fn report(body: &[u8], received: Timestamp) -> Result<Arrival, ReportError> {
    let incoming: Incoming<'_> = serde_json::from_slice(body).map_err(ReportError::Json)?;
    if incoming.format != FORMAT {
        return Err(ReportError::Format { what: "envelope", found: incoming.format, known: FORMAT });
    }
    let text = incoming.report.get();
    let report: Report = serde_json::from_str(text).map_err(ReportError::Json)?;
    if report.format != report::FORMAT {
        return Err(ReportError::Format { what: "report", found: report.format, known: report::FORMAT });
    }
    let node = NodeName::new(&incoming.node.hostname).map_err(ReportError::Name)?;
    for (what, count) in [("sequence", Some(incoming.sequence)), ("boot number", incoming.boot_number)] {
        if count.is_some_and(|count| !(1..=MAX_COUNT).contains(&count)) {
            return Err(ReportError::Count { what });
        }
    }
    bounded(&incoming.node, &report)?;
    let key = incoming.signature.map(|signature| check_signature(body, signature)).transpose()?;
    Ok(Arrival {
        id: incoming.id,
        node,
        identity: incoming.node,
        boot_number: incoming.boot_number,
        sequence: incoming.sequence,
        time: incoming.time,
        received,
        words: words(&report),
        verdict: report.verdict,
        report: text.to_owned(),
        digest: Sha256::digest(text.as_bytes()).into(),
        key,
        standing: Standing::Trusted,
    })
}

fn bounded(node: &NodeIdentity, report: &Report) -> Result<(), ReportError> {
    let names = [
        ("machine id", &node.machine_id),
        ("boot id", &node.boot_id),
        ("system's name", &node.os),
        ("architecture", &node.architecture),
        ("provider id", &node.provider_id),
        ("component", &report.verdict.component),
    ];
    for (what, name) in names {
        if name.as_ref().is_some_and(|name| name.len() > MAX_NAME) {
            return Err(ReportError::TooLong { what });
        }
    }
    if report.verdict.title.len() > MAX_TITLE { Err(ReportError::TooLong { what: "title" }) } else { Ok(()) }
}

/// Verifies the signature and returns its key.
fn check_signature(body: &[u8], written: &RawValue) -> Result<Vec<u8>, ReportError> {
    let signature: Signature = serde_json::from_str(written.get()).map_err(ReportError::Json)?;
    let key =
        hex::decode(&signature.key).ok().filter(|key| key.len() == 32).ok_or(ReportError::SignatureForm)?;
    let value = hex::decode(&signature.value)
        .ok()
        .filter(|value| value.len() == 64)
        .ok_or(ReportError::SignatureForm)?;
    // Agents send canonical JSON. Converting it again would take as long as the rest of the validation.
    let as_sent = without_signature(body, written);
    if as_sent.is_some_and(|message| landfall_pki::verify_signature(&key, &message, &value)) {
        return Ok(key);
    }
    let message = signed_bytes(body).map_err(ReportError::Json)?;
    if landfall_pki::verify_signature(&key, &message, &value) { Ok(key) } else { Err(ReportError::Signature) }
}

/// Returns the envelope's bytes without its member `signature`, if the member is written without extra blanks.
fn without_signature(body: &[u8], written: &RawValue) -> Option<Vec<u8>> {
    const NAME: &[u8] = b",\"signature\":";
    // The value is a slice of the body, not a copy.
    let start = written.get().as_ptr().addr().checked_sub(body.as_ptr().addr())?;
    let (before, after) = (body.get(..start)?, body.get(start + written.get().len()..)?);
    Some([before.strip_suffix(NAME)?, after].concat())
}

/// Returns the searchable text: the verdict and its evidence.
pub(crate) fn words(report: &Report) -> String {
    let mut text = report.verdict.title.clone();
    for finding in &report.findings {
        for part in [finding.cause.as_str(), &finding.title].into_iter().chain(
            finding.evidence.iter().flat_map(|evidence| [evidence.source.as_str(), evidence.text.as_str()]),
        ) {
            if text.len() + part.len() > MAX_WORDS {
                return text;
            }
            text.push('\n');
            text.push_str(part);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use landfall_pki::SigningKey;
    use serde_json::{Value, json};

    use super::*;

    fn signed() -> Value {
        let (key, _) = SigningKey::generate().unwrap();
        let mut envelope = json!({
            "format": 1, "id": "01890a5d-ac96-774b-bcce-b302099a8057", "node": {"hostname": "n1"}, "sequence": 7,
            "time": "2026-01-02T03:04:05Z", "later": {"signature": [1, 2.50]},
            "report": {
                "format": 1, "findings": [], "timeline": [], "sources": [], "nextSteps": [],
                "verdict": {"state": "running", "title": "\u{e9} \"quoted\"", "confidence": 0.97}
            }
        });
        let value = key.sign(&signed_bytes(envelope.to_string().as_bytes()).unwrap());
        envelope["signature"] = json!({"key": hex::encode(key.public_key()), "value": hex::encode(value)});
        envelope
    }

    fn read(body: &str) -> Result<Arrival, ReportError> {
        report(body.as_bytes(), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_signature_holds_however_the_envelope_is_laid_out() {
        let envelope = signed();
        // As agents send it, and with the signature at the end: no conversion is necessary.
        let sent = envelope.to_string();
        let mut bare = envelope.clone();
        let signature = bare.as_object_mut().unwrap().remove("signature").unwrap();
        let mut last = bare.to_string();
        last.insert_str(last.len() - 1, &format!(",\"signature\":{signature}"));
        for body in [&sent, &last] {
            let incoming: Incoming<'_> = serde_json::from_str(body).unwrap();
            let cut = without_signature(body.as_bytes(), incoming.signature.unwrap()).unwrap();
            assert_eq!(cut, signed_bytes(envelope.to_string().as_bytes()).unwrap());
        }
        let first = format!("{{\"signature\":{signature},{}", &bare.to_string()[1..]);
        for body in [sent, last, first, serde_json::to_string_pretty(&envelope).unwrap()] {
            assert!(read(&body).unwrap().key.is_some(), "{body}");
        }
    }

    #[test]
    fn what_was_not_signed_is_refused() {
        let sent = signed().to_string();
        for (from, to) in [
            ("\"sequence\":7", "\"sequence\":8"),
            ("\"sequence\":7", "\"sequence\":7,\"new\":1"),
            ("\"n1\"", "\"n2\""),
            ("0.97", "0.98"),
        ] {
            let changed = sent.replace(from, to);
            assert_ne!(changed, sent);
            assert!(matches!(read(&changed), Err(ReportError::Signature)), "{changed}");
        }
        for number in ["0", "9007199254740993"] {
            let odd = sent.replace("\"sequence\":7", &format!("\"sequence\":7,\"bootNumber\":{number}"));
            assert!(matches!(read(&odd), Err(ReportError::Count { what: "boot number" })), "{number}");
        }
        let twice = sent.replace("\"sequence\":7", "\"sequence\":7,\"sequence\":7");
        assert!(matches!(read(&twice), Err(ReportError::Json(_))));
    }
}
