//! From the bytes of a request to a report that may be stored.

use jiff::Timestamp;
use landfall_model::envelope::{FORMAT, ReportId, Signature, signed_bytes};
use landfall_model::identity::NodeIdentity;
use landfall_model::report::{self, Report};
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::name::{InvalidNodeName, NodeName};
use crate::store::Arrival;

/// One report, unpacked. The engine's own are below 100 KiB; the rest is room for what rules will quote one day.
pub(crate) const MAX_REPORT: usize = 1 << 20;
/// A title is one line on a board.
const MAX_TITLE: usize = 1024;
/// Identifiers of machines and boots, names of systems and components.
const MAX_NAME: usize = 256;
/// Words kept for search of one report; what lies beyond is still in the report itself.
const MAX_WORDS: usize = 32 << 10;
/// Counts stay exact in JSON readers that know only double precision.
const MAX_SEQUENCE: u64 = 1 << 53;

/// Why a body is no report. Its sender is to blame, and sending it again cannot help.
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
    #[error("its sequence is not between 1 and 2^53")]
    Sequence,
    #[error("its signature is not a key of 32 bytes and a value of 64 in hexadecimal")]
    SignatureForm,
    #[error("its signature does not fit")]
    Signature,
}

/// The envelope with the report left as it is written, so that fields this version does not know are kept.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Incoming<'a> {
    format: u32,
    id: ReportId,
    node: NodeIdentity,
    sequence: u64,
    time: Timestamp,
    #[serde(borrow)]
    report: &'a RawValue,
    #[serde(default)]
    signature: Option<Signature>,
}

/// Reads one report. Whether its sender may say so is another question.
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
    if !(1..=MAX_SEQUENCE).contains(&incoming.sequence) {
        return Err(ReportError::Sequence);
    }
    bounded(&incoming.node, &report)?;
    let key = incoming.signature.as_ref().map(|signature| check_signature(body, signature)).transpose()?;
    Ok(Arrival {
        id: incoming.id,
        node,
        identity: incoming.node,
        sequence: incoming.sequence,
        time: incoming.time,
        received,
        words: words(&report),
        verdict: report.verdict,
        report: text.to_owned(),
        digest: Sha256::digest(text.as_bytes()).into(),
        key,
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

fn check_signature(body: &[u8], signature: &Signature) -> Result<Vec<u8>, ReportError> {
    let key = hexadecimal(&signature.key).filter(|key| key.len() == 32).ok_or(ReportError::SignatureForm)?;
    let value =
        hexadecimal(&signature.value).filter(|value| value.len() == 64).ok_or(ReportError::SignatureForm)?;
    let envelope: serde_json::Value = serde_json::from_slice(body).map_err(ReportError::Json)?;
    let message = signed_bytes(&envelope);
    if landfall_pki::verify_signature(&key, &message, &value) { Ok(key) } else { Err(ReportError::Signature) }
}

fn hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

/// What a person would search for: the verdict, and the lines that prove it.
fn words(report: &Report) -> String {
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
