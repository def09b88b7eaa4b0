//! The kubelet of a machine in memory: it starts as soon as the gate lets it, and notes with which life it did.

use crate::flavour::Flavour;
use crate::gate::Gate;
use crate::run::look_at_gate;
use crate::units;
use crate::world::World as _;

use super::machine::Machine;

/// What the machine was when its kubelet started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Old,
    New,
    /// Neither: a kubelet that starts now would run on half a configuration.
    Between,
}

impl Machine {
    /// The kubelet starts in this boot, if it has not and the gate is open.
    pub(super) fn try_kubelet(&self) {
        if self.disk_is_off() || self.kubelet_runs() {
            return;
        }
        let gated = self.exists(&units::drop_in()).unwrap();
        if gated && !matches!(look_at_gate(self), Ok(Gate::Open { .. })) {
            return;
        }
        let life = self.life();
        // The payload's second half starts the kubelet itself, at its very end.
        if life == Life::Between && self.flavour() == Flavour::Rhel && gated {
            return;
        }
        assert_ne!(life, Life::Between, "a kubelet started between two lives: {:#?}", self.operations());
        assert!(
            life == Life::Old || !self.is_labelled(),
            "the kubelet of the new life started with the label on"
        );
        self.start_kubelet(life);
    }
}
