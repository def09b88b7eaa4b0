//! Metrics of the Cluster API controller.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use landfall_net::metrics::{Counter, MetricType, MetricsText};

use super::condition::Status;
use super::plan::{Action, World};
use crate::metrics::{Numbers, PREFIX};

#[derive(Debug, Default)]
pub struct Metrics {
    leads: AtomicBool,
    connected: AtomicBool,
    counts: Mutex<Counts>,
    pub(crate) looks_failed: Counter,
    pub(crate) hub_failed: Counter,
    written: Counter,
    pub(crate) writes_failed: Counter,
    pub(crate) conflicts: Counter,
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

    pub(crate) fn done(&self, action: &Action) {
        if matches!(action, Action::Show { .. } | Action::Clear { .. }) {
            self.written.increment();
        }
    }
}

impl Numbers for Metrics {
    fn text(&self) -> String {
        let mut text = MetricsText::new(PREFIX);
        let counts = *self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let help = "Number of Machines, by status of their condition.";
        let mut machines = text.family("machines_count", MetricType::Gauge, help);
        for (count, status) in counts.statuses.iter().zip(Status::ALL) {
            machines.value(&[("status", status.name())], count);
        }
        let leads = u8::from(self.leads.load(Ordering::Relaxed));
        text.gauge("leader_info", "Whether this replica is the leader.", leads);
        text.gauge("machines_unheard_count", "Number of Machines without a report.", counts.unheard);
        text.gauge("machines_held_count", "Number of Machines held for their evidence.", counts.held);
        let help = "Number of reports that match several Machines.";
        text.gauge("reports_ambiguous_count", help, counts.ambiguous);
        for (name, help, counter) in [
            ("looks_failed_total", "Total number of failed cluster observations.", &self.looks_failed),
            ("hub_failed_total", "Total number of passes with incomplete hub data.", &self.hub_failed),
            ("conditions_written_total", "Total number of conditions written.", &self.written),
            ("writes_failed_total", "Total number of failed writes.", &self.writes_failed),
            (
                "conflicts_total",
                "Total number of writes rejected because another manager owns the field.",
                &self.conflicts,
            ),
        ] {
            text.counter(name, help, counter);
        }
        text.finish()
    }

    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }
}
