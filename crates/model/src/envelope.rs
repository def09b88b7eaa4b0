//! The envelope of a report: the bytes of a message and a signature over them.
//!
//! Envelopes follow [DSSE](https://github.com/secure-systems-lab/dsse). The payload is a [`ReportMessage`] as JSON. The
//! agent serializes and signs it once. Every carrier delivers those bytes, and receivers verify the signature before
//! they parse them. Several carriers may deliver one report (push, pull, a peer, a serial console). Receivers can
//! therefore distinguish:
//!
//! - **Duplicate:** the [`ReportId`] is chosen once per report. A receiver that has the ID keeps the first report and
//!   acknowledges the second without effect. The same ID with different content is rejected.
//! - **Delayed report:** [`ReportMessage::sequence`] counts the reports of one boot from 1, and
//!   [`ReportMessage::boot_number`] counts the boots of the host. Both are stored on its disk. Within a boot the highest
//!   sequence is current, and among boots the highest number. Agents without boot numbers are ordered by their clocks
//!   ([`is_later_boot`]). A report that is not newer than the current one is added to the history only.
//! - **Forged report:** signatures cover the type and all bytes of the payload ([`signed_bytes`]). All fields of a
//!   report are in the payload.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::{Builder, Uuid};

use crate::identity::NodeIdentity;
use crate::report::Report;

/// The type of the payload, with the version of [`ReportMessage`]. Fields are added, never changed; readers ignore
/// unknown ones. An incompatible message gets another type.
pub const PAYLOAD_TYPE: &str = "application/vnd.landfall.report.v1+json";

/// Maximum size of an envelope, which is enough for a message of 1 MiB: base64 is a third longer. Reports of this
/// version are below 100 KiB; the rest is a reserve for future rules.
pub const MAX_ENVELOPE: usize = (1 << 20) / 3 * 4 + (4 << 10);

/// A payload and its signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Envelope {
    /// `application/vnd.landfall.report.v1+json`.
    pub payload_type: String,
    /// A [`ReportMessage`] as JSON, in base64 with padding.
    #[serde(with = "base64_text")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "payload_schema"))]
    pub payload: Vec<u8>,
    /// At most one signature; empty if the sender does not sign.
    pub signatures: Vec<Signature>,
}

/// An Ed25519 signature over [`signed_bytes`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Signature {
    /// The public key, 32 bytes in hexadecimal.
    pub keyid: String,
    /// The signature, 64 bytes in base64 with padding.
    #[serde(with = "base64_text")]
    #[cfg_attr(feature = "schema", schemars(with = "String", extend("contentEncoding" = "base64")))]
    pub sig: Vec<u8>,
}

/// A report with its sender, time and position: the payload of an envelope. Receivers may leave the report unparsed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ReportMessage"))]
pub struct ReportMessage<R = Report> {
    pub id: ReportId,
    /// Identity of the host; its `bootId` is the scope of `sequence`.
    pub node: NodeIdentity,
    /// Number of boots in which the host reported, from 1. Earlier agents omit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_number: Option<u64>,
    /// Position among the reports of one boot, from 1.
    pub sequence: u64,
    /// Creation time of the report, by the host's own clock, which may be wrong.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub time: Timestamp,
    pub report: R,
}

/// Reasons why an envelope is rejected.
#[derive(Debug, thiserror::Error)]
pub enum EnvelopeError {
    #[error("it is not a report in its envelope")]
    Json(#[source] serde_json::Error),
    #[error("the payload type of its envelope is not `{PAYLOAD_TYPE}`")]
    PayloadType,
    #[error(
        "its envelope must have one Ed25519 signature: 64 bytes in base64 (`sig`) by a key of 32 in hexadecimal (`keyid`)"
    )]
    SignatureForm,
    #[error("its signature does not match the payload")]
    Signature,
    #[error("the payload of its envelope is not a report message")]
    Message(#[source] serde_json::Error),
}

/// The permanent ID of one report: a version 7 UUID, so that later IDs sort later.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Cow<'_, str>", into = "String")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(with = "String"))]
pub struct ReportId(Uuid);

/// An invalid report ID.
#[derive(Debug, thiserror::Error)]
#[error("a report's id is a UUID: 32 lower-case hexadecimal digits with hyphens after 8, 12, 16 and 20")]
pub struct InvalidReportId;

/// Returns the signed content: DSSE's pre-authentication encoding of the payload and its type.
pub fn signed_bytes(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len());
    [head.as_bytes(), payload].concat()
}

