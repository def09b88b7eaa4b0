//! Removes objects that have no record: of bundles that were forgotten, and what a crash left.

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use landfall_model::chain;

use super::Hub;
use crate::objects::FOLDERS;

/// Portions removed in one go; the rest waits for the next.
const PORTIONS: usize = 1000;
/// What is younger may be on its way into the records.
const GRACE: SignedDuration = SignedDuration::from_hours(24);

// === impl Hub ===

impl Hub {
    /// Removes what is loose. What cannot be removed stays on record, and is tried again later; nothing else is tried then,
    /// because an object store that does not answer would be waited for each time.
    pub(crate) async fn remove_loose(&self) {
        for _ in 0..PORTIONS {
            let digests = match self.store.loose(Timestamp::now()).await {
                Ok(digests) if digests.is_empty() => return,
                Ok(digests) => digests,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "Bundles to be removed could not be looked for.");
                    return;
                }
            };
            // All of them at once: one that can never be removed does not keep the others.
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
                tracing::warn!(digest, error = %chain(&error), "A bundle could not be removed; it will be tried again.");
                return;
            }
        }
    }

    /// Looks through all objects for those that nobody knows.
    pub(crate) async fn sweep(&self) {
        let now = Timestamp::now();
        let before = now.saturating_sub(GRACE).unwrap_or(Timestamp::MIN);
        for folder in 0..FOLDERS {
            let found = match self.objects.older_than(folder, before).await {
                Ok(found) if found.is_empty() => continue,
                Ok(found) => self.store.make_loose(found, now).await,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "Bundles without a record could not be looked for.");
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
        // A folder is nothing that can be removed as a file.
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
