//! Ways out of the machine. All of them carry the same signed envelope, unchanged, and may carry it twice.

mod bundle;
mod console;
mod events;
mod folder;
mod hub;
mod line;
mod nats;
mod neighbour;
mod object;
mod objects;

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use landfall_model::chain;
use landfall_model::envelope::{Envelope, ReportId};
use landfall_steps::{Backoff, InvalidBackoff};

pub use bundle::{Bundle, Maker};
pub use console::Console;
pub use events::{Events, EventsError};
pub use folder::Folder;
pub use hub::Hub;
pub use landfall_objects::Location;
pub use line::HubError;
pub use nats::{Nats, NatsWayError};
pub use neighbour::Neighbour;
pub use object::BootstrapReport;
pub use objects::ObjectStore;

use crate::spool::{Spool, SpoolError};

/// Pauses after failures: long enough not to press a hub that a whole fleet tries to reach, short enough that a hub that
/// is back knows within a minute.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Doublings after which the pause grows no more.
const PAUSE_STEPS: u32 = 10;
/// A report that is never told of is looked for all the same.
const LOOK: Duration = Duration::from_secs(30);
/// The longest host name DNS knows.
const MAX_NAME: usize = 253;

/// One way out. To carry is to be told that the other side has it safely; until then the report stays in the spool.
pub trait Carrier: Send {
    /// For logs and metrics, and the name of the spool's folder.
    fn name(&self) -> &'static str;
    /// Brings one envelope, as JSON. Bringing what is there already is success.
    fn carry(&mut self, id: ReportId, envelope: &[u8]) -> Result<(), CarryError>;
    /// Every how many beats the last report is brought again though it says nothing new, so that a machine that works in
    /// silence is not taken for a dead one. Never, where each report costs the other side more than a look.
    fn beats(&self) -> Option<u64> {
        None
    }
    /// Called now and then while nothing is to be brought: for those whose listeners may have missed it.
    fn idle(&mut self) -> Result<(), CarryError> {
        Ok(())
    }
}

/// Why there is no network to carry over.
#[derive(Debug, thiserror::Error)]
#[error("cannot start a runtime")]
pub struct NetworkError(#[source] std::io::Error);

/// Why an envelope was not brought.
#[derive(Debug, thiserror::Error)]
pub enum CarryError {
    /// The other side cannot be reached or has no time.
    #[error("it will be tried again")]
    Later(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The other side does not take this one from us: a first boot may begin under a name that is not the machine's own, and
    /// what is told under the right one must not wait behind it.
    #[error("the other side does not take it from this node")]
    NotPermitted(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The other side will never take this one.
    #[error("the report was refused for good")]
    Never(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// One thread for one carrier: it brings one report at a time.
fn runtime() -> Result<tokio::runtime::Runtime, NetworkError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .map_err(NetworkError)
}

/// The node's name as a part of a path or a subject: nothing but letters, digits, dots and hyphens, never empty.
fn node_name(envelope: &Envelope) -> String {
    let name = envelope.node.hostname.chars().take(MAX_NAME);
    let name: String =
        name.map(|c| if c.is_ascii_alphanumeric() || "-.".contains(c) { c } else { '_' }).collect();
    match name.trim_matches('.') {
        "" => "unnamed".to_owned(),
        name => name.to_owned(),
    }
}

/// Empties the spool whenever there is something in it; returns when nobody is left to fill it.
pub(crate) fn carry(carrier: &mut dyn Carrier, spool: &Spool<'_>, news: &Receiver<()>) {
    let mut failed = 0;
    loop {
        let delivered = deliver(carrier, spool).and_then(|()| carrier.idle().map_err(DeliverError::Idle));
        let pause = match delivered {
            Ok(()) => {
                failed = 0;
                LOOK
            }
            Err(error) => {
                failed += 1;
                let pause = pause_after(failed);
                tracing::warn!(carrier = carrier.name(), failed, error = %chain(&error), "A report was not brought.");
                pause
            }
        };
        // News does not shorten the pause after a failure: a machine in trouble has much to say.
        let until = Instant::now() + pause;
        loop {
            match news.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Disconnected) => return,
                Ok(()) if failed > 0 => {}
                Ok(()) | Err(RecvTimeoutError::Timeout) => break,
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DeliverError {
    #[error("cannot bring the last report again")]
    Idle(#[source] CarryError),
    #[error("cannot use the spool")]
    Spool(#[source] SpoolError),
    #[error("cannot bring report {id}")]
    Carry {
        id: ReportId,
        #[source]
        source: CarryError,
    },
}

/// Brings what waits, oldest first.
pub(crate) fn deliver(carrier: &mut dyn Carrier, spool: &Spool<'_>) -> Result<(), DeliverError> {
    let waiting = spool.waiting().map_err(DeliverError::Spool)?;
    let newest = waiting.last().copied();
    for id in waiting {
        let Some(envelope) = spool.read(id) else { continue };
        match carrier.carry(id, &envelope) {
            Ok(()) => {}
            Err(error @ CarryError::Never(_)) => {
                tracing::error!(carrier = carrier.name(), report = %id, error = %chain(&error), "A report is given up.");
            }
            Err(error @ CarryError::NotPermitted(_)) if newest != Some(id) => {
                tracing::warn!(carrier = carrier.name(), report = %id, error = %chain(&error), "A report is given up for a newer one.");
            }
            Err(source) => {
                if matches!(source, CarryError::NotPermitted(_)) {
                    spool.not_permitted(id);
                }
                return Err(DeliverError::Carry { id, source });
            }
        }
        // It is not brought again, and what comes after it does not wait for the disk.
        if let Err(error) = spool.remove(id) {
            tracing::warn!(carrier = carrier.name(), report = %id, error = %chain(&error), "A report that was brought stays in the spool.");
        }
    }
    Ok(())
}

fn pause_after(failed: u32) -> Duration {
    let backoff: Result<Backoff, InvalidBackoff> = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE, PAUSE_STEPS + 1);
    let pause = backoff.ok().and_then(|backoff| backoff.pause_after(failed.min(PAUSE_STEPS)));
    pause.unwrap_or(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests;
