//! Authorization for the gateway's own paths.

use hyper::{HeaderMap, StatusCode};
use landfall_cluster::{Access, TokenReview, User};
use landfall_model::chain;

use crate::answer::Refusal;
use crate::audit::Event;
use crate::connection::Connection;
use crate::credentials::Peer;
use crate::headers::bearer;
use crate::review::ReviewError;

/// The group with full access to every cluster; its members may gather without an API server to authorize them.
const MASTERS: &str = "system:masters";
const AUTHENTICATED: &str = "system:authenticated";
const GATHER_TOKEN_USER: &str = "landfall:gather-token";

/// The permission that a path requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Any authenticated identity.
    AnyIdentity,
    /// The right to `get` this path.
    Path(&'static str),
}

/// An authorized client.
#[derive(Clone, Debug)]
pub(crate) struct Admitted {
    pub(crate) user: String,
    /// The credential or rule that granted access.
    pub(crate) by: &'static str,
}

enum Identity {
    GatherToken,
    User(User),
}

/// Authorizes a client or rejects it; the audit log records both outcomes.
pub(crate) async fn admit(
    connection: &Connection,
    method: &str,
    path: &str,
    headers: &HeaderMap,
    need: Need,
) -> Result<Admitted, Refusal> {
    let event = Event::new(connection.client, method, path);
    let identity = match identify(connection, headers).await {
        Ok(identity) => identity,
        Err(refusal) => return Err(deny(connection, &event, None, &refusal)),
    };
    let user = match identity {
        Identity::GatherToken => {
            let admitted = Admitted { user: GATHER_TOKEN_USER.to_owned(), by: "gather token" };
            connection.gateway.audit.admitted(&event, &admitted);
            return Ok(admitted);
        }
        Identity::User(user) => user,
    };
    let decided = match need {
        Need::AnyIdentity => Ok("identity"),
        Need::Path(needed) => authorize(connection, &user, needed).await,
    };
    match decided {
        Ok(by) => {
            let admitted = Admitted { user: user.name, by };
            connection.gateway.audit.admitted(&event, &admitted);
            Ok(admitted)
        }
        Err(refusal) => Err(deny(connection, &event, Some(&user.name), &refusal)),
    }
}

/// Records a rejection in full. Unauthenticated clients do not see its reason.
fn deny(connection: &Connection, event: &Event, user: Option<&str>, refusal: &Refusal) -> Refusal {
    connection.gateway.metrics.denied.add(1);
    connection.gateway.audit.denied(event, user, refusal.code, &refusal.message);
    match refusal.code {
        StatusCode::UNAUTHORIZED => Refusal::new(refusal.code, "Unauthorized"),
        _ => refusal.clone(),
    }
}

/// Identifies the client of a request. The gather token needs no other credential; otherwise a certificate takes
/// precedence over a token, as in kube-apiserver.
async fn identify(connection: &Connection, headers: &HeaderMap) -> Result<Identity, Refusal> {
    let credentials = connection.gateway.credentials.get();
    let token = bearer(headers);
    if token.is_some_and(|token| credentials.is_gather_token(token)) {
        return Ok(Identity::GatherToken);
    }
    let unauthorized = |reason: &str| Refusal::new(StatusCode::UNAUTHORIZED, reason);
    let no_certificate = match connection.peer(&credentials) {
        Peer::Known(known) => {
            let mut user = known.user.clone();
            // kube-apiserver adds this group to every authenticated user.
            user.groups.push(AUTHENTICATED.to_owned());
            return Ok(Identity::User(user));
        }
        Peer::Unfit { reason } => return Err(unauthorized(&reason)),
        Peer::FrontProxy => return Err(unauthorized("a front proxy has no identity of its own")),
        Peer::Unknown { reason } => format!("the client's certificate is not valid: {reason}"),
        Peer::Nobody => "neither certificate nor token".to_owned(),
    };
    let Some(token) = token else { return Err(unauthorized(&no_certificate)) };
    match connection.gateway.reviewer.token(token).await {
        Ok(TokenReview::Valid { user, .. }) => Ok(Identity::User(user)),
        Ok(TokenReview::Invalid { reason }) => Err(unauthorized(&reason)),
        Err(ReviewError::Busy) => Err(too_many()),
        Err(error) => {
            tracing::debug!(error = %chain(&error), "a token was not reviewed");
            let reason = "no API server can be asked whose token this is: \
                use a client certificate of `system:masters` or the gather token";
            Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, reason))
        }
    }
}

/// Returns 429 rather than 403: the client may retry.
fn too_many() -> Refusal {
    Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too many requests are being reviewed")
}

/// Authorizes a user through the cluster, or by the configured users and groups while no API server is available.
async fn authorize(connection: &Connection, user: &User, path: &str) -> Result<&'static str, Refusal> {
    let forbidden = |reason: String| {
        let message = format!("User \"{}\" cannot get path \"{path}\"{reason}", user.name);
        Refusal::new(StatusCode::FORBIDDEN, message)
    };
    let gateway = &connection.gateway;
    if gateway.outlook.now().has_route() {
        match gateway.reviewer.access(user, path).await {
            Ok(Access::Allowed) => return Ok("the cluster"),
            Ok(Access::Denied { reason }) => return Err(forbidden(format!(": {reason}"))),
            Err(ReviewError::Busy) => return Err(too_many()),
            Err(error) => tracing::warn!(error = %chain(&error), "access is decided without the cluster"),
        }
    }
    let listed = &gateway.config.access;
    if user.groups.iter().any(|group| group == MASTERS || listed.groups.contains(group)) {
        Ok("group")
    } else if listed.users.contains(&user.name) {
        Ok("user")
    } else {
        Err(forbidden(" while no API server can be asked".to_owned()))
    }
}
