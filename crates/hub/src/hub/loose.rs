//! Removes objects that have no record: of bundles that were forgotten, and what a crash left.

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
    /// Removes what is loose. What cannot be removed stays on record, and is tried again later.
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
            for digest in digests {
                if let Err(error) = self.objects.remove(&digest).await {
                    tracing::warn!(digest, error = %chain(&error), "A bundle could not be removed; it will be tried again.");
                } else if let Err(error) = self.store.removed(digest).await {
                    tracing::warn!(error = %chain(&error), "A removed bundle could not be forgotten.");
                }
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
