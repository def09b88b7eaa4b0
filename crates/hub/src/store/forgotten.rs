//! Nodes that were forgotten and may come again.

use landfall_model::envelope::is_later_boot;

use super::Arrival;

/// What a node that signed had come to when it was forgotten. The same key has to say something newer than that to bring it
/// back: an envelope that somebody kept is not enough. Another key is that of a machine that was installed anew, and whatever its
/// clock says, it is heard.
#[derive(Debug)]
pub(super) struct Last {
    pub(super) boot: String,
    pub(super) boot_number: Option<i64>,
    pub(super) sequence: i64,
    /// As [`Arrival::moment`] tells.
    pub(super) moment: i64,
}

// === impl Last ===

impl Last {
    /// Whether the report, of a boot with this name, was made after it. A key stays with the machine that counts its boots, so
    /// that their numbers can be compared.
    pub(super) fn is_older_than(&self, arrival: &Arrival, boot: &str) -> bool {
        if self.boot == boot {
            return arrival.sequence.cast_signed() > self.sequence;
        }
        let number = self.boot_number.map(i64::cast_unsigned);
        is_later_boot((arrival.boot_number, arrival.moment()), (number, self.moment))
    }
}
