use std::io;

use crate::damage::Fault;
use crate::file::{Error, JournalFile};
use crate::id128::Id128;
use crate::list::List;
use crate::source::Source;

/// Maximum number of listed boots: a host that boots every minute for a week.
const MAX_BOOTS: usize = 10_000;

/// A boot with entries in the journal. Times are microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boot {
    pub id: Id128,
    pub first: u64,
    pub last: u64,
}

// === impl JournalFile ===

impl<S: Source> JournalFile<S> {
    /// Adds the boots of this file to a list, or extends the time spans in it.
    pub(crate) fn boots(&mut self, boots: &mut Vec<Boot>) -> Result<(), Error> {
        let mut ids = Vec::new();
        self.values("_BOOT_ID", |value| {
            if ids.len() < MAX_BOOTS {
                ids.extend(Id128::parse(value));
            }
        })?;
        for id in ids {
            let Some((first, last)) = self.span_of(id).map_err(Error::Read)? else { continue };
            if let Some(boot) = boots.iter_mut().find(|boot| boot.id == id) {
                (boot.first, boot.last) = (boot.first.min(first), boot.last.max(last));
            } else if boots.len() < MAX_BOOTS {
                boots.push(Boot { id, first, last });
            }
        }
        Ok(())
    }

    /// Returns the times of the first and the last entry of a boot.
    fn span_of(&mut self, id: Id128) -> io::Result<Option<(u64, u64)>> {
        let Some(index) = self.find_value(format!("_BOOT_ID={id}").as_bytes())? else { return Ok(None) };
        let mut last = index.first;
        let walked = List::new(index).advance(self.objects(), |_, offset| {
            last = if offset == 0 { last } else { offset };
            Ok(Some(false))
        });
        let times = walked.and_then(|_| {
            let first = self.objects().entry_address(index.first)?.realtime;
            Ok((first, self.objects().entry_address(last)?.realtime))
        });
        match times {
            Ok(times) => Ok(Some(times)),
            Err(Fault::Read(error)) => Err(error),
            Err(fault @ Fault::Damaged(_)) => self.note_damage(fault).map(|()| None),
        }
    }
}
