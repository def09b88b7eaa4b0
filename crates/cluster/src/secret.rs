use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret as SecretObject;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use landfall_model::Secret;

use crate::error::{created, deleted};
use crate::{Cluster, Error};

/// Secrets per response.
const PAGE: u32 = 500;
/// Limit, above one Secret per node of any cluster.
const MAX_SECRETS: usize = 20_000;

/// A listed Secret without its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretFacts {
    pub labels: BTreeMap<String, String>,
    /// Changes whenever the object is changed or replaced.
    pub version: String,
}

/// The data of a Secret by key.
pub type SecretData = BTreeMap<String, Secret<Vec<u8>>>;

impl Cluster {
    /// Returns the data of one Secret; `None` if it does not exist.
    pub async fn secret(&self, namespace: &str, name: &str) -> Result<Option<SecretData>, Error> {
        let secrets: Api<SecretObject> = Api::namespaced(self.client(), namespace);
        let found = self.ask(|| format!("read Secret {namespace}/{name}"), secrets.get_opt(name)).await?;
        Ok(found.map(|object| {
            let data = object.data.unwrap_or_default().into_iter();
            data.map(|(key, value)| (key, Secret::new(value.0))).collect()
        }))
    }

    /// Returns the Secrets of a namespace by name, without their data.
    pub async fn secrets(&self, namespace: &str) -> Result<BTreeMap<String, SecretFacts>, Error> {
        let secrets: Api<SecretObject> = Api::namespaced(self.client(), namespace);
        let mut parameters = ListParams::default().limit(PAGE);
        let mut all = BTreeMap::new();
        loop {
            let asked = || format!("list the Secrets of {namespace}");
            let page = self.ask(asked, secrets.list_metadata(&parameters)).await?;
            for object in page.items {
                let ObjectMeta { name, labels, uid, resource_version, .. } = object.metadata;
                let version = format!("{}/{}", uid.unwrap_or_default(), resource_version.unwrap_or_default());
                let facts = SecretFacts { labels: labels.unwrap_or_default(), version };
                all.insert(name.unwrap_or_default(), facts);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) if all.len() < MAX_SECRETS => parameters = parameters.continue_token(&token),
                _ => return Ok(all),
            }
        }
    }

    /// Creates a Secret; an existing one is not changed.
    pub async fn create_secret(
        &self,
        namespace: &str,
        name: &str,
        labels: &BTreeMap<String, String>,
        data: &SecretData,
    ) -> Result<(), Error> {
        let secrets: Api<SecretObject> = Api::namespaced(self.client(), namespace);
        let data = data.iter().map(|(key, value)| (key.clone(), ByteString(value.expose().clone())));
        let object = SecretObject {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(labels.clone()),
                ..ObjectMeta::default()
            },
            data: Some(data.collect()),
            ..SecretObject::default()
        };
        let parameters = PostParams::default();
        let asked = || format!("create Secret {namespace}/{name}");
        created(self.ask(asked, secrets.create(&parameters, &object)).await)
    }

    /// Deletes a Secret; a missing one is not an error.
    pub async fn delete_secret(&self, namespace: &str, name: &str) -> Result<(), Error> {
        let secrets: Api<SecretObject> = Api::namespaced(self.client(), namespace);
        let parameters = DeleteParams::default();
        let asked = || format!("delete Secret {namespace}/{name}");
        deleted(self.ask(asked, secrets.delete(name, &parameters)).await)
    }
}
