//! Decides whether the kubelet may start, before it does, in every boot with an open attempt. A pure view of the
//! ledger.
//!
//! The label is removed before the machine goes down for the first time, and the ledger contains the attempt. A
//! kubelet that starts late therefore sees no label and causes no second run. The gate adds that no kubelet runs with
//! the old configuration while the new one is applied, not even after a power failure.

use landfall_model::step::StepState;
use landfall_steps::{BootId, RunRecord};

use crate::in_place::steps::{APPLY_MACHINE_CONFIG, INSTALL, INSTALLED_IN, RUN_KUBE, TAKE_LABEL_OFF};
use crate::run::is_open;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    Open { why: &'static str },
    Closed { why: String },
}

/// Returns the decision for these attempts in this boot.
pub fn gate(records: &[RunRecord], boot: &BootId) -> Gate {
    let Some(record) = records.iter().find(|record| is_open(record)) else {
        return Gate::Open { why: "no attempt is open" };
    };
    let step = |name: &str| record.steps().iter().find(|step| step.name == name);
    let is_behind = |name: &str| step(name).is_some_and(|step| step.state.is_behind());
    if !is_behind(INSTALL) || !is_behind(TAKE_LABEL_OFF) {
        return Gate::Open { why: "the attempt is not armed: nothing of this machine was changed" };
    }
    if is_behind(APPLY_MACHINE_CONFIG) || is_behind(RUN_KUBE) {
        return Gate::Open { why: "the claim is consumed: what was asked for is applied" };
    }
    // The scripts of the second half start the kubelet themselves and wait for it.
    let begun_here =
        step(RUN_KUBE).is_some_and(|step| step.state == StepState::Applying && step.boot_id == boot.as_str());
    if begun_here {
        return Gate::Open { why: "the payload is about to start the kubelet itself" };
    }
    if record.get(&INSTALLED_IN).is_ok_and(|installed| installed == boot.as_str()) {
        return Gate::Open { why: "the machine has not gone down yet" };
    }
    let at = crate::in_place::story::current(record);
    Gate::Closed { why: format!("attempt {} is at `{at}`", record.attempt()) }
}
