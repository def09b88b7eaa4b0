use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::ListParams;

use crate::{Cluster, Error};

/// Which leases to count.
#[derive(Clone, Debug)]
pub struct LeaseQuery {
    pub namespace: String,
    /// As `kubectl -l` takes it.
    pub selector: String,
}

impl Cluster {
    /// How many of these leases are held now: renewed within their own duration, seen from the given moment.
    pub async fn live_leases(&self, query: &LeaseQuery, now: Timestamp) -> Result<usize, Error> {
        let leases: Api<Lease> = Api::namespaced(self.client(), &query.namespace);
        let parameters = ListParams::default().labels(&query.selector);
        let asked = || format!("list leases {} in {}", query.selector, query.namespace);
        let found = self.ask(asked, leases.list(&parameters)).await?;
        Ok(found.items.iter().filter(|lease| is_live(lease, now)).count())
    }
}

/// A lease that says neither when it was renewed nor for how long is nobody's.
fn is_live(lease: &Lease, now: Timestamp) -> bool {
    let Some(spec) = &lease.spec else { return false };
    let renewed = spec.renew_time.as_ref().or(spec.acquire_time.as_ref());
    let (Some(renewed), Some(seconds)) = (renewed, spec.lease_duration_seconds) else { return false };
    let held_until = renewed.0.checked_add(SignedDuration::from_secs(i64::from(seconds)));
    held_until.is_ok_and(|end| end > now)
}