/// Returns whether the first of two boots of a host is the later one. Each has a number and a time. Boots have numbers
/// because clocks may be unset or set back. The clock decides if a number is missing, or if both are equal because the
/// disk was not writable in between.
pub fn is_later_boot<T: Ord + Copy>(one: (Option<u64>, T), other: (Option<u64>, T)) -> bool {
    match (one.0, other.0) {
        (Some(one), Some(other)) if one != other => one > other,
        _ => one.1 > other.1,
    }
}

mod base64_text {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(feature = "schema")]
fn payload_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let message = generator.subschema_for::<ReportMessage>();
    schemars::json_schema!({
        "type": "string",
        "contentEncoding": "base64",
        "contentMediaType": "application/json",
        "contentSchema": message,
    })
}

// === impl Envelope ===

impl Envelope {
    /// Parses an envelope with a payload of the known type, whose signature is not verified.
    pub fn parse(json: &[u8]) -> Result<Self, EnvelopeError> {
        let envelope: Self = serde_json::from_slice(json).map_err(EnvelopeError::Json)?;
        if envelope.payload_type == PAYLOAD_TYPE { Ok(envelope) } else { Err(EnvelopeError::PayloadType) }
    }

    /// Puts a payload into an envelope without a signature.
    pub fn unsigned(payload: Vec<u8>) -> Self {
        Self { payload_type: PAYLOAD_TYPE.to_owned(), payload, signatures: Vec::new() }
    }

    /// Parses the payload, without verifying the signature.
    pub fn message(&self) -> Result<ReportMessage, EnvelopeError> {
        serde_json::from_slice(&self.payload).map_err(EnvelopeError::Message)
    }
}

// === impl ReportMessage ===

impl ReportMessage {
    /// Returns whether this report is later than another one of the same host.
    pub fn is_after(&self, other: &Self) -> bool {
        if self.node.boot_id == other.node.boot_id {
            return self.sequence > other.sequence;
        }
        is_later_boot((self.boot_number, self.time), (other.boot_number, other.time))
    }
}

// === impl ReportId ===

impl ReportId {
    /// Creates an ID from the time and ten unpredictable bytes.
    pub fn new(now: Timestamp, random: [u8; 10]) -> Self {
        Self::at(u64::try_from(now.as_millisecond()).unwrap_or(0), random)
    }

    /// Creates an ID that sorts after this one, even if the clock was set back meanwhile.
    #[must_use]
    pub fn next(self, now: Timestamp, random: [u8; 10]) -> Self {
        let mut last = [0; 8];
        last[2..].copy_from_slice(&self.0.as_bytes()[..6]);
        // At the maximum timestamp, IDs no longer grow.
        let least = (u64::from_be_bytes(last) + 1).min((1 << 48) - 1);
        Self::at(u64::try_from(now.as_millisecond()).unwrap_or(0).max(least), random)
    }

    fn at(milliseconds: u64, random: [u8; 10]) -> Self {
        Self(Builder::from_unix_timestamp_millis(milliseconds, &random).into_uuid())
    }

    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

impl FromStr for ReportId {
    type Err = InvalidReportId;

    fn from_str(text: &str) -> Result<Self, InvalidReportId> {
        let id = Uuid::try_parse(text).map_err(|_| InvalidReportId)?;
        // Each ID has exactly one valid notation.
        let is_canonical = id.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text;
        if is_canonical { Ok(Self(id)) } else { Err(InvalidReportId) }
    }
}

impl TryFrom<Cow<'_, str>> for ReportId {
    type Error = InvalidReportId;

    fn try_from(text: Cow<'_, str>) -> Result<Self, InvalidReportId> {
        text.parse()
    }
}

impl From<ReportId> for String {
    fn from(id: ReportId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for ReportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for ReportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_printed_and_later_ids_sort_later() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let id = ReportId::new(at(1_700_000_000), [0xff; 10]);
        assert_eq!(id.to_string(), "018bcfe5-6800-7fff-bfff-ffffffffffff");
        assert_eq!(id.to_string().parse::<ReportId>().unwrap(), id);
        assert!(ReportId::new(at(1_700_000_001), [0; 10]) > id);
        assert_eq!(serde_json::from_value::<ReportId>(json!(id)).unwrap(), id);
    }

