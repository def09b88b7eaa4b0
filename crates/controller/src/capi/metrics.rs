//! What can be asked of a running controller of Cluster API.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::condition::Status;
use super::plan::{Action, World};
use crate::metrics::{Numbers, head};

#[derive(Debug, Default)]
pub struct Metrics {
    leads: AtomicBool,
    connected: AtomicBool,
    counts: Mutex<Counts>,
    looks_failed: AtomicU64,
    hub_failed: AtomicU64,
    written: AtomicU64,
    writes_failed: AtomicU64,
    conflicts: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    statuses: [usize; Status::ALL.len()],
    unheard: usize,
    held: usize,
    ambiguous: usize,
}

// === impl Metrics ===

impl Metrics {
    pub(crate) fn leads(&self, leads: bool) {
        self.connected.store(true, Ordering::Relaxed);
        self.leads.store(leads, Ordering::Relaxed);
    }

    pub(crate) fn seen(&self, world: &World, ambiguous: usize) {
        let machines = || world.machines.iter().map(|seen| &seen.machine);
        let mut counts = Counts {
            held: machines().filter(|machine| machine.has_hook).count(),
            unheard: world.machines.iter().filter(|seen| seen.heard.is_none()).count(),
            ambiguous,
            ..Counts::default()
        };
        for (count, status) in counts.statuses.iter_mut().zip(Status::ALL) {
            let is_so = |machine: &super::machine::Machine| {
                machine.condition.as_ref().is_some_and(|condition| condition.status == status)
            };
            *count = machines().filter(|machine| is_so(machine)).count();
        }
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    pub(crate) fn look_failed(&self) {
        self.looks_failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn hub_failed(&self) {
        self.hub_failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn write_failed(&self) {
        self.writes_failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn conflict(&self) {
        self.conflicts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn done(&self, action: &Action) {
        if matches!(action, Action::Show { .. } | Action::Clear { .. }) {
            self.written.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Numbers for Metrics {
    fn text(&self) -> String {
        let mut text = String::new();
        let counts = *self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        head(&mut text, "machines_count", "gauge", "Machines by the status of their condition");
        // Writing to a string cannot fail.
        for (count, status) in counts.statuses.iter().zip(Status::ALL) {
            let _ =
                writeln!(text, "landfall_controller_machines_count{{status=\"{}\"}} {count}", status.name());
        }
        let leads = u64::from(self.leads.load(Ordering::Relaxed));
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let counter = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for (name, kind, help, value) in [
            ("leader_info", "gauge", "Whether this one leads", leads),
            ("machines_unheard_count", "gauge", "Machines nothing was heard of", number(counts.unheard)),
            ("machines_held_count", "gauge", "Machines held for their evidence", number(counts.held)),
            (
                "reports_ambiguous_count",
                "gauge",
                "Reports that several Machines answer to",
                number(counts.ambiguous),
            ),
            ("looks_failed_total", "counter", "Looks that were not answered", counter(&self.looks_failed)),
            (
                "hub_failed_total",
                "counter",
                "Looks at which the hub did not tell of every node",
                counter(&self.hub_failed),
            ),
            ("conditions_written_total", "counter", "Conditions written", counter(&self.written)),
            ("writes_failed_total", "counter", "Writes that were not made", counter(&self.writes_failed)),
            (
                "conflicts_total",
                "counter",
                "Writes refused because somebody else owns what is ours",
                counter(&self.conflicts),
            ),
        ] {
            head(&mut text, name, kind, help);
            let _ = writeln!(text, "landfall_controller_{name} {value}");
        }
        text
    }

    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }
}
