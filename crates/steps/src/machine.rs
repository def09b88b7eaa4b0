//! The transitions of a step. All others are rejected, so that a defect in the engine cannot write a ledger with an
//! impossible history.
//!
//! ```text
//!            ┌────────────── Skip ─────────────▶ skipped        (never begun, work found done)
//! pending ───┤
//!            └─ Begin ─▶ applying ── Finish ───▶ done
//!                         │  │  └── AskReboot ─▶ reboot-needed ── Finish, in another boot ─▶ done
//!                         │  └───── Wait ──────▶ waiting ─┐
//!                         └──────── Fail ──────▶ failed  ─┴─ Begin or Finish, unless failed for good
//!
//! anything begun ── RollBack ─▶ rolling-back ── FinishRollBack ─▶ rolled-back
//!                                           └── FailRollBack ───▶ rollback-failed
//! ```

use landfall_model::step::{Retry, StepRecord, StepState};

use crate::boot::BootId;

/// A transition of a step, requested by the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// `apply` is about to be called.
    Begin,
    /// Nothing was changed and nothing needs to be.
    Skip {
        reason: String,
    },
    /// Confirmed.
    Finish,
    AskReboot,
    Wait {
        on: String,
    },
    Fail {
        reason: String,
        retry: Retry,
    },
    RollBack,
    FinishRollBack,
    FailRollBack {
        reason: String,
    },
    /// An administrator requests another attempt of a failed step.
    Reopen,
}

/// A transition that the ledger rejects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IllegalMove {
    #[error("step `{step}` is {state}: it cannot {verb}")]
    State { step: String, state: &'static str, verb: &'static str },
    #[error("step `{step}` cannot {verb} while `{blocker}` is {state}")]
    Order { step: String, verb: &'static str, blocker: String, state: &'static str },
    #[error("the run has ended: no step of it can {verb}")]
    Ended { verb: &'static str },
    #[error("no step of the run has given up: there is nothing to reopen")]
    NothingToReopen,
    #[error("the run has no step with number {index}")]
    NoStep { index: usize },
}

/// Returns the state after a transition in this boot.
pub(crate) fn advance(step: &StepRecord, wanted: &Move, boot: &BootId) -> Result<StepState, IllegalMove> {
    use StepState as State;

    let begun = step.attempts > 0;
    let rebooted = step.boot_id != boot.as_str();
    let next = match (&step.state, wanted) {
        (State::Pending | State::Applying | State::Waiting { .. }, Move::Begin) => Some(State::Applying),
        (State::Failed { retry, .. }, Move::Begin) if *retry != Retry::Never => Some(State::Applying),

        (State::Pending | State::Waiting { .. }, Move::Skip { reason }) if !begun => {
            Some(State::Skipped { reason: reason.clone() })
        }
        (State::Failed { retry, .. }, Move::Skip { reason }) if !begun && *retry != Retry::Never => {
            Some(State::Skipped { reason: reason.clone() })
        }

        (State::Applying, Move::Finish) => Some(State::Done),
        (State::Waiting { .. }, Move::Finish) if begun => Some(State::Done),
        (State::Failed { retry, .. }, Move::Finish) if begun && *retry != Retry::Never => Some(State::Done),
        // A different boot ID proves the reboot: the same boot cannot confirm work that needed another.
        (State::RebootNeeded, Move::Finish) if rebooted => Some(State::Done),

        // Also allowed for a step that never started: another process may have staged the work for the next boot.
        (State::Pending | State::Applying | State::Waiting { .. }, Move::AskReboot) => {
            Some(State::RebootNeeded)
        }
        (State::Failed { retry, .. }, Move::AskReboot) if *retry != Retry::Never => Some(State::RebootNeeded),

        (State::Pending | State::Applying | State::Waiting { .. }, Move::Wait { on }) => {
            Some(State::Waiting { on: on.clone() })
        }
        (State::Failed { retry, .. }, Move::Wait { on }) if *retry != Retry::Never => {
            Some(State::Waiting { on: on.clone() })
        }
        (State::RebootNeeded, Move::Wait { on }) if rebooted => Some(State::Waiting { on: on.clone() }),

        (State::Pending | State::Applying | State::Waiting { .. }, Move::Fail { reason, retry }) => {
            Some(State::Failed { reason: reason.clone(), retry: *retry })
        }
        (State::Failed { retry: before, .. }, Move::Fail { reason, retry }) if *before != Retry::Never => {
            Some(State::Failed { reason: reason.clone(), retry: *retry })
        }
        (State::RebootNeeded, Move::Fail { reason, retry }) if rebooted => {
            Some(State::Failed { reason: reason.clone(), retry: *retry })
        }

        (
            State::Applying
            | State::Done
            | State::Waiting { .. }
            | State::RebootNeeded
            | State::Failed { .. },
            Move::RollBack,
        ) if begun => Some(State::RollingBack),
        (State::RollingBack, Move::FinishRollBack) => Some(State::RolledBack),
        (State::RollingBack, Move::FailRollBack { reason }) => {
            Some(State::RollbackFailed { reason: reason.clone() })
        }

        (State::Failed { reason, retry: Retry::Never }, Move::Reopen) => {
            Some(State::Failed { reason: reason.clone(), retry: Retry::Later })
        }
        (State::RollbackFailed { .. }, Move::Reopen) => Some(State::RollingBack),
        _ => None,
    };
    next.ok_or_else(|| IllegalMove::State {
        step: step.name.clone(),
        state: step.state.name(),
        verb: wanted.verb(),
    })
}

