//! Conversion of columns.

use jiff::Timestamp;
use landfall_model::report::{State, Trust};
use landfall_model::{Cause, Confidence, Phase};
use tokio_postgres::Row;

use super::super::columns::VerdictRow;
use super::Trouble;

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

/// Keeps only letters and digits, separated by blanks. PostgreSQL then finds the same words as the embedded store.
pub(super) fn words(text: &str) -> String {
    text.chars().map(|c| if c.is_alphanumeric() { c } else { ' ' }).collect()
}

/// Reads six columns from `first` on; the last contains whether the verdict is proven.
pub(super) fn verdict(row: &Row, first: usize) -> Result<VerdictRow, Trouble> {
    let phase_name: Option<&str> = row.try_get(first + 3)?;
    Ok(VerdictRow {
        state: state(row.try_get(first)?)?,
        cause: cause(row, first + 1)?,
        title: row.try_get(first + 2)?,
        phase: phase_name.map(phase).transpose()?,
        confidence: Confidence::new(row.try_get(first + 4)?),
        trust: if row.try_get(first + 5)? { Trust::Proven } else { Trust::Claimed },
    })
}
