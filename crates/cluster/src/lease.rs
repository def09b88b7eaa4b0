use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};

use crate::error::deleted;
use crate::{Cluster, Error};

/// Selects the leases to count.
#[derive(Clone, Debug)]
pub struct LeaseQuery {
    pub namespace: String,
    /// Label selector in the format of `kubectl -l`.
    pub selector: String,
}

/// A lease to hold.
#[derive(Clone, Debug)]
pub struct OwnLease {
    pub namespace: String,
    pub name: String,
    pub holder: String,
    pub labels: BTreeMap<String, String>,
    /// Validity after each renewal.
    pub duration: Duration,
}

/// An observed lease: its deletion applies to this version only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenLease {
    pub namespace: String,
    pub name: String,
    version: Option<String>,
}

/// The leases of a query, by validity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    pub live: usize,
    pub expired: Vec<SeenLease>,
}

impl Cluster {
    /// Acquires or renews the lease. A lease of this name with another holder is taken over, because the name
    /// identifies it.
    pub async fn hold_lease(&self, lease: &OwnLease, now: Timestamp) -> Result<(), Error> {
        let leases: Api<Lease> = Api::namespaced(self.client(), &lease.namespace);
        let OwnLease { namespace, name, .. } = lease;
        let found = self.ask(|| format!("read Lease {namespace}/{name}"), leases.get_opt(name)).await?;
        let (exists, mut object) = (found.is_some(), found.unwrap_or_default());
        let spec = object.spec.get_or_insert_with(LeaseSpec::default);
        if spec.holder_identity.as_deref() != Some(&lease.holder) {
            spec.acquire_time = Some(MicroTime(now));
        }
        spec.holder_identity = Some(lease.holder.clone());
        spec.lease_duration_seconds = Some(i32::try_from(lease.duration.as_secs()).unwrap_or(i32::MAX));
        spec.renew_time = Some(MicroTime(now));
        let parameters = PostParams::default();
        if exists {
            object.metadata.labels.get_or_insert_default().extend(lease.labels.clone());
            let asked = || format!("renew Lease {namespace}/{name}");
            self.ask(asked, leases.replace(name, &parameters, &object)).await?;
        } else {
            object.metadata = ObjectMeta {
                name: Some(name.clone()),
                labels: Some(lease.labels.clone()),
                ..ObjectMeta::default()
            };
            let asked = || format!("create Lease {namespace}/{name}");
            self.ask(asked, leases.create(&parameters, &object)).await?;
        }
        Ok(())
    }

    /// Releases the lease. A missing lease is not an error.
    pub async fn release_lease(&self, lease: &OwnLease) -> Result<(), Error> {
        let seen = SeenLease { namespace: lease.namespace.clone(), name: lease.name.clone(), version: None };
        deleted(self.delete_lease(&seen).await)
    }

    /// Deletes a lease, unless it was renewed since it was observed.
    pub async fn delete_lease(&self, lease: &SeenLease) -> Result<(), Error> {
        let leases: Api<Lease> = Api::namespaced(self.client(), &lease.namespace);
        let preconditions =
            lease.version.clone().map(|version| Preconditions { resource_version: Some(version), uid: None });
        let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
        let asked = || format!("delete Lease {}/{}", lease.namespace, lease.name);
        self.ask(asked, leases.delete(&lease.name, &parameters)).await.map(|_| ())
    }

    /// Returns the valid leases and the expired ones.
    pub async fn leases(&self, query: &LeaseQuery, now: Timestamp) -> Result<Leases, Error> {
        let leases: Api<Lease> = Api::namespaced(self.client(), &query.namespace);
        let parameters = ListParams::default().labels(&query.selector);
        let asked = || format!("list leases {} in {}", query.selector, query.namespace);
        let found = self.ask(asked, leases.list(&parameters)).await?;
        let mut told = Leases::default();
        for lease in found.items {
            if is_live(&lease, now) {
                told.live += 1;
            } else {
                told.expired.push(SeenLease {
                    namespace: query.namespace.clone(),
                    name: lease.metadata.name.unwrap_or_default(),
                    version: lease.metadata.resource_version,
                });
            }
        }
        Ok(told)
    }

    /// Returns the number of valid leases: those renewed within their own duration before `now`.
    pub async fn live_leases(&self, query: &LeaseQuery, now: Timestamp) -> Result<usize, Error> {
        Ok(self.leases(query, now).await?.live)
    }
}

/// Whether the lease is valid. One without a renewal time or duration is not.
fn is_live(lease: &Lease, now: Timestamp) -> bool {
    let Some(spec) = &lease.spec else { return false };
    let renewed = spec.renew_time.as_ref().or(spec.acquire_time.as_ref());
    let (Some(renewed), Some(seconds)) = (renewed, spec.lease_duration_seconds) else { return false };
    let held_until = renewed.0.checked_add(SignedDuration::from_secs(i64::from(seconds)));
    held_until.is_ok_and(|end| end > now)
}
