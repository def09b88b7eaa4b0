//! Carriers: transports by which the agent delivers reports.
//!
//! All of them deliver the same signed envelope unchanged, and may deliver it twice.

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
use landfall_model::envelope::{Envelope, ReportId, ReportMessage};
use landfall_net::Backoff;

pub use bundle::{Bundle, Maker};
pub use console::Console;
pub use events::{Events, EventsError};
pub use folder::Folder;
pub use hub::Hub;
pub use landfall_fetch::objects::{Credentials, Location};
pub use line::HubError;
pub use nats::{Nats, NatsWayError};
pub use neighbour::Neighbour;
pub use object::BootstrapReport;
pub use objects::ObjectStore;

use crate::spool::{Spool, SpoolError};

/// Backoff after failures. It is long enough not to overload a hub that a whole fleet tries to reach. It is
/// short enough that a recovered hub gets all reports within a minute.
const BACKOFF: Backoff = Backoff::millis::<1000, 60_000>();
/// Poll interval of the spool, for reports without a wake-up.
const LOOK: Duration = Duration::from_secs(30);
/// The maximum length of a DNS host name.
const MAX_NAME: usize = 253;

/// A destination for reports.
///
/// `carry` returns once the destination has stored the report durably; until then it stays in the spool.
pub trait Carrier: Send {
    /// Returns the name for logs, metrics and the spool's directory.
    fn name(&self) -> &'static str;
    /// Delivers one envelope as JSON. Delivering a report that the destination already has is a success.
    fn carry(&mut self, id: ReportId, envelope: &[u8]) -> Result<(), CarryError>;
    /// Returns the number of heartbeats between repetitions of the last report. Repetitions show that a quiet
    /// machine is alive. `None` where each report costs the receiver too much.
    fn beats(&self) -> Option<u64> {
        None
    }
    /// Called periodically while the spool is empty. Some carriers repeat the last report, which readers may
    /// have missed.
    fn idle(&mut self) -> Result<(), CarryError> {
        Ok(())
    }
}

/// Reason why the network runtime of a carrier cannot start.
#[derive(Debug, thiserror::Error)]
#[error("cannot start a runtime")]
pub struct NetworkError(#[source] std::io::Error);

/// Reason why an envelope was not delivered.
#[derive(Debug, thiserror::Error)]
pub enum CarryError {
    /// The receiver is unreachable or overloaded.
    #[error("it will be retried")]
    Later(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The receiver does not accept this report from this node. A first boot may begin under a name that is
    /// not the machine's own, and reports under the right name must not wait behind it.
    #[error("the server rejects reports of this node")]
    NotPermitted(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The receiver will never accept this report.
    #[error("the report was refused for good")]
    Never(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Creates a single-threaded runtime: a carrier delivers one report at a time.
fn runtime() -> Result<tokio::runtime::Runtime, NetworkError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .map_err(NetworkError)
}

/// Parses the agent's own report.
fn message(envelope: &[u8]) -> Result<ReportMessage, CarryError> {
    let message = Envelope::parse(envelope).and_then(|envelope| envelope.message());
    message.map_err(|error| CarryError::Never(Box::new(error)))
}

/// Returns the node's name as a segment of a path or subject: letters, digits, dots and hyphens, never empty.
fn node_name(message: &ReportMessage) -> String {
    let name = message.node.hostname.chars().take(MAX_NAME);
    let name: String =
        name.map(|c| if c.is_ascii_alphanumeric() || "-.".contains(c) { c } else { '_' }).collect();
    match name.trim_matches('.') {
        "" => "unnamed".to_owned(),
        name => name.to_owned(),
    }
}

/// Drains the spool whenever it contains reports; returns when the main loop has dropped its channel.
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
                let pause = BACKOFF.pause_after(failed);
                tracing::warn!(carrier = carrier.name(), failed, error = %chain(&error), "report delivery failed");
                pause
            }
        };
        // A wake-up does not shorten the backoff after a failure: a failing machine makes many reports.
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
    #[error("cannot deliver the last report again")]
    Idle(#[source] CarryError),
    #[error("cannot use the spool")]
    Spool(#[source] SpoolError),
    #[error("cannot deliver report {id}")]
    Carry {
        id: ReportId,
        #[source]
        source: CarryError,
    },
}

/// Delivers the spooled reports, oldest first.
pub(crate) fn deliver(carrier: &mut dyn Carrier, spool: &Spool<'_>) -> Result<(), DeliverError> {
    let waiting = spool.waiting().map_err(DeliverError::Spool)?;
    let newest = waiting.last().copied();
    for id in waiting {
        let Some(envelope) = spool.read(id) else { continue };
        match carrier.carry(id, &envelope) {
            Ok(()) => {}
            Err(error @ CarryError::Never(_)) => {
                tracing::error!(carrier = carrier.name(), report = %id, error = %chain(&error), "report discarded");
            }
            Err(error @ CarryError::NotPermitted(_)) if newest != Some(id) => {
                tracing::warn!(carrier = carrier.name(), report = %id, error = %chain(&error), "report replaced by a newer one");
            }
            Err(source) => {
                if matches!(source, CarryError::NotPermitted(_)) {
                    spool.not_permitted(id);
                }
                return Err(DeliverError::Carry { id, source });
            }
        }
        // If the removal fails, the spool remembers the report as delivered, and later reports do not wait
        // for the disk.
        if let Err(error) = spool.remove(id) {
            tracing::warn!(carrier = carrier.name(), report = %id, error = %chain(&error), "cannot remove a delivered report from the spool");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
