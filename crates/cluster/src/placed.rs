use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::Value;

use crate::{Cluster, Error, Kind, Part};

/// The namespace and name of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
}

impl Cluster {
    /// Returns the definition of a kind; `None` if the cluster does not have it.
    pub async fn definition(&self, name: &str) -> Result<Option<Value>, Error> {
        const DEFINITION: Kind = Kind {
            group: "apiextensions.k8s.io",
            version: "v1",
            kind: "CustomResourceDefinition",
            plural: "customresourcedefinitions",
        };
        let definitions: Api<DynamicObject> = Api::all_with(self.client(), &DEFINITION.resource());
        let found = self.ask(|| format!("read the definition {name}"), definitions.get_opt(name)).await?;
        json(&DEFINITION, found)
    }

    /// Returns one object as JSON; `None` if it does not exist.
    pub async fn placed(&self, kind: &Kind, place: Place<'_>) -> Result<Option<Value>, Error> {
        let asked = || format!("read {} {}/{}", kind.kind, place.namespace, place.name);
        let found = self.ask(asked, self.within(kind, place).get_opt(place.name)).await?;
        json(kind, found)
    }

    /// Writes to a foreign object by server-side apply. Fields of other managers cause a conflict instead of
    /// being overwritten.
    pub async fn apply_placed(
        &self,
        kind: &Kind,
        place: Place<'_>,
        manager: &str,
        part: Part,
        content: &Value,
    ) -> Result<(), Error> {
        let object = kind.object(place.name, content);
        self.patch_placed(kind, place, part, &PatchParams::apply(manager), &Patch::Apply(&object)).await
    }

    /// Writes a merge patch: `null` removes a field, lists are replaced completely.
    pub async fn merge_placed(
        &self,
        kind: &Kind,
        place: Place<'_>,
        manager: &str,
        part: Part,
        content: &Value,
    ) -> Result<(), Error> {
        let parameters = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
        self.patch_placed(kind, place, part, &parameters, &Patch::Merge(content)).await
    }

    async fn patch_placed(
        &self,
        kind: &Kind,
        place: Place<'_>,
        part: Part,
        parameters: &PatchParams,
        patch: &Patch<&Value>,
    ) -> Result<(), Error> {
        let objects = self.within(kind, place);
        let asked = || format!("write {} {}/{}", kind.kind, place.namespace, place.name);
        match part {
            Part::Object => self.ask(asked, objects.patch(place.name, parameters, patch)).await.map(drop),
            Part::Status => {
                self.ask(asked, objects.patch_status(place.name, parameters, patch)).await.map(drop)
            }
        }
    }

    fn within(&self, kind: &Kind, place: Place<'_>) -> Api<DynamicObject> {
        Api::namespaced_with(self.client(), place.namespace, &kind.resource())
    }
}

fn json(kind: &Kind, found: Option<DynamicObject>) -> Result<Option<Value>, Error> {
    let failed = |source| Error::Manifest { kind: kind.kind, source };
    found.map(serde_json::to_value).transpose().map_err(failed)
}
