//! Lines recognized by a rule or milestone.

use std::collections::VecDeque;

use crate::moment::Time;
use crate::origin::Origin;
use crate::pattern::Captures;

/// Lines kept from the start and the end of a run of the same kind. A finding shows a few; the middle of a
/// retry loop adds no information.
pub(crate) const KEPT: usize = 6;

/// Lines of one kind: the first and the last ones, and their number.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Hits {
    pub(crate) first: Vec<Hit>,
    pub(crate) last: VecDeque<Hit>,
    pub(crate) count: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hit {
    pub(crate) line: u64,
    pub(crate) time: Option<Time>,
    pub(crate) process: Option<String>,
    /// The stream within the source for citations: the process in text, or the unit recorded by journald.
    pub(crate) stream: Option<String>,
    pub(crate) origin: Origin,
    pub(crate) informational: bool,
    /// An item in kubeadm's list of all errors.
    pub(crate) itemised: bool,
    pub(crate) text: String,
    pub(crate) focus: String,
    pub(crate) before: Vec<String>,
    pub(crate) after: Vec<String>,
    pub(crate) captures: Captures,
}

// === impl Hit ===

impl Hit {
    /// Returns the text after the name of its writer.
    pub(crate) fn message(&self) -> &str {
        let behind_name = self.process.as_deref().and_then(|name| self.text.split_once(name));
        let message = behind_name.and_then(|(_, rest)| rest.split_once(": "));
        message.map_or(self.text.as_str(), |(_, message)| message)
    }
}

// === impl Hits ===

impl Hits {
    /// Adds the hits of a later chunk.
    pub(crate) fn append(&mut self, later: Self) {
        self.count += later.count;
        for hit in later.first.into_iter().chain(later.last) {
            if self.first.len() < KEPT {
                self.first.push(hit);
            } else {
                if self.last.len() == KEPT {
                    self.last.pop_front();
                }
                self.last.push_back(hit);
            }
        }
    }

    pub(crate) fn one(hit: Hit) -> Self {
        Self { first: vec![hit], last: VecDeque::new(), count: 1 }
    }

    /// Removes the hits that `keep` rejects.
    pub(crate) fn split_off(&mut self, keep: impl Fn(&Hit) -> bool) -> Option<Self> {
        let (first, out): (Vec<Hit>, Vec<Hit>) = std::mem::take(&mut self.first).into_iter().partition(&keep);
        let (last, late): (Vec<Hit>, Vec<Hit>) = std::mem::take(&mut self.last).into_iter().partition(&keep);
        (self.first, self.last) = (first, last.into());
        let out: Vec<Hit> = out.into_iter().chain(late).collect();
        let count = out.len() as u64;
        let kept = self.first.len() + self.last.len();
        self.count = if kept == 0 { 0 } else { self.count.saturating_sub(count) };
        (count > 0).then_some(Self { first: out, last: VecDeque::new(), count })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Hit> {
        self.first.iter().chain(&self.last)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Hit> {
        self.first.iter_mut().chain(&mut self.last)
    }

    pub(crate) fn newest(&self) -> Option<&Hit> {
        self.last.back().or(self.first.last())
    }
}
