use std::io;

use crate::damage::{Damage, DamageKind, DamageLog, Fault};
use crate::id128::Id128;
use crate::list::List;
use crate::object::{Index, Objects};
use crate::source::Source;

/// The message ID of systemd-coredump.
const COREDUMP: &str = "fc2e22bc6ee647b6b90729ab34a250b1";

/// A filter for entries, by exact values of fields.
///
/// It works like matches on journalctl's command line. Values of the same field are alternatives, different fields must
/// all match, and [`or`](Self::or) is the `+` between two sets of matches. The default filter matches every entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    any: Vec<Alternative>,
}

/// Conditions that must all match.
type Alternative = Vec<Values>;

/// Alternatives: the entry must contain one of these `NAME=value`.
type Values = Vec<Vec<u8>>;

/// A filter bound to one file, with the list of matching entries in place of every value.
#[derive(Debug)]
pub(crate) struct Matcher {
    any: Vec<Vec<Vec<List>>>,
}

// === impl Filter ===

impl Filter {
    /// Adds a match to the current set.
    #[must_use]
    pub fn field(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let wanted = [name.as_bytes(), b"=", value.as_ref()].concat();
        if self.any.is_empty() {
            self.any.push(Alternative::new());
        }
        let Some(all) = self.any.last_mut() else { return self };
        let prefix = &wanted[..=name.len()];
        match all.iter_mut().find(|values| values.iter().any(|value| value.starts_with(prefix))) {
            Some(values) => values.push(wanted),
            None => all.push(vec![wanted]),
        }
        self
    }

    /// Starts another set of matches; an entry matches if it matches any set.
    #[must_use]
    pub fn or(mut self) -> Self {
        if self.any.last().is_some_and(|all| !all.is_empty()) {
            self.any.push(Alternative::new());
        }
        self
    }

    /// Returns a filter for entries that match both filters.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        let (left, right) = (self.normal(), other.clone().normal());
        if left.any.is_empty() {
            return right;
        }
        if right.any.is_empty() {
            return left;
        }
        let pairs =
            left.any.iter().flat_map(|a| right.any.iter().map(move |b| [a.clone(), b.clone()].concat()));
        Self { any: pairs.collect() }
    }

    /// Returns a filter for all entries of one boot.
    pub fn boot(id: Id128) -> Self {
        Self::default().field("_BOOT_ID", id.to_string())
    }

    /// Returns a filter for all entries of a unit, like `journalctl --unit`. It includes messages of its processes, of
    /// systemd and privileged services about it, and its core dumps. The name must be complete (`kubelet.service`).
    pub fn unit(name: &str) -> Self {
        let filter = Self::default()
            .field("_SYSTEMD_UNIT", name)
            .or()
            .field("MESSAGE_ID", COREDUMP)
            .field("_UID", "0")
            .field("COREDUMP_UNIT", name)
            .or()
            .field("_PID", "1")
            .field("UNIT", name)
            .or()
            .field("_UID", "0")
            .field("OBJECT_SYSTEMD_UNIT", name);
        // Unit names are case-sensitive; this is not a file extension.
        if name.strip_suffix(".slice").is_some() { filter.or().field("_SYSTEMD_SLICE", name) } else { filter }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.any.iter().all(Vec::is_empty)
    }

    /// Binds the filter to a file; `find` looks up a value.
    pub(crate) fn bind(
        &self,
        mut find: impl FnMut(&[u8]) -> io::Result<Option<Index>>,
    ) -> io::Result<Matcher> {
        let mut any = Vec::new();
        for all in self.any.iter().filter(|all| !all.is_empty()) {
            let mut lists = Vec::new();
            for values in all {
                let mut found = Vec::new();
                for value in values {
                    found.extend(find(value)?.map(List::new));
                }
                lists.push(found);
            }
            any.push(lists);
        }
        Ok(Matcher { any })
    }

    fn normal(mut self) -> Self {
        self.any.retain(|all| !all.is_empty());
        self
    }
}

// === impl Matcher ===

impl Matcher {
    /// Returns the first matching entry at or after `from`, which must never decrease.
    pub(crate) fn next<S: Source>(
        &mut self,
        objects: &mut Objects<S>,
        from: u64,
        damage: &mut DamageLog,
    ) -> io::Result<Option<u64>> {
        let mut best = None;
        for all in &mut self.any {
            let found = next_of_all(all, objects, from, damage)?;
            best = [best, found].into_iter().flatten().min();
        }
        Ok(best)
    }
}

/// Intersects lists: the ones behind skip to the position of the foremost, until all are at the same entry.
fn next_of_all<S: Source>(
    all: &mut [Vec<List>],
    objects: &mut Objects<S>,
    from: u64,
    damage: &mut DamageLog,
) -> io::Result<Option<u64>> {
    let mut target = from;
    loop {
        let before = target;
        for values in all.iter_mut() {
            let mut nearest = None;
            for list in values.iter_mut() {
                let found = advance(list, objects, target, damage)?;
                nearest = [nearest, found].into_iter().flatten().min();
            }
            match nearest {
                Some(offset) => target = offset,
                None => return Ok(None),
            }
        }
        if target == before {
            return Ok(Some(target));
        }
    }
}

fn advance<S: Source>(
    list: &mut List,
    objects: &mut Objects<S>,
    target: u64,
    damage: &mut DamageLog,
) -> io::Result<Option<u64>> {
    // An unused slot contains 0 and sorts before everything.
    match list.advance(objects, |_, offset| Ok(Some(offset >= target))) {
        Ok(found) => Ok(found),
        Err(Fault::Damaged(Damage { offset, .. })) => {
            damage.add(Damage { offset, kind: DamageKind::BrokenIndex });
            *list = List::new(Index { first: 0, array: 0, total: 0 });
            Ok(None)
        }
        Err(Fault::Read(error)) => Err(error),
    }
}
