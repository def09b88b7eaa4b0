//! Validation of received reports.

use jiff::Timestamp;
use landfall_model::envelope::{Envelope, EnvelopeError, MAX_ENVELOPE, ReportMessage};
use landfall_model::identity::NodeIdentity;
use landfall_model::report::{self, Report};
use landfall_pki::verify_envelope;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::name::{InvalidNodeName, NodeName};
use crate::store::{Arrival, Standing};

/// Maximum decompressed size of a report in its envelope.
pub(crate) const MAX_REPORT: usize = MAX_ENVELOPE;
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
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    #[error("it has format {found} of the report; this hub reads {known}")]
    Format { found: u32, known: u32 },
    #[error("its node cannot be known by this host name")]
    Name(#[source] InvalidNodeName),
    #[error("its {what} is too long")]
    TooLong { what: &'static str },
    #[error("its {what} is not between 1 and 2^53")]
    Count { what: &'static str },
}

/// Parses and validates one report. The caller authorizes the sender and sets `standing`.
pub(crate) fn report(body: &[u8], received: Timestamp) -> Result<Arrival, ReportError> {
    opened(&Envelope::parse(body)?, received)
}

/// Verifies an envelope, and parses and validates its report. Fields unknown to this version are preserved.
pub(crate) fn opened(envelope: &Envelope, received: Timestamp) -> Result<Arrival, ReportError> {
    let key = verify_envelope(envelope)?;
    let message: ReportMessage<&RawValue> =
        serde_json::from_slice(&envelope.payload).map_err(EnvelopeError::Message)?;
    let text = message.report.get();
    let report: Report = serde_json::from_str(text).map_err(EnvelopeError::Message)?;
    if report.format != report::FORMAT {
        return Err(ReportError::Format { found: report.format, known: report::FORMAT });
    }
    let node = NodeName::new(&message.node.hostname).map_err(ReportError::Name)?;
    for (what, count) in [("sequence", Some(message.sequence)), ("boot number", message.boot_number)] {
        if count.is_some_and(|count| !(1..=MAX_COUNT).contains(&count)) {
            return Err(ReportError::Count { what });
        }
    }
    bounded(&message.node, &report)?;
    Ok(Arrival {
        id: message.id,
        node,
        identity: message.node,
        boot_number: message.boot_number,
        sequence: message.sequence,
        time: message.time,
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

    fn message() -> String {
        let message = json!({
            "id": "01890a5d-ac96-774b-bcce-b302099a8057", "node": {"hostname": "n1"}, "sequence": 7,
            "time": "2026-01-02T03:04:05Z", "later": {"signature": [1, 2.50]},
            "report": {
                "format": 1, "findings": [], "timeline": [], "sources": [], "nextSteps": [],
                "verdict": {"state": "running", "title": "\u{e9} \"quoted\"", "confidence": 0.97}
            }
        });
        message.to_string()
    }

    fn signed(message: &str) -> Envelope {
        SigningKey::generate().unwrap().0.seal(message.as_bytes().to_vec())
    }

    fn read(envelope: &impl serde::Serialize) -> Result<Arrival, ReportError> {
        report(serde_json::to_string(envelope).unwrap().as_bytes(), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_signature_holds_however_the_message_and_its_envelope_are_laid_out() {
        let pretty: Value = serde_json::from_str(&message()).unwrap();
        let pretty = serde_json::to_string_pretty(&pretty).unwrap().replace("0.97", "0.970");
        for message in [message(), pretty] {
            let envelope = signed(&message);
            let compact = read(&envelope).unwrap();
            let laid_out = serde_json::to_string_pretty(&envelope).unwrap();
            let laid_out = report(laid_out.as_bytes(), Timestamp::UNIX_EPOCH).unwrap();
            assert!(message.contains(&compact.report), "the report as it was sent");
            assert_eq!((&compact.report, compact.digest), (&laid_out.report, laid_out.digest));
            assert!(compact.key.is_some() && compact.key == laid_out.key);
        }
    }

    #[test]
    fn what_was_not_signed_is_refused() {
        let (sent, message) = (signed(&message()), message());
        for (from, to) in [
            ("\"sequence\":7", "\"sequence\":8"),
            ("\"sequence\":7", "\"sequence\":7,\"new\":1"),
            ("\"sequence\":7", "\"sequence\": 7"),
            ("\"n1\"", "\"n2\""),
            ("0.97", "0.98"),
            ("0.97", "0.970"),
            // The signature is verified before the payload is parsed.
            ("\"sequence\":7", "{"),
        ] {
            let changed = message.replace(from, to);
            assert_ne!(changed, message);
            let envelope = Envelope { payload: changed.clone().into_bytes(), ..sent.clone() };
            let read = read(&envelope);
            assert!(matches!(read, Err(ReportError::Envelope(EnvelopeError::Signature))), "{changed}");
        }
        for number in ["0", "9007199254740993"] {
            let odd = message.replace("\"sequence\":7", &format!("\"sequence\":7,\"bootNumber\":{number}"));
            let read = read(&signed(&odd));
            assert!(matches!(read, Err(ReportError::Count { what: "boot number" })), "{number}");
        }
        let twice = message.replace("\"sequence\":7", "\"sequence\":7,\"sequence\":7");
        assert!(matches!(read(&signed(&twice)), Err(ReportError::Envelope(EnvelopeError::Message(_)))));
    }

    #[test]
    fn only_the_known_payload_type_is_accepted() {
        let mut other = json!(signed(&message()));
        other["payloadType"] = "application/vnd.landfall.report.v2+json".into();
        let problem = crate::problem::Problem::from(read(&other).unwrap_err());
        assert_eq!((problem.status, problem.retry), (422, false));
        assert!(problem.detail.contains("`application/vnd.landfall.report.v1+json`"), "{problem:?}");
    }
}
