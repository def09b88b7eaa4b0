use std::collections::BTreeMap;

use k8s_openapi::api::authentication::v1::{TokenReview as TokenReviewObject, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;
use landfall_model::Secret;

use crate::{Cluster, Error};

/// A user authenticated by the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: Option<String>,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Result of a token review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenReview {
    /// The token is valid for these of the requested audiences.
    Valid { user: User, audiences: Vec<String> },
    /// The token is invalid, with the API server's reason.
    Invalid { reason: String },
}

/// Result of an access review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    Allowed,
    Denied { reason: String },
}

impl Cluster {
    /// Verifies a token and returns its user. An empty list of audiences means the API server's own.
    pub async fn review_token(
        &self,
        token: &Secret<String>,
        audiences: &[String],
    ) -> Result<TokenReview, Error> {
        let reviews: Api<TokenReviewObject> = Api::all(self.client());
        let review = TokenReviewObject {
            spec: TokenReviewSpec {
                token: Some(token.expose().clone()),
                audiences: (!audiences.is_empty()).then(|| audiences.to_vec()),
            },
            ..TokenReviewObject::default()
        };
        let parameters = PostParams::default();
        let answer = self.ask(|| "review a token".to_owned(), reviews.create(&parameters, &review)).await?;
        let status = answer.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            let reason = status.error.unwrap_or_else(|| "the token is not known to the cluster".to_owned());
            return Ok(TokenReview::Invalid { reason });
        }
        let user = status.user.unwrap_or_default();
        Ok(TokenReview::Valid {
            user: User {
                name: user.username.unwrap_or_default(),
                uid: user.uid,
                groups: user.groups.unwrap_or_default(),
                extra: user.extra.unwrap_or_default(),
            },
            audiences: status.audiences.unwrap_or_default(),
        })
    }

    /// Checks whether a user may use a verb on a non-resource path (`get` on `/bootstrap`).
    pub async fn review_path_access(&self, user: &User, verb: &str, path: &str) -> Result<Access, Error> {
        let reviews: Api<SubjectAccessReview> = Api::all(self.client());
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: user.uid.clone(),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()),
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some(path.to_owned()),
                    verb: Some(verb.to_owned()),
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let parameters = PostParams::default();
        let asked = || format!("ask whether {} may {verb} {path}", user.name);
        let answer = self.ask(asked, reviews.create(&parameters, &review)).await?;
        let status = answer.status.unwrap_or_default();
        // An explicit denial by one authorizer overrides the permission by another one.
        if status.allowed && status.denied != Some(true) {
            return Ok(Access::Allowed);
        }
        let reason = status.reason.filter(|reason| !reason.is_empty());
        Ok(Access::Denied { reason: reason.unwrap_or_else(|| "no rule allows it".to_owned()) })
    }
}
