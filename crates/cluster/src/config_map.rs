use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;

use crate::{Cluster, Error};

impl Cluster {
    /// Returns the data of a ConfigMap; `None` if it does not exist.
    pub async fn config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<BTreeMap<String, String>>, Error> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client(), namespace);
        let found = self.ask(|| format!("read ConfigMap {namespace}/{name}"), maps.get_opt(name)).await?;
        Ok(found.map(|map| map.data.unwrap_or_default()))
    }
}
