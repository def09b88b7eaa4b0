//! Replays an in-place rollout, because a real one reboots real machines.
//!
//! The replayed events are those that such a machine writes to its ledger; the role itself derives the states from
//! them.

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use landfall_agent::carrier::{Carrier as _, Hub};
use landfall_model::envelope::{Envelope, ReportId, ReportMessage};
use landfall_model::identity::NodeIdentity;
use landfall_model::report::{self, Report, State, Verdict};
use landfall_model::step::{self, Event, Happening, Outcome, StepState};
use landfall_model::{Confidence, Phase};
use landfall_node::in_place::steps::{
    CLAIM, GO_DOWN, INSTALL, PREFLIGHT, RUN_BASE, RUN_KUBE, SET_STATE_ASIDE, STAGE,
};
use landfall_node::in_place::story::{self, State as InPlace};

/// Returns the events of a RHEL machine, in order.
fn happenings() -> Vec<Happening> {
    let step = |name: &str, state| Happening::Step { step: name.to_owned(), state, attempts: 1 };
    vec![
        step(CLAIM, StepState::Done),
        step(PREFLIGHT, StepState::Done),
        step(STAGE, StepState::Done),
        step(INSTALL, StepState::Done),
        step(GO_DOWN, StepState::RebootNeeded),
        step(SET_STATE_ASIDE, StepState::Done),
        step(RUN_BASE, StepState::RebootNeeded),
        step(RUN_KUBE, StepState::Done),
        Happening::Ended { outcome: Outcome::Done },
    ]
}

/// Sends the events of one machine to the hub one by one; returns the resulting states.
pub(super) async fn replay(hub: &str, machine: &str) -> Result<Vec<&'static str>> {
    let (hub, machine) = (hub.to_owned(), machine.to_owned());
    // The carrier blocks on the hub's answers, so it must not run on the demo's thread.
    let replayed = tokio::task::spawn_blocking(move || carry(&hub, &machine));
    replayed.await.context("replay the wave")?
}

fn carry(hub: &str, machine: &str) -> Result<Vec<&'static str>> {
    let mut carrier = Hub::new(hub, None, None, None).context("reach the hub")?;
    let mut states: Vec<&'static str> = Vec::new();
    for (sequence, what) in (1..).zip(happenings()) {
        let time = Timestamp::now();
        let event = Event {
            format: step::FORMAT,
            attempt: "demo".to_owned(),
            sequence,
            part: 0,
            time,
            boot_id: "demo".to_owned(),
            what,
        };
        let state = story::after(std::slice::from_ref(&event));
        let mut random = [0; 10];
        getrandom::fill(&mut random).context("choose an id")?;
        let id = ReportId::new(time, random);
        let message = message(machine, id, sequence, time, &state);
        let payload = serde_json::to_vec(&message).context("write a report")?;
        let bytes = serde_json::to_vec(&Envelope::unsigned(payload)).context("write a report")?;
        carrier.carry(id, &bytes).with_context(|| format!("bring a report of `{machine}` to the hub"))?;
        if states.last() != Some(&state.name()) {
            states.push(state.name());
        }
    }
    Ok(states)
}

fn message(machine: &str, id: ReportId, sequence: u64, time: Timestamp, state: &InPlace) -> ReportMessage {
    let done = *state == InPlace::Done;
    let verdict = Verdict {
        state: if done { State::Succeeded } else { State::Running },
        cause: None,
        title: format!("Re-bootstrapped in place (a replay): {}", state.name()),
        component: None,
        phase: Some(if done { Phase::Ready } else { Phase::Runtime }),
        confidence: Confidence::NONE,
        trust: report::Trust::Claimed,
    };
    let report = Report {
        format: report::FORMAT,
        verdict,
        findings: Vec::new(),
        timeline: Vec::new(),
        sources: Vec::new(),
        last_seen: None,
        next_steps: Vec::new(),
        reasoning: None,
    };
    let node = NodeIdentity {
        hostname: machine.to_owned(),
        machine_id: None,
        boot_id: Some("demo".to_owned()),
        os: Some("Demo Linux (a replay)".to_owned()),
        architecture: None,
        provider_id: None,
    };
    ReportMessage { id, node, boot_number: None, sequence, time, report }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replay_goes_through_the_states_of_the_role() {
        let event = |what| Event {
            format: step::FORMAT,
            attempt: String::new(),
            sequence: 1,
            part: 0,
            time: Timestamp::UNIX_EPOCH,
            boot_id: String::new(),
            what,
        };
        let states: Vec<_> = happenings().into_iter().map(|what| story::after(&[event(what)])).collect();
        assert_eq!(states.first(), Some(&InPlace::Claimed));
        assert_eq!(states.iter().filter(|state| **state == InPlace::Rebooting).count(), 2);
        assert_eq!(states.last(), Some(&InPlace::Done));
    }
}
