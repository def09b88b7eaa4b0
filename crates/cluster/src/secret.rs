use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret as SecretObject;
use kube::Api;
use landfall_model::Secret;

use crate::{Cluster, Error};

/// The data of a Secret by key.
pub type SecretData = BTreeMap<String, Secret<Vec<u8>>>;

impl Cluster {
    /// The data of one Secret; `None` when there is no such object.
    pub async fn secret(&self, namespace: &str, name: &str) -> Result<Option<SecretData>, Error> {
        let secrets: Api<SecretObject> = Api::namespaced(self.client(), namespace);
        let found = self.ask(|| format!("read Secret {namespace}/{name}"), secrets.get_opt(name)).await?;
        Ok(found.map(|object| {
            let data = object.data.unwrap_or_default().into_iter();
            data.map(|(key, value)| (key, Secret::new(value.0))).collect()
        }))
    }
}
