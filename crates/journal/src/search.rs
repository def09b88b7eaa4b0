//! Scan for entries in a file whose list of entries is broken.

use std::io;

use crate::damage::Fault;
use crate::object::{Kind, Objects};
use crate::source::Source;

/// Scans for an entry from `next` on, object by object, and in unreadable parts at every eighth byte. Every field read
/// reduces the budget, so that bytes crafted to look like many entries cannot cause unlimited work.
pub(crate) fn search<S: Source>(
    objects: &mut Objects<S>,
    next: &mut u64,
    budget: &mut u64,
) -> io::Result<Option<u64>> {
    let mut items = Vec::new();
    while *next < objects.size() && *budget > 0 {
        let offset = *next;
        match objects.any(offset) {
            Ok(Some((kind, size))) if kind == Kind::Entry as u8 => {
                let plausible = plausible(objects, offset, &mut items)?;
                *budget = budget.saturating_sub(items.len() as u64);
                if plausible {
                    *next += size.next_multiple_of(8);
                    return Ok(Some(offset));
                }
                *next += 8;
            }
            Ok(Some((_, size))) => *next += size.next_multiple_of(8),
            Ok(None) | Err(Fault::Damaged(_)) => *next += 8,
            Err(Fault::Read(error)) => return Err(error),
        }
    }
    Ok(None)
}

/// Returns whether the entry is valid: its fields must be readable and precede it, as every writer places them.
fn plausible<S: Source>(objects: &mut Objects<S>, offset: u64, items: &mut Vec<u64>) -> io::Result<bool> {
    let mut check = || -> Result<bool, Fault> {
        objects.entry(offset, items)?;
        if items.iter().any(|item| *item >= offset) {
            return Ok(false);
        }
        items.iter().try_for_each(|item| objects.data(*item).map(drop))?;
        Ok(true)
    };
    match check() {
        Ok(plausible) => Ok(plausible),
        Err(Fault::Damaged(_)) => Ok(false),
        Err(Fault::Read(error)) => Err(error),
    }
}
