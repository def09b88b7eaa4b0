//! The envelope of a report: its sender, its time, and its position among the reports of the same host.
//!
//! Several carriers may deliver one report (push, pull, a peer, a serial console). The agent creates the envelope once,
//! and every carrier delivers it unchanged. Receivers can therefore distinguish:
//!
//! - **Duplicate:** the [`ReportId`] is chosen once per report. A receiver that has the ID keeps the first report and
//!   acknowledges the second without effect. The same ID with different content is rejected.
//! - **Delayed report:** [`Envelope::sequence`] counts the reports of one boot from 1, and [`Envelope::boot_number`]
//!   counts the boots of the host. Both are stored on its disk. Within a boot the highest sequence is current, and
//!   among boots the highest number. Agents without boot numbers are ordered by their clocks ([`is_later_boot`]). A
//!   report that is not newer than the current one is added to the history only.
//! - **Forged report:** signatures cover [`signed_bytes`]: every field except the signature itself, as canonical JSON.
//!   A carrier may therefore reformat the JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::{Builder, Uuid};

use crate::identity::NodeIdentity;
use crate::report::Report;

/// The version of the envelope format. Fields are added, never changed; readers ignore unknown ones.
pub const FORMAT: u32 = 1;

/// Maximum nesting depth of JSON values; envelopes have eight levels. Each value is parsed once per enclosing level.
const MAX_DEPTH: usize = 32;

/// A report with its sender, time and position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Envelope {
    pub format: u32,
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
    pub report: Report,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}

/// An Ed25519 signature over [`signed_bytes`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Signature {
    /// The public key, 32 bytes in hexadecimal.
    pub key: String,
    /// The signature, 64 bytes in hexadecimal.
    pub value: String,
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

/// Returns the signed content: the envelope without its `signature`, as canonical JSON with sorted keys and no blanks.
/// It processes the JSON itself, so that the signature covers unknown fields, too.
pub fn signed_bytes(envelope: &[u8]) -> serde_json::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    canonical(serde_json::from_slice(envelope)?, true, MAX_DEPTH, &mut bytes)?;
    Ok(bytes)
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

/// Returns an envelope as canonical JSON for delivery. A receiver that removes the signature then has exactly the
/// signed bytes.
pub fn written(envelope: &Envelope) -> serde_json::Result<Vec<u8>> {
    respelled(&serde_json::to_vec(envelope)?)
}

/// Returns the canonical JSON of an envelope that a carrier may have reformatted, including unknown fields.
pub fn respelled(envelope: &[u8]) -> serde_json::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    canonical(serde_json::from_slice(envelope)?, false, MAX_DEPTH, &mut bytes)?;
    Ok(bytes)
}

/// Writes a value as canonical JSON, level by level over the text: parsed as a tree, a megabyte of empty objects would
/// need a hundred.
fn canonical(value: &RawValue, outermost: bool, depth: usize, bytes: &mut Vec<u8>) -> serde_json::Result<()> {
    let depth = depth.checked_sub(1).ok_or_else(|| serde_json::Error::custom("it is nested too deep"))?;
    let text = value.get();
    match text.as_bytes().first() {
        Some(b'{') => {
            // The last of duplicate fields counts, as in JSON parsers.
            let mut fields: BTreeMap<String, &RawValue> = serde_json::from_str(text)?;
            if outermost {
                fields.remove("signature");
            }
            bytes.push(b'{');
            for (number, (name, value)) in fields.iter().enumerate() {
                if number > 0 {
                    bytes.push(b',');
                }
                spell(name, bytes);
                bytes.push(b':');
                canonical(value, false, depth, bytes)?;
            }
            bytes.push(b'}');
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text)?;
            bytes.push(b'[');
            for (number, item) in items.iter().enumerate() {
                if number > 0 {
                    bytes.push(b',');
                }
                canonical(item, false, depth, bytes)?;
            }
            bytes.push(b']');
        }
        _ => spell(&serde_json::from_str::<Value>(text)?, bytes),
    }
    Ok(())
}

/// Writes a scalar. Serializing text and numbers cannot fail, and neither can writing to memory.
fn spell(plain: &(impl Serialize + ?Sized), bytes: &mut Vec<u8>) {
    let _ = serde_json::to_writer(bytes, plain);
}

// === impl Envelope ===

impl Envelope {
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
    fn what_is_signed_does_not_depend_on_layout() {
        let signed = |text: &str| String::from_utf8(signed_bytes(text.as_bytes()).unwrap()).unwrap();
        let one = r#"{"b":[1,{"z":null,"a":"\u00e9"}],"a":0.970,"signature":1}"#;
        let other = "{ \"signature\": 2, \"a\": 0.97, \"b\": [ 1, { \"a\": \"é\", \"z\": null } ] }";
        assert_eq!(signed(one), signed(other));
        assert_eq!(signed(one), r#"{"a":0.97,"b":[1,{"a":"é","z":null}]}"#);
        assert_eq!(signed(r#"{"a":1,"\u0061":2}"#), r#"{"a":2}"#, "who reads it sees the last");
    }

    #[test]
    fn an_inner_signature_is_covered() {
        let signed = |text: &str| signed_bytes(text.as_bytes()).unwrap();
        assert_ne!(signed(r#"{"node":{"signature":"x"}}"#), signed(r#"{"node":{}}"#));
    }

    #[test]
    fn what_has_no_end_is_not_signed() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(signed_bytes(nested(MAX_DEPTH).as_bytes()).is_ok());
        assert!(signed_bytes(nested(MAX_DEPTH + 1).as_bytes()).is_err());
        assert!(signed_bytes(nested(200_000).as_bytes()).is_err());
    }
}
