//! The lease by which agents count servers: renewed while the server runs and released when it stops. The server also
//! deletes the leases of crashed servers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use landfall_cluster::{Cluster, LeaseQuery, OwnLease};
use landfall_model::chain;

use super::Shared;
use crate::number::random;

/// The durations of upstream.
const VALID: Duration = Duration::from_secs(30);
const RENEW: Duration = Duration::from_secs(15);
/// Interval after a failure, so that one failed renewal does not lose the lease.
const RETRY: Duration = Duration::from_secs(5);
/// Upstream varies renewals by 4 %.
const JITTER_PERCENT: u32 = 4;
/// Timeout to release the lease on shutdown.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// Settings of `--enable-lease-controller`.
#[derive(Clone, Debug)]
pub struct LeaseSettings {
    /// `--lease-namespace`
    pub namespace: String,
    /// `--lease-label`
    pub labels: BTreeMap<String, String>,
}

/// Renews this server's lease.
pub(super) struct LeaseKeeper {
    cluster: Cluster,
    own: OwnLease,
    query: LeaseQuery,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a list of labels; hint: `name=value,name=value`")]
pub struct LabelError(String);

/// Parses labels in the format of `--lease-label`.
pub fn labels(text: &str) -> Result<BTreeMap<String, String>, LabelError> {
    let wrong = || LabelError(text.to_owned());
    let pairs = text.split(',').filter(|pair| !pair.is_empty());
    let labels: Result<BTreeMap<_, _>, _> = pairs
        .map(|pair| match pair.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => Err(wrong()),
        })
        .collect();
    labels.and_then(|labels| if labels.is_empty() { Err(wrong()) } else { Ok(labels) })
}

// === impl LeaseKeeper ===

impl LeaseKeeper {
    pub(super) fn new(cluster: Cluster, settings: LeaseSettings, server_id: &str) -> Self {
        let LeaseSettings { namespace, labels } = settings;
        let selector: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let query = LeaseQuery { namespace: namespace.clone(), selector: selector.join(",") };
        let own = OwnLease {
            namespace,
            name: format!("konnectivity-proxy-server-{server_id}"),
            holder: server_id.to_owned(),
            labels,
            duration: VALID,
        };
        Self { cluster, own, query }
    }

    /// Renews the lease without end, and deletes those of crashed servers.
    pub(super) async fn keep(&self, shared: &Arc<Shared>) {
        loop {
            let held = self.cluster.hold_lease(&self.own, Timestamp::now()).await;
            if let Err(error) = &held {
                tracing::warn!(error = %chain(error), "lease not renewed");
            }
            self.clear(shared).await;
            let pause = if held.is_ok() { RENEW } else { RETRY };
            let extra = u32::try_from(random() % 1000).unwrap_or(0);
            tokio::time::sleep(pause + pause * JITTER_PERCENT * extra / 100_000).await;
        }
    }

    /// Releases the lease, so that agents that count leases connect elsewhere.
    pub(super) async fn release(&self) {
        match tokio::time::timeout(RELEASE_LIMIT, self.cluster.release_lease(&self.own)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = %chain(&error), "lease not given up; it expires"),
            Err(_) => tracing::warn!("lease not given up in time; it expires"),
        }
    }

    async fn clear(&self, shared: &Arc<Shared>) {
        let metrics = &shared.metrics.leases;
        let started = Instant::now();
        let found = self.cluster.leases(&self.query, Timestamp::now()).await;
        metrics.listed.observe(&found, started.elapsed());
        let leases = match found {
            Ok(leases) => leases,
            Err(error) => return tracing::warn!(error = %chain(&error), "leases not listed"),
        };
        shared.counted.store(u32::try_from(leases.live).unwrap_or(u32::MAX), Ordering::Relaxed);
        for lease in leases.expired {
            let started = Instant::now();
            let deleted = self.cluster.delete_lease(&lease).await;
            metrics.deleted.observe(&deleted, started.elapsed());
            match deleted {
                Ok(()) => {
                    metrics.culled.increment();
                    tracing::info!(lease = lease.name, "lease of a lost server cleared away");
                }
                // The lease was renewed, or deleted by another server, in the meantime.
                Err(error) if error.is_answer() => {
                    tracing::debug!(error = %chain(&error), "lease left alone");
                }
                Err(error) => tracing::warn!(error = %chain(&error), "lease not cleared away"),
            }
        }
    }
}

impl fmt::Debug for LeaseKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseKeeper").field("own", &self.own).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_pairs() {
        let found = labels("k8s-app=konnectivity-server,zone=").unwrap();
        assert_eq!(found["k8s-app"], "konnectivity-server");
        assert_eq!(found["zone"], "");
        for text in ["", "k8s-app", "=x"] {
            assert!(labels(text).is_err(), "{text}");
        }
    }
}
