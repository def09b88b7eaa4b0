//! Agent authentication by token, through TokenReviews of the cluster. A token that cannot be reviewed is rejected.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use landfall_cluster::{Cluster, TokenReview};
use landfall_model::{Secret, chain};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use super::Authenticate;

/// Time for which a valid token is cached. Tokens matter only when connecting, so a revoked token remains usable for
/// this long at most. A mass reconnect of agents ends well before.
const BELIEVED: Duration = Duration::from_secs(60);
/// Maximum number of cached tokens: more than agents that reconnect within a minute. Further tokens are reviewed each
/// time.
const MAX_REMEMBERED: usize = 16 * 1024;
/// Concurrent reviews, so that a mass reconnect of agents does not overload the API server.
const MAX_QUESTIONS: usize = 16;
/// Timeout to wait for a review permit; the agent then retries later.
const TURN_LIMIT: Duration = Duration::from_secs(30);
/// Maximum size of a token; Kubernetes issues smaller ones.
const MAX_TOKEN: usize = 64 * 1024;

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A service that reviews tokens.
pub trait Reviewer: Send + Sync {
    fn review<'a>(
        &'a self,
        token: &'a Secret<String>,
        audiences: &'a [String],
    ) -> Answer<'a, Result<TokenReview, landfall_cluster::Error>>;
}

/// Accepts the tokens of one service account for one audience.
pub struct TokenReviews<R = Cluster> {
    reviewer: R,
    user: String,
    audiences: [String; 1],
    /// Cached by digest: the tokens themselves are not stored.
    believed: Mutex<HashMap<[u8; 32], Instant>>,
    questions: Semaphore,
}

// === impl TokenReviews ===

impl<R: Reviewer> TokenReviews<R> {
    /// Creates it from `--agent-namespace`, `--agent-service-account`, `--authentication-audience`.
    pub fn new(reviewer: R, namespace: &str, service_account: &str, audience: String) -> Self {
        Self {
            reviewer,
            user: format!("system:serviceaccount:{namespace}:{service_account}"),
            audiences: [audience],
            believed: Mutex::default(),
            questions: Semaphore::new(MAX_QUESTIONS),
        }
    }

    async fn decide(&self, token: &[u8]) -> Result<(), String> {
        if token.is_empty() || token.len() > MAX_TOKEN {
            return Err("an agent has to show a token: `authorization: Bearer …`".to_owned());
        }
        let digest: [u8; 32] = Sha256::digest(token).into();
        if self.is_believed(&digest) {
            return Ok(());
        }
        let text = std::str::from_utf8(token).map_err(|_| "the token is not text".to_owned())?;
        let token = Secret::new(text.to_owned());
        let turn = tokio::time::timeout(TURN_LIMIT, self.questions.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            return Err("the token cannot be checked now: too many others are waiting".to_owned());
        };
        match self.reviewer.review(&token, &self.audiences).await {
            Ok(TokenReview::Valid { user, audiences }) => {
                if user.name != self.user {
                    return Err(format!("the token is of {}, not of {}", user.name, self.user));
                }
                // An authenticator without support for audiences returns none, which is not sufficient.
                if !audiences.contains(&self.audiences[0]) {
                    return Err(format!("the token is not meant for {}", self.audiences[0]));
                }
                self.believe(digest);
                Ok(())
            }
            Ok(TokenReview::Invalid { reason }) => Err(format!("the token is not valid: {reason}")),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "an agent's token cannot be checked");
                Err("the token cannot be checked now".to_owned())
            }
        }
    }

    fn is_believed(&self, digest: &[u8; 32]) -> bool {
        self.lock().get(digest).is_some_and(|since| since.elapsed() < BELIEVED)
    }

    fn believe(&self, digest: [u8; 32]) {
        let mut believed = self.lock();
        if believed.len() >= MAX_REMEMBERED {
            believed.retain(|_, since| since.elapsed() < BELIEVED);
        }
        if believed.len() < MAX_REMEMBERED {
            believed.insert(digest, Instant::now());
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 32], Instant>> {
        self.believed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Reviewer> Authenticate for TokenReviews<R> {
    fn check<'a>(&'a self, token: &'a [u8]) -> Answer<'a, Result<(), String>> {
        Box::pin(self.decide(token))
    }
}

impl<R> fmt::Debug for TokenReviews<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenReviews").field("user", &self.user).finish_non_exhaustive()
    }
}

// === impl Reviewer ===

impl Reviewer for Cluster {
    fn review<'a>(
        &'a self,
        token: &'a Secret<String>,
        audiences: &'a [String],
    ) -> Answer<'a, Result<TokenReview, landfall_cluster::Error>> {
        Box::pin(self.review_token(token, audiences))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use landfall_cluster::User;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Knows the tokens `good`, `stranger` and `elsewhere`; is unavailable for `late`.
    #[derive(Default)]
    struct Played(AtomicUsize);

    impl Reviewer for Played {
        fn review<'a>(
            &'a self,
            token: &'a Secret<String>,
            audiences: &'a [String],
        ) -> Answer<'a, Result<TokenReview, landfall_cluster::Error>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let valid = |name: &str, audiences: &[String]| {
                let name = format!("system:serviceaccount:kube-system:{name}");
                let user = User { name, ..User::default() };
                Ok(TokenReview::Valid { user, audiences: audiences.to_vec() })
            };
            let answer = match token.expose().as_str() {
                "good" => valid("agent", audiences),
                "stranger" => valid("stranger", audiences),
                "elsewhere" => valid("agent", &[]),
                "late" => Err(landfall_cluster::Error::Late { asked: "review a token".into(), seconds: 15 }),
                _ => Ok(TokenReview::Invalid { reason: "unknown".to_owned() }),
            };
            Box::pin(async move { answer })
        }
    }

    fn reviews() -> TokenReviews<Played> {
        TokenReviews::new(Played::default(), "kube-system", "agent", "tunnel".to_owned())
    }

    #[tokio::test]
    async fn only_the_right_account_for_the_right_audience_is_let_in() {
        let reviews = reviews();
        assert_eq!(reviews.check(b"good").await, Ok(()));
        for (token, said) in [
            (&b""[..], "has to show"),
            (b"bad", "not valid: unknown"),
            (b"stranger", "is of system:serviceaccount:kube-system:stranger"),
            (b"elsewhere", "not meant for tunnel"),
            (b"late", "cannot be checked now"),
            (b"\xff", "not text"),
        ] {
            let refused = reviews.check(token).await.unwrap_err();
            assert!(refused.contains(said), "{refused}");
        }
    }

    #[tokio::test]
    async fn a_good_token_is_asked_about_once_and_a_bad_one_each_time() {
        let reviews = reviews();
        for _ in 0..5 {
            assert!(reviews.check(b"good").await.is_ok());
        }
        assert_eq!(reviews.reviewer.0.load(Ordering::Relaxed), 1);
        for _ in 0..5 {
            assert!(reviews.check(b"bad").await.is_err());
        }
        assert_eq!(reviews.reviewer.0.load(Ordering::Relaxed), 6);
    }

    #[tokio::test]
    async fn what_is_remembered_is_bounded() {
        let reviews = reviews();
        for number in 0..=MAX_REMEMBERED {
            reviews.believe(Sha256::digest(number.to_le_bytes()).into());
        }
        assert_eq!(reviews.lock().len(), MAX_REMEMBERED);
        // The cache is full: the token is accepted, though not cached.
        assert!(reviews.check(b"good").await.is_ok());
        assert_eq!(reviews.lock().len(), MAX_REMEMBERED);
    }
}
