//! Tombstones of deleted nodes.

use landfall_model::envelope::is_later_boot;

use super::Arrival;

/// The newest report of a deleted node that signed. A report with the same key must be newer than this one to
/// re-create the node, so a replayed envelope is rejected. Another key belongs to a reinstalled machine and is
/// accepted regardless of its clock.
#[derive(Debug)]
pub(super) struct Last {
    pub(super) boot: String,
    pub(super) boot_number: Option<i64>,
    pub(super) sequence: i64,
    /// [`Arrival::moment`] of the report.
    pub(super) moment: i64,
}

// === impl Last ===

impl Last {
    /// Returns whether a report, of a boot with this name, is newer than the tombstone. A key stays on the machine
    /// that counts its boots, so boot numbers of the same key are comparable.
    pub(super) fn is_older_than(&self, arrival: &Arrival, boot: &str) -> bool {
        if self.boot == boot {
            return arrival.sequence.cast_signed() > self.sequence;
        }
        let number = self.boot_number.map(i64::cast_unsigned);
        is_later_boot((arrival.boot_number, arrival.moment()), (number, self.moment))
    }
}