    #[test]
    fn the_next_id_sorts_later_whatever_the_clock_says() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = ReportId::new(at(1_700_000_000), [0xff; 10]);
        let mut last = first;
        for second in [0, 1_700_000_000, 1_600_000_000, 1_700_000_001] {
            let next = last.next(at(second), [0; 10]);
            assert!(next > last, "{next} after {last}");
            last = next;
        }
        assert_eq!(last, ReportId::new(at(1_700_000_001), [0; 10]));
        let end = ReportId::from_bytes([0xff; 16]);
        assert_eq!(end.next(at(0), [0xff; 10]).as_bytes()[..6], [0xff; 6]);
    }

    #[test]
    fn boots_are_ordered_by_their_numbers_and_without_them_by_the_clock() {
        for (one, other, later) in [
            ((Some(2), 10), (Some(1), 20), true),
            ((Some(1), 20), (Some(2), 10), false),
            ((Some(2), 20), (Some(2), 10), true),
            ((None, 20), (Some(2), 10), true),
            ((Some(3), 10), (None, 20), false),
            ((None, 10), (None, 10), false),
        ] {
            assert_eq!(is_later_boot(one, other), later, "{one:?} {other:?}");
        }
    }

    #[test]
    fn what_is_no_uuid_is_refused() {
        for bad in [
            "",
            "018bcfe5-6800-7fff-bfff-fffffffffff",
            "018BCFE5-6800-7fff-bfff-ffffffffffff",
            "018bcfe5+6800-7fff-bfff-ffffffffffff",
            "018bcfe5-6800-7fff-bfff-ffffffffff-f",
            "ééééééééé-éé",
        ] {
            assert!(bad.parse::<ReportId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_signed_bytes_are_those_of_the_specification() {
        // The test vector of DSSE's `protocol.md`.
        let signed = signed_bytes("http://example.com/HelloWorld", b"hello world");
        assert_eq!(signed, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
        // The lengths separate type and payload.
        assert_ne!(signed_bytes("a", b"1 b"), signed_bytes("a 3 1", b"b"));
    }

    #[test]
    fn an_envelope_is_read_as_it_is_written_whatever_its_layout() {
        let envelope = Envelope {
            signatures: vec![Signature { keyid: "ab".repeat(32), sig: vec![0xff; 64] }],
            ..Envelope::unsigned(b"{\"any\": 1.50}".to_vec())
        };
        for written in [serde_json::to_vec(&envelope).unwrap(), serde_json::to_vec_pretty(&envelope).unwrap()]
        {
            assert_eq!(Envelope::parse(&written).unwrap(), envelope);
        }
        let escaped = json!(envelope).to_string().replace('/', "\\/").replace("ey", "\\u0065y");
        assert_eq!(Envelope::parse(escaped.as_bytes()).unwrap(), envelope);
    }

    #[test]
    fn an_envelope_has_its_type_and_its_signatures() {
        let with = |field: &str, value: serde_json::Value| {
            let mut envelope = json!(Envelope::unsigned(b"{}".to_vec()));
            envelope[field] = value;
            Envelope::parse(envelope.to_string().as_bytes())
        };
        assert!(with("other", json!([1])).is_ok(), "unknown fields are ignored");
        for other in ["application/vnd.landfall.report.v2+json", "", "application/json"] {
            let error = with("payloadType", json!(other)).unwrap_err();
            assert!(matches!(error, EnvelopeError::PayloadType), "{error}");
            assert!(error.to_string().contains(PAYLOAD_TYPE), "{error}");
        }
        for (field, value) in [
            ("signatures", json!(null)),
            ("signatures", json!([{"keyid": "00"}])),
            ("payload", json!({})),
            ("payload", json!([123, 125])),
        ] {
            assert!(matches!(with(field, value.clone()), Err(EnvelopeError::Json(_))), "{field} {value}");
        }
        // A payload has one encoding.
        for bad in ["e30", "e31=", "e30=\n", "e3 0=", "-_-_", "{}"] {
            assert!(matches!(with("payload", json!(bad)), Err(EnvelopeError::Json(_))), "{bad:?}");
        }
        let missing = format!(r#"{{"payloadType":"{PAYLOAD_TYPE}","payload":"e30="}}"#);
        assert!(Envelope::parse(missing.as_bytes()).is_err(), "a missing list is not an empty one");
        let twice = missing.replace("\"payload\":", "\"signatures\":[],\"payload\":\"e30=\",\"payload\":");
        assert!(Envelope::parse(twice.as_bytes()).is_err());
    }

    #[test]
    fn deep_nesting_is_read_without_recursion() {
        let nested = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
        let envelope =
            format!(r#"{{"payloadType":"{PAYLOAD_TYPE}","payload":"e30=","signatures":[],"x":{nested}}}"#);
        assert!(Envelope::parse(envelope.as_bytes()).is_ok());
        assert!(Envelope::unsigned(nested.into_bytes()).message().is_err());
    }
}
