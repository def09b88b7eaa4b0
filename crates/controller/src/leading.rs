//! Leader election: the replica that holds the Lease leads.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use landfall_cluster::{Cluster, Election, OwnLease, Standing};
use landfall_model::chain;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Validity of the Lease, and so the time until another replica takes over.
const LEASE_DURATION: Duration = Duration::from_secs(30);
const RENEW: Duration = Duration::from_secs(8);
/// No write starts this close to the end of the Lease, because a write may be in flight for a while.
const MARGIN: Duration = Duration::from_secs(16);
/// Time limit for releasing the Lease at shutdown.
const RESIGN_WITHIN: Duration = Duration::from_secs(5);

/// End of the current leadership; `None` for a follower.
pub(crate) type Leading = watch::Receiver<Option<Instant>>;

/// A candidate in the leader election.
pub(crate) struct Candidate<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) namespace: &'a str,
    pub(crate) lease: &'a str,
    pub(crate) identity: &'a str,
}

pub(crate) fn may_write(leading: Option<Instant>) -> bool {
    leading.is_some_and(|until| Instant::now() + MARGIN < until)
}

// === impl Candidate ===

impl Candidate<'_> {
    /// Runs the election and the work until canceled, then releases the Lease.
    pub(crate) async fn lead<W: Future<Output = ()>>(
        &self,
        cancel: &CancellationToken,
        leads: impl Fn(bool),
        work: impl FnOnce(Leading) -> W,
    ) {
        let (sender, leading) = watch::channel(None);
        let lease = OwnLease {
            namespace: self.namespace.to_owned(),
            name: self.lease.to_owned(),
            holder: self.identity.to_owned(),
            labels: BTreeMap::new(),
            duration: LEASE_DURATION,
        };
        let mut election = Election::new(self.cluster.clone(), lease);
        tokio::select! {
            () = cancel.cancelled() => {}
            () = self.campaign(&mut election, leads, &sender) => {}
            () = work(leading) => {}
        }
        match tokio::time::timeout(RESIGN_WITHIN, election.resign()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::info!(error = %chain(&error), "The lease is left to run out."),
            Err(_) => tracing::info!("The lease is left to run out."),
        }
    }

    /// Acquires and renews the Lease in an endless loop.
    async fn campaign(
        &self,
        election: &mut Election,
        leads: impl Fn(bool),
        leading: &watch::Sender<Option<Instant>>,
    ) {
        let mut told = None;
        loop {
            match election.campaign().await {
                Ok(standing) => {
                    let until = match &standing {
                        Standing::Leading { until } => Some(*until),
                        Standing::Following { .. } => None,
                    };
                    leads(until.is_some());
                    leading.send_replace(until);
                    let leader = match standing {
                        Standing::Leading { .. } => self.identity.to_owned(),
                        Standing::Following { leader } => leader,
                    };
                    if told.as_ref() != Some(&leader) {
                        tracing::info!(leader, "The controllers have a leader.");
                        told = Some(leader);
                    }
                }
                // A leader keeps leading while its Lease is valid.
                Err(error) => tracing::warn!(error = %chain(&error), "The lease could not be renewed."),
            }
            tokio::time::sleep(RENEW).await;
        }
    }
}
