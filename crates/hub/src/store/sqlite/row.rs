//! Conversion of columns.
//!
//! Stored data was validated before it was written; a manually changed file causes an error that names the column,
//! not a panic.

use jiff::Timestamp;
use landfall_model::report::{State, Trust};
use landfall_model::{Cause, Confidence, Phase};
use rusqlite::Row;
use rusqlite::types::Type;

use super::super::columns::VerdictRow;
use super::super::packing;

#[derive(Debug, thiserror::Error)]
#[error("the store holds `{0}`, which this program does not know")]
struct Unknown(String);

pub(super) fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<Timestamp> {
    let micros: i64 = row.get(column)?;
    Timestamp::from_microsecond(micros)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, Type::Integer, Box::new(error)))
}

pub(super) fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::cast_unsigned)
}

pub(super) fn state(name: &str, column: usize) -> rusqlite::Result<State> {
    State::ALL.into_iter().find(|state| state.name() == name).ok_or_else(|| unknown(name, column))
}

pub(super) fn phase(name: &str, column: usize) -> rusqlite::Result<Phase> {
    Phase::ALL.into_iter().find(|phase| phase.name() == name).ok_or_else(|| unknown(name, column))
}

pub(super) fn cause(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Cause>> {
    let name: Option<String> = row.get(column)?;
    name.map(|name| Cause::new(name.as_str()).map_err(|_| unknown(&name, column))).transpose()
}

pub(super) fn pack(report: &str) -> rusqlite::Result<Vec<u8>> {
    packing::pack(report).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

pub(super) fn unpack(row: &Row<'_>, column: usize) -> rusqlite::Result<String> {
    packing::unpack(row.get_ref(column)?.as_blob()?)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, Type::Blob, Box::new(error)))
}

fn unknown(name: &str, column: usize) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(Unknown(name.to_owned())))
}

/// Reads six columns from `first` on; the last contains whether the verdict is proven.
pub(super) fn verdict(row: &Row<'_>, first: usize) -> rusqlite::Result<VerdictRow> {
    let state_name: String = row.get(first)?;
    let phase_name: Option<String> = row.get(first + 3)?;
    Ok(VerdictRow {
        state: state(&state_name, first)?,
        cause: cause(row, first + 1)?,
        title: row.get(first + 2)?,
        phase: phase_name.map(|name| phase(&name, first + 3)).transpose()?,
        confidence: Confidence::new(row.get(first + 4)?),
        trust: if row.get(first + 5)? { Trust::Proven } else { Trust::Claimed },
    })
}
