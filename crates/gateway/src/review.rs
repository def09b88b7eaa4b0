//! Asks an API server who somebody is and what they may.

use std::path::PathBuf;
use std::time::Duration;

use landfall_cluster::{Access, Cluster, TokenReview, User};
use landfall_model::{Secret, chain};
use tokio::sync::{Mutex, Semaphore};

/// Patience with an API server that may be dying.
const DEADLINE: Duration = Duration::from_secs(5);
/// Questions at once: anybody who reaches the port can make us ask.
const AT_ONCE: usize = 8;

/// Whom to ask.
pub(crate) struct Reviewer {
    kubeconfig: Option<PathBuf>,
    client: Mutex<Option<Client>>,
    turns: Semaphore,
}

struct Client {
    /// The file it was made from.
    content: Vec<u8>,
    cluster: Cluster,
}

/// Nobody could be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReviewError {
    #[error("there is no kubeconfig to ask an API server with")]
    NobodyToAsk,
    #[error("too many questions are being asked")]
    Busy,
    #[error("the API server did not answer")]
    Unanswered(#[source] landfall_cluster::Error),
}

// === impl Reviewer ===

impl Reviewer {
    pub(crate) fn new(kubeconfig: Option<PathBuf>) -> Self {
        Self { kubeconfig, client: Mutex::new(None), turns: Semaphore::new(AT_ONCE) }
    }

    /// Whose token is it?
    pub(crate) async fn token(&self, token: &str) -> Result<TokenReview, ReviewError> {
        let _turn = self.turns.try_acquire().map_err(|_| ReviewError::Busy)?;
        let cluster = self.cluster().await.ok_or(ReviewError::NobodyToAsk)?;
        let token = Secret::new(token.to_owned());
        cluster.review_token(&token, &[]).await.map_err(ReviewError::Unanswered)
    }

    /// May they?
    pub(crate) async fn access(&self, user: &User, path: &str) -> Result<Access, ReviewError> {
        let _turn = self.turns.try_acquire().map_err(|_| ReviewError::Busy)?;
        let cluster = self.cluster().await.ok_or(ReviewError::NobodyToAsk)?;
        cluster.review_path_access(user, "get", path).await.map_err(ReviewError::Unanswered)
    }

    /// A client for the cluster, made anew when its file has changed.
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
