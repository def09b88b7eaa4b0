//! The kubelet of a simulated machine. It starts as soon as the gate opens, and records the configuration at its
//! start.

use crate::environment::Environment as _;
use crate::in_place::flavour::Flavour;
use crate::in_place::gate::Gate;
use crate::in_place::run::look_at_gate;
use crate::in_place::units;

use super::machine::Machine;

/// The configuration of the machine when its kubelet started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Old,
    New,
    /// Neither: a kubelet that starts now would run with a partial configuration.
    Between,
}

impl Machine {
    /// Starts the kubelet in this boot, if it is not running and the gate is open.
    pub(super) fn try_kubelet(&self) {
        if self.disk_is_off() || self.kubelet_runs() {
            return;
        }
        let gated = self.exists(&units::drop_in()).unwrap();
        if gated && !matches!(look_at_gate(self), Ok(Gate::Open { .. })) {
            return;
        }
        let life = self.life();
        // The second half of the payload starts the kubelet itself, at its very end.
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
