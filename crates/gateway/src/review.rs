//! Token and access reviews through an API server.

use std::path::PathBuf;
use std::time::Duration;

use landfall_cluster::{Access, Cluster, TokenReview, User};
use landfall_model::{Secret, chain};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};

/// Timeout for an API server that may be failing, and for a permit before the request.
const DEADLINE: Duration = Duration::from_secs(5);
/// Concurrent reviews of each kind.
const AT_ONCE: usize = 8;

pub(crate) struct Reviewer {
    kubeconfig: Option<PathBuf>,
    client: Mutex<Option<Client>>,
    /// Permits for token reviews, which any client that reaches the port can trigger.
    strangers: Semaphore,
    /// Permits for access reviews of authenticated users; token reviews cannot exhaust them.
    known: Semaphore,
}

struct Client {
    /// Content of the kubeconfig from which the client was created.
    content: Vec<u8>,
    cluster: Cluster,
}

/// Failure of a review.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReviewError {
    #[error("there is no kubeconfig to ask an API server with")]
    NobodyToAsk,
    #[error("too many reviews are in progress")]
    Busy,
    #[error("the API server did not answer")]
    Unanswered(#[source] landfall_cluster::Error),
}

/// Waits for a permit. The number of connections and streams bounds the waiting requests.
async fn turn(turns: &Semaphore) -> Result<SemaphorePermit<'_>, ReviewError> {
    match tokio::time::timeout(DEADLINE, turns.acquire()).await {
        Ok(Ok(turn)) => Ok(turn),
        _ => Err(ReviewError::Busy),
    }
}

// === impl Reviewer ===

impl Reviewer {
    pub(crate) fn new(kubeconfig: Option<PathBuf>) -> Self {
        let turns = || Semaphore::new(AT_ONCE);
        Self { kubeconfig, client: Mutex::new(None), strangers: turns(), known: turns() }
    }

    /// Reviews a token and returns its user.
    pub(crate) async fn token(&self, token: &str) -> Result<TokenReview, ReviewError> {
        let _turn = turn(&self.strangers).await?;
        let cluster = self.cluster().await.ok_or(ReviewError::NobodyToAsk)?;
        let token = Secret::new(token.to_owned());
        cluster.review_token(&token, &[]).await.map_err(ReviewError::Unanswered)
    }

    /// Reviews whether a user may `get` a path.
    pub(crate) async fn access(&self, user: &User, path: &str) -> Result<Access, ReviewError> {
        let _turn = turn(&self.known).await?;
        let cluster = self.cluster().await.ok_or(ReviewError::NobodyToAsk)?;
        cluster.review_path_access(user, "get", path).await.map_err(ReviewError::Unanswered)
    }

    /// Returns a client for the cluster, recreated when its kubeconfig has changed.
    pub(crate) async fn cluster(&self) -> Option<Cluster> {
        let path = self.kubeconfig.as_ref()?;
        let content = match tokio::fs::read(path).await {
            Ok(content) => content,
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "no kubeconfig");
                return None;
            }
        };
        let mut client = self.client.lock().await;
        if let Some(client) = client.as_ref().filter(|client| client.content == content) {
            return Some(client.cluster.clone());
        }
        match Cluster::from_kubeconfig(path).await {
            Ok(cluster) => {
                let cluster = cluster.deadline(DEADLINE);
                *client = Some(Client { content, cluster: cluster.clone() });
                Some(cluster)
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the kubeconfig cannot be used");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::pin::pin;

    use futures_util::poll;

    use super::*;

    fn user() -> User {
        User { name: "admin".to_owned(), uid: None, groups: Vec::new(), extra: BTreeMap::default() }
    }

    #[tokio::test]
    async fn strangers_with_tokens_keep_nobody_waiting_who_is_known() {
        let reviewer = Reviewer::new(None);
        let _all: Vec<_> = (0..AT_ONCE).map(|_| reviewer.strangers.try_acquire().unwrap()).collect();
        assert!(matches!(reviewer.access(&user(), "/bootstrap").await, Err(ReviewError::NobodyToAsk)));
    }

    #[tokio::test]
    async fn whose_turn_it_is_not_waits_for_it() {
        let reviewer = Reviewer::new(None);
        let all: Vec<_> = (0..AT_ONCE).map(|_| reviewer.known.try_acquire().unwrap()).collect();
        let user = user();
        let mut asking = pin!(reviewer.access(&user, "/bootstrap"));
        assert!(poll!(&mut asking).is_pending());
        drop(all);
        assert!(matches!(asking.await, Err(ReviewError::NobodyToAsk)));
    }
}
