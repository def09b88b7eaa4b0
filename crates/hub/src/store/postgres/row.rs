//! Between columns and nouns.

use jiff::Timestamp;
use landfall_model::report::{State, Trust, Verdict};
use landfall_model::{Cause, Confidence, Phase};
use tokio_postgres::Row;

use super::Trouble;

/// The columns of every row that carries a verdict, in the order [`Shown::read`] expects.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) state: State,
    pub(super) cause: Option<Cause>,
    pub(super) title: String,
    pub(super) phase: Option<Phase>,
    pub(super) confidence: Confidence,
    pub(super) trust: Trust,
}

pub(super) fn micros(time: Timestamp) -> i64 {
    time.as_microsecond()
}

pub(super) fn time(row: &Row, column: usize) -> Result<Timestamp, Trouble> {
    let micros: i64 = row.try_get(column)?;
    Timestamp::from_microsecond(micros).map_err(|_| Trouble::Unknown(micros.to_string()))
}

pub(super) fn count(row: &Row, column: usize) -> Result<u64, Trouble> {
    Ok(row.try_get::<_, i64>(column)?.cast_unsigned())
}

pub(super) fn state(name: &str) -> Result<State, Trouble> {
    State::ALL.into_iter().find(|state| state.name() == name).ok_or_else(|| Trouble::Unknown(name.to_owned()))
}

pub(super) fn phase(name: &str) -> Result<Phase, Trouble> {
    Phase::ALL.into_iter().find(|phase| phase.name() == name).ok_or_else(|| Trouble::Unknown(name.to_owned()))
}

pub(super) fn cause(row: &Row, column: usize) -> Result<Option<Cause>, Trouble> {
    let name: Option<&str> = row.try_get(column)?;
    name.map(|name| Cause::new(name).map_err(|_| Trouble::Unknown(name.to_owned()))).transpose()
}

/// PostgreSQL's text cannot hold the character zero, which JSON can.
pub(super) fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Worst first, as boards are sorted.
pub(super) fn rank(state: State) -> i64 {
    let place = State::ALL.iter().position(|other| *other == state);
    place.map_or(i64::MAX, |place| i64::try_from(place).unwrap_or(i64::MAX))
}

/// Only letters and digits, with blanks between: what the database then takes for words is what the embedded store does.
pub(super) fn words(text: &str) -> String {
    text.chars().map(|c| if c.is_alphanumeric() { c } else { ' ' }).collect()
}

// === impl Shown ===

impl Shown {
    /// Reads six columns from `first` on; the last says whether the verdict is proven.
    pub(super) fn read(row: &Row, first: usize) -> Result<Self, Trouble> {
        let phase_name: Option<&str> = row.try_get(first + 3)?;
        Ok(Self {
            state: state(row.try_get(first)?)?,
            cause: cause(row, first + 1)?,
            title: row.try_get(first + 2)?,
            phase: phase_name.map(phase).transpose()?,
            confidence: Confidence::new(row.try_get(first + 4)?),
            trust: if row.try_get(first + 5)? { Trust::Proven } else { Trust::Claimed },
        })
    }

    pub(super) fn of(verdict: &Verdict) -> Self {
        Self {
            state: verdict.state,
            cause: verdict.cause.clone(),
            title: text(&verdict.title),
            phase: verdict.phase,
            confidence: verdict.confidence,
            trust: verdict.trust,
        }
    }

    /// Whether the node says what it said before. How long it hangs already stands in the title, and is no news.
    pub(super) fn is(&self, verdict: &Verdict) -> bool {
        self.state == verdict.state
            && self.cause == verdict.cause
            && self.phase == verdict.phase
            && self.trust == verdict.trust
            && (self.state == State::Hung || self.title == text(&verdict.title))
    }
}
