//! The envelope of a report: who says it, when, and which of the same machine's reports it is.
//!
//! One report may travel by several carriers (pushed, pulled, through a neighbour, over a serial console). It is put into
//! its envelope once, where it is made, and every carrier carries that envelope unchanged. So receivers can tell:
//!
//! - **Same report, again:** the [`ReportId`] is chosen once per report. Who has an id already keeps the first and
//!   acknowledges the second without effect. The same id with other content is refused.
//! - **Old report, late:** [`Envelope::sequence`] counts the reports of one boot from 1, [`Envelope::boot_number`] the boots
//!   of the machine; both are kept on its disk. Within a boot the highest sequence is the present, among boots the highest
//!   number. Agents that do not count boots are ordered by their clocks ([`is_later_boot`]). What is not newer than the
//!   present goes into the history only.
//! - **Another's report:** where envelopes are signed, the signature covers [`signed_bytes`], every field but the
//!   signature itself, in an order and spelling of their own, so that a carrier may lay out the JSON anew.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::identity::NodeIdentity;
use crate::report::Report;

/// The version of the envelope format. Fields are added, never changed; readers ignore what they do not know.
pub const FORMAT: u32 = 1;

/// Values within values; what we write has eight. Each is read once for every value it lies in.
const MAX_DEPTH: usize = 32;

/// A report on its way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Envelope {
    pub format: u32,
    pub id: ReportId,
    /// Its `bootId` tells which boot `sequence` counts in.
    pub node: NodeIdentity,
    /// Counts the boots in which the machine reported, from 1. Earlier agents do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_number: Option<u64>,
    /// Counts the reports of one boot, from 1.
    pub sequence: u64,
    /// When the report was made, by the machine's own clock, which may be wrong.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub time: Timestamp,
    pub report: Report,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}

/// Ed25519 over [`signed_bytes`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Signature {
    /// The public key, 32 bytes in hexadecimal.
    pub key: String,
    /// The signature, 64 bytes in hexadecimal.
    pub value: String,
}

/// Names one report for ever: a UUID of version 7, so that ids made later sort later.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Cow<'_, str>", into = "String")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(with = "String"))]
pub struct ReportId([u8; 16]);

/// A text that is no UUID.
#[derive(Debug, thiserror::Error)]
#[error("a report's id is a UUID: 32 lower-case hexadecimal digits with hyphens after 8, 12, 16 and 20")]
pub struct InvalidReportId;

/// What a signature covers: the envelope without its `signature`, keys sorted, no blanks. Works on the JSON itself, so that
/// fields this version does not know are covered too.
pub fn signed_bytes(envelope: &[u8]) -> serde_json::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    canonical(serde_json::from_slice(envelope)?, true, MAX_DEPTH, &mut bytes)?;
    Ok(bytes)
}

/// Whether the first of two boots of a machine is the later one, each given by its number and a time of it. Clocks that are
/// not set yet, or were set back, are why boots have numbers; where one has none, or both have the same because the disk
/// could not be written in between, there is only the clock.
pub fn is_later_boot<T: Ord + Copy>(one: (Option<u64>, T), other: (Option<u64>, T)) -> bool {
    match (one.0, other.0) {
        (Some(one), Some(other)) if one != other => one > other,
        _ => one.1 > other.1,
    }
}

/// An envelope as it should travel: spelled as it was signed, so that a receiver which cuts the signature out has the very
/// bytes that were signed.
pub fn written(envelope: &Envelope) -> serde_json::Result<Vec<u8>> {
    respelled(&serde_json::to_vec(envelope)?)
}

/// An envelope that others may have laid out anew, as [`written`] spells it; with the fields this version does not know.
pub fn respelled(envelope: &[u8]) -> serde_json::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    canonical(serde_json::from_slice(envelope)?, false, MAX_DEPTH, &mut bytes)?;
    Ok(bytes)
}

/// Spells one value, level by level over the text: as a tree, a megabyte of empty objects would take a hundred.
fn canonical(value: &RawValue, outermost: bool, depth: usize, bytes: &mut Vec<u8>) -> serde_json::Result<()> {
    let depth = depth.checked_sub(1).ok_or_else(|| serde_json::Error::custom("it is nested too deep"))?;
    let text = value.get();
    match text.as_bytes().first() {
        Some(b'{') => {
            // Of fields with the same name the last counts, as for whoever reads it.
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

/// Writes what holds nothing else. Neither a text nor a number can fail to be written, nor can memory.
fn spell(plain: &(impl Serialize + ?Sized), bytes: &mut Vec<u8>) {
    let _ = serde_json::to_writer(bytes, plain);
}

// === impl Envelope ===

impl Envelope {
    /// Whether it was made after another report of the same machine.
    pub fn is_after(&self, other: &Self) -> bool {
        if self.node.boot_id == other.node.boot_id {
            return self.sequence > other.sequence;
        }
        is_later_boot((self.boot_number, self.time), (other.boot_number, other.time))
    }
}

// === impl ReportId ===

impl ReportId {
    /// A new id from the time and ten bytes nobody can guess.
    pub fn new(now: Timestamp, random: [u8; 10]) -> Self {
        Self::at(u64::try_from(now.as_millisecond()).unwrap_or(0), random)
    }

    /// A new id that sorts after this one, also when the clock was set back meanwhile.
    #[must_use]
    pub fn next(self, now: Timestamp, random: [u8; 10]) -> Self {
        let mut last = [0; 8];
        last[2..].copy_from_slice(&self.0[..6]);
        // At the end of all times they no longer grow.
        let least = (u64::from_be_bytes(last) + 1).min((1 << 48) - 1);
        Self::at(u64::try_from(now.as_millisecond()).unwrap_or(0).max(least), random)
    }

    fn at(milliseconds: u64, random: [u8; 10]) -> Self {
        let mut id = [0; 16];
        id[..6].copy_from_slice(&milliseconds.to_be_bytes()[2..]);
        id[6..].copy_from_slice(&random);
        id[6] = id[6] & 0x0f | 0x70;
        id[8] = id[8] & 0x3f | 0x80;
        Self(id)
    }

    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl FromStr for ReportId {
    type Err = InvalidReportId;

    fn from_str(text: &str) -> Result<Self, InvalidReportId> {
        let bytes = text.as_bytes();
        if bytes.len() != 36 || [8, 13, 18, 23].iter().any(|at| bytes[*at] != b'-') {
            return Err(InvalidReportId);
        }
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(InvalidReportId),
        };
        let digits: Vec<u8> =
            bytes.iter().filter(|byte| **byte != b'-').map(|byte| digit(*byte)).collect::<Result<_, _>>()?;
        let pairs: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        pairs.try_into().map(Self).map_err(|_| InvalidReportId)
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
        for (number, byte) in self.0.iter().enumerate() {
            if [4, 6, 8, 10].contains(&number) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
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
