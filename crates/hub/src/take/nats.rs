//! Ingest of reports that agents published to a NATS JetStream stream.
//!
//! A message is acknowledged after the store has acknowledged its report, so neither a stop of the hub nor a broken
//! connection loses one. A repeated message is recognized by its ID.

use std::sync::Arc;

use landfall_model::chain;
use landfall_net::nats::{Connection, Consumer, Message, NatsError, Server, Settlement};
use landfall_net::{Backoff, CertificateFiles, ClientTls, Reloading, TlsError};
use rustls::ClientConfig;

use super::{Bearer, TakeNats};
use crate::enrol::Way;
use crate::hub::Hub;
use crate::problem::Problem;

/// Maximum number of messages per request; each may be 1 MiB, and all of them are in memory.
const BATCH: usize = 16;
const BACKOFF: Backoff = Backoff::millis::<1000, 60_000>();

#[derive(Debug, thiserror::Error)]
enum TakeError {
    #[error("cannot take reports from NATS")]
    Nats(#[source] NatsError),
    #[error("the store did not take a report: {0}")]
    Store(String),
}

/// Ingests messages forever.
pub(crate) async fn take(hub: &Hub, from: &TakeNats, tls: &Reloading<ClientConfig>) {
    let mut backoff = BACKOFF;
    let mut was_broken = false;
    for server in from.servers.iter().cycle() {
        tls.reload();
        let Err(error) = session(hub, from, server, &tls.get(), &mut backoff, &mut was_broken).await;
        if !was_broken {
            tracing::warn!(%server, error = %chain(&error), "Reports do not come from NATS.");
        }
        was_broken = true;
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// Returns a TLS configuration that is reloaded when its files change.
pub(crate) fn live_tls(from: &TakeNats) -> Result<Arc<Reloading<ClientConfig>>, TlsError> {
    let certificate =
        from.certificate.clone().map(|(certificate, key)| CertificateFiles { certificate, key });
    ClientTls { ca: from.authority.clone(), certificate, protocols: Vec::new() }.load()
}

/// Runs one connection until it breaks.
async fn session(
    hub: &Hub,
    from: &TakeNats,
    server: &Server,
    tls: &Arc<ClientConfig>,
    backoff: &mut Backoff,
    was_broken: &mut bool,
) -> Result<std::convert::Infallible, TakeError> {
    let connection = Connection::open(server, tls, from.login.as_deref(), "landfall-hub").await;
    let mut connection = connection.map_err(TakeError::Nats)?;
    let consumer = Consumer::open(&mut connection, &from.subject, &from.durable).await;
    let consumer = consumer.map_err(TakeError::Nats)?;
    tracing::info!(%server, "Taking reports from NATS.");
    *was_broken = false;
    loop {
        let messages = consumer.take(&mut connection, BATCH).await.map_err(TakeError::Nats)?;
        for message in &messages {
            let judged = judge(hub, message).await;
            let settlement = judged.as_ref().map_or(Settlement::Later, |settlement| *settlement);
            consumer.settle(&mut connection, message, settlement).await.map_err(TakeError::Nats)?;
            judged?;
        }
        backoff.reset();
    }
}

async fn judge(hub: &Hub, message: &Message) -> Result<Settlement, TakeError> {
    let Some(body) = &message.body else {
        tracing::warn!("A message on NATS is too large to be a report.");
        return Ok(Settlement::Never);
    };
    match hub.taken(Bearer::Way(Way::Stream), body).await {
        Ok(_) => Ok(Settlement::Taken),
        Err(problem) => refused(problem),
    }
}

fn refused(problem: Problem) -> Result<Settlement, TakeError> {
    match problem {
        // Too many new nodes in this minute: the message is redelivered later, and the others continue.
        Problem { status: 429, .. } => Ok(Settlement::Later),
        Problem { retry: true, detail, .. } => Err(TakeError::Store(detail)),
        Problem { detail, .. } => {
            tracing::warn!(reason = detail, "A report from NATS was refused.");
            Ok(Settlement::Never)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_store_that_does_not_work_ends_the_conversation() {
        let settled = |status| refused(Problem::new(status, "", "")).ok();
        assert_eq!(settled(429), Some(Settlement::Later), "too many new nodes");
        assert_eq!((settled(403), settled(422)), (Some(Settlement::Never), Some(Settlement::Never)));
        assert_eq!(settled(503), None);
    }
}
