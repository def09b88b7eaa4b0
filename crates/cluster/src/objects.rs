use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::Value;

use crate::error::deleted;
use crate::{Cluster, Error};

/// Objects per response.
const PAGE: u32 = 500;
/// Limit, above the number of nodes in any cluster.
const MAX_OBJECTS: usize = 100_000;

/// A kind that is not built into Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
}

/// The part of an object to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Object,
    Status,
}

impl Cluster {
    /// Returns all objects of a kind in all namespaces, as JSON.
    pub async fn objects(&self, kind: &Kind) -> Result<Vec<Value>, Error> {
        self.objects_as(kind, Some).await
    }

    /// Returns all objects of a kind in all namespaces. Each is converted to a smaller value as soon as it is
    /// received.
    pub async fn objects_as<T>(
        &self,
        kind: &Kind,
        mut read: impl FnMut(Value) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let objects = self.dynamic(kind);
        let mut parameters = ListParams::default().limit(PAGE);
        let mut all = Vec::new();
        let mut count = 0;
        loop {
            let page = self.ask(|| format!("list {}", kind.plural), objects.list(&parameters)).await?;
            count += page.items.len();
            for object in page.items {
                let value = serde_json::to_value(object)
                    .map_err(|source| Error::Manifest { kind: kind.kind, source })?;
                all.extend(read(value));
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                // An incomplete list must be an error: a caller would treat the missing objects as deleted.
                Some(_) if count >= MAX_OBJECTS => {
                    return Err(Error::Many { plural: kind.plural, limit: MAX_OBJECTS });
                }
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(all),
            }
        }
    }

    /// Writes an object by server-side apply, which removes fields that this manager no longer sets.
    pub async fn apply(
        &self,
        kind: &Kind,
        name: &str,
        manager: &str,
        part: Part,
        content: &Value,
    ) -> Result<(), Error> {
        let objects = self.dynamic(kind);
        let object = kind.object(name, content);
        // The object belongs to this manager only: fields of other managers are overwritten.
        let parameters = PatchParams::apply(manager).force();
        let patch = Patch::Apply(&object);
        let asked = || format!("write {} {name}", kind.kind);
        match part {
            Part::Object => self.ask(asked, objects.patch(name, &parameters, &patch)).await.map(drop),
            Part::Status => self.ask(asked, objects.patch_status(name, &parameters, &patch)).await.map(drop),
        }
    }

    /// Deletes an object; a missing one is not an error.
    pub async fn delete_object(&self, kind: &Kind, name: &str) -> Result<(), Error> {
        let objects = self.dynamic(kind);
        let parameters = DeleteParams::default();
        deleted(self.ask(|| format!("delete {} {name}", kind.kind), objects.delete(name, &parameters)).await)
    }

    fn dynamic(&self, kind: &Kind) -> Api<DynamicObject> {
        Api::all_with(self.client(), &kind.resource())
    }
}

// === impl Kind ===

impl Kind {
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    /// Returns the content as an object of this kind and name.
    pub(crate) fn object(&self, name: &str, content: &Value) -> Value {
        let mut object = content.clone();
        object["apiVersion"] = Value::String(self.api_version());
        object["kind"] = Value::String(self.kind.to_owned());
        object["metadata"]["name"] = Value::String(name.to_owned());
        object
    }

    pub(crate) fn resource(&self) -> ApiResource {
        ApiResource {
            group: self.group.to_owned(),
            version: self.version.to_owned(),
            api_version: self.api_version(),
            kind: self.kind.to_owned(),
            plural: self.plural.to_owned(),
        }
    }
}