// === impl Move ===

impl Move {
    pub(crate) fn verb(&self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::Skip { .. } => "be skipped",
            Self::Finish => "be done",
            Self::AskReboot => "ask for a reboot",
            Self::Wait { .. } => "wait",
            Self::Fail { .. } => "fail",
            Self::RollBack => "be rolled back",
            Self::FinishRollBack => "have been rolled back",
            Self::FailRollBack { .. } => "fail to roll back",
            Self::Reopen => "be reopened",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        "x".into()
    }

    fn states() -> Vec<StepState> {
        let failed = |retry| StepState::Failed { reason: text(), retry };
        vec![
            StepState::Pending,
            StepState::Applying,
            StepState::Done,
            StepState::Skipped { reason: text() },
            StepState::Waiting { on: text() },
            StepState::RebootNeeded,
            failed(Retry::Now),
            failed(Retry::Later),
            failed(Retry::Never),
            StepState::RollingBack,
            StepState::RolledBack,
            StepState::RollbackFailed { reason: text() },
        ]
    }

    fn moves() -> Vec<Move> {
        vec![
            Move::Begin,
            Move::Skip { reason: text() },
            Move::Finish,
            Move::AskReboot,
            Move::Wait { on: text() },
            Move::Fail { reason: text(), retry: Retry::Now },
            Move::RollBack,
            Move::FinishRollBack,
            Move::FailRollBack { reason: text() },
            Move::Reopen,
        ]
    }

    /// The complete table, one row per state, one column per transition in the order of `moves`. A letter is the
    /// resulting state, a dot a rejection. Each cell is `never begun` then `begun`, first in the same boot, then in
    /// another.
    const TABLE: &str = "
        pending             A/A A/A  S/. S/.  ./. ./.  R/R R/R  W/W W/W  F/F F/F  ./. ./.  ./. ./.  ./. ./.  ./. ./.
        applying            A/A A/A  ./. ./.  D/D D/D  R/R R/R  W/W W/W  F/F F/F  ./B ./B  ./. ./.  ./. ./.  ./. ./.
        done                ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./B ./B  ./. ./.  ./. ./.  ./. ./.
        skipped             ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.
        waiting             A/A A/A  S/. S/.  ./D ./D  R/R R/R  W/W W/W  F/F F/F  ./B ./B  ./. ./.  ./. ./.  ./. ./.
        reboot-needed       ./. ./.  ./. ./.  ./. D/D  ./. ./.  ./. W/W  ./. F/F  ./B ./B  ./. ./.  ./. ./.  ./. ./.
        failed-now          A/A A/A  S/. S/.  ./D ./D  R/R R/R  W/W W/W  F/F F/F  ./B ./B  ./. ./.  ./. ./.  ./. ./.
        failed-later        A/A A/A  S/. S/.  ./D ./D  R/R R/R  W/W W/W  F/F F/F  ./B ./B  ./. ./.  ./. ./.  ./. ./.
        failed-never        ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./B ./B  ./. ./.  ./. ./.  F/F F/F
        rolling-back        ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  b/b b/b  X/X X/X  ./. ./.
        rolled-back         ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.
        rollback-failed     ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  ./. ./.  B/B B/B
    ";

    #[test]
    fn every_state_answers_every_move_as_the_table_says() {
        let rows: Vec<Vec<&str>> = TABLE.trim().lines().map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows.len(), states().len());
        let (here, elsewhere) = (BootId::parse("a").unwrap(), BootId::parse("b").unwrap());
        for (state, row) in states().into_iter().zip(rows) {
            assert!(row[0].starts_with(state.name()), "{row:?} is not about {state:?}");
            assert_eq!(row.len(), 1 + 2 * moves().len(), "{row:?}");
            for (column, wanted) in moves().iter().enumerate() {
                let mut cell = Vec::new();
                for boot in [&here, &elsewhere] {
                    let answer = [0, 1].map(|attempts| {
                        let record = StepRecord {
                            name: "s".into(),
                            state: state.clone(),
                            attempts,
                            reboots: 0,
                            boot_id: here.as_str().into(),
                            started: None,
                            ended: None,
                        };
                        match advance(&record, wanted, boot) {
                            Ok(next) => letter(&next),
                            Err(IllegalMove::State { state: told, .. }) => {
                                assert_eq!(told, state.name());
                                '.'
                            }
                            Err(other) => panic!("{other}"),
                        }
                    });
                    cell.push(format!("{}/{}", answer[0], answer[1]));
                }
                assert_eq!(cell, &row[1 + 2 * column..3 + 2 * column], "{state:?} × {wanted:?}");
            }
        }
    }

    fn letter(state: &StepState) -> char {
        match state {
            StepState::Pending => 'P',
            StepState::Applying => 'A',
            StepState::Done => 'D',
            StepState::Skipped { .. } => 'S',
            StepState::Waiting { .. } => 'W',
            StepState::RebootNeeded => 'R',
            StepState::Failed { .. } => 'F',
            StepState::RollingBack => 'B',
            StepState::RolledBack => 'b',
            StepState::RollbackFailed { .. } => 'X',
        }
    }
}
