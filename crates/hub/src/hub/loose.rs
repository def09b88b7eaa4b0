//! Removal of orphaned objects: those of deleted bundles, and those left by a crash.

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use landfall_model::chain;

use super::Hub;
use crate::objects::FOLDERS;

/// Maximum number of portions removed in one run; the rest is removed in the next one.
const PORTIONS: usize = 1000;
/// Age below which an object may still get its record.
const GRACE: SignedDuration = SignedDuration::from_hours(24);

// === impl Hub ===

impl Hub {
    /// Removes orphaned objects. After a failure, the object stays registered for a later run, and this run stops.
    /// Otherwise an unresponsive object store would cause a timeout for each object.
    pub(crate) async fn remove_loose(&self) {
        for _ in 0..PORTIONS {
            let digests = match self.store.loose(Timestamp::now()).await {
                Ok(digests) if digests.is_empty() => return,
                Ok(digests) => digests,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "query for unwanted bundles failed");
                    return;
                }
            };
            // Concurrently: an object that can never be removed does not block the others.
            let removed = join_all(digests.iter().map(|digest| self.objects.remove(digest))).await;
            let mut failure = None;
            for (digest, removed) in digests.into_iter().zip(removed) {
                if let Err(error) = removed {
                    failure = failure.or(Some((digest, error)));
                } else if let Err(error) = self.store.removed(digest).await {
                    tracing::warn!(error = %chain(&error), "A removed bundle could not be forgotten.");
                    return;
                }
            }
            if let Some((digest, error)) = failure {
                tracing::warn!(digest, error = %chain(&error), "bundle removal failed");
                return;
            }
        }
    }

    /// Searches all objects for orphaned ones.
    pub(crate) async fn sweep(&self) {
        let now = Timestamp::now();
        let before = now.saturating_sub(GRACE).unwrap_or(Timestamp::MIN);
        for folder in 0..FOLDERS {
            let found = match self.objects.older_than(folder, before).await {
                Ok(found) if found.is_empty() => continue,
                Ok(found) => self.store.make_loose(found, now).await,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "query for bundles without a record failed");
                    return;
                }
            };
            match found {
                Ok(0) => {}
                Ok(count) => tracing::info!(count, "Bundles without a record are removed."),
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "Bundles without a record could not be noted.");
                    return;
                }
            }
        }
        self.remove_loose().await;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::*;
    use crate::access::Access;
    use crate::bundles::BundleLimits;
    use crate::objects::Objects;
    use crate::roles::Roles;
    use crate::store::SqliteStore;

    #[tokio::test]
    async fn an_object_store_that_fails_is_left_alone_for_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let bundles = folder.path().join("bundles");
        let store = Arc::new(SqliteStore::open(&folder.path().join("hub.db")).unwrap());
        let objects = Objects::folder(&bundles).unwrap();
        let limits = BundleLimits { packed: 1 << 20 };
        let roles = Roles::new(Vec::new(), None);
        let hub = Hub::new(store, objects, Access::default(), limits, roles).unwrap();
        let digests: Vec<String> = (0..25).map(|number| format!("{number:064x}")).collect();
        let path = |digest: &String| bundles.join("00").join(digest);
        fs::create_dir(bundles.join("00")).unwrap();
        // A directory cannot be removed as a file.
        fs::create_dir(path(&digests[0])).unwrap();
        digests[1..].iter().for_each(|digest| fs::write(path(digest), "packed").unwrap());
        let left = || digests.iter().filter(|digest| path(digest).exists()).count();
        assert_eq!(hub.store.make_loose(digests.clone(), Timestamp::now()).await.unwrap(), 25);
        hub.remove_loose().await;
        assert_eq!(left(), 16, "the others of its portion are gone, and no further one was tried");
        hub.remove_loose().await;
        assert_eq!(left(), 1, "they are removed later");
        assert!(path(&digests[0]).exists());
    }
}
