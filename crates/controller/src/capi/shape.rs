//! The Machine version to use and its format of conditions.
//!
//! Both come from the Machine's definition, because the version alone does not determine the format.

use landfall_cluster::Kind;
use serde_json::Value;

pub const GROUP: &str = "cluster.x-k8s.io";
pub const DEFINITION: &str = "machines.cluster.x-k8s.io";

/// Known versions, best first.
const VERSIONS: [&str; 3] = ["v1", "v1beta2", "v1beta1"];

/// The method of writing one condition among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Conditions are a map by type: the controller applies its own one without touching others.
    Apply,
    /// Conditions are one list: read, changed, and written back if no other client wrote in between.
    Replace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub version: &'static str,
    pub way: Way,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cluster serves no version of Machine that this program knows: v1beta1, v1beta2 or v1")]
pub struct Unknown;

// === impl Shape ===

impl Shape {
    /// Reads a definition of Machine. Versions whose conditions are a map take precedence.
    pub fn read(definition: &Value) -> Result<Self, Unknown> {
        let versions = definition["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let served = VERSIONS.into_iter().filter_map(|name| {
            let found =
                versions.iter().find(|version| version["name"] == name && version["served"] == true)?;
            let schema =
                &found["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["conditions"];
            let is_map = schema["x-kubernetes-list-type"] == "map"
                && schema["x-kubernetes-list-map-keys"].as_array().is_some_and(|keys| keys == &["type"]);
            Some(Self { version: name, way: if is_map { Way::Apply } else { Way::Replace } })
        });
        let served: Vec<Self> = served.collect();
        let best = served.iter().find(|shape| shape.way == Way::Apply).or(served.first());
        best.copied().ok_or(Unknown)
    }

    pub fn machine(self) -> Kind {
        Kind { group: GROUP, version: self.version, kind: "Machine", plural: "machines" }
    }

    pub fn cluster(self) -> Kind {
        Kind { group: GROUP, version: self.version, kind: "Cluster", plural: "clusters" }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn version(name: &str, is_served: bool, list_type: Option<&str>) -> Value {
        let conditions = match list_type {
            Some(kind) => {
                json!({"type": "array", "x-kubernetes-list-type": kind, "x-kubernetes-list-map-keys": ["type"]})
            }
            None => json!({"type": "array"}),
        };
        let status = json!({"properties": {"conditions": conditions}});
        json!({"name": name, "served": is_served, "schema": {"openAPIV3Schema": {"properties": {"status": status}}}})
    }

    fn read(versions: &[Value]) -> Result<(&'static str, Way), Unknown> {
        Shape::read(&json!({"spec": {"versions": versions}})).map(|shape| (shape.version, shape.way))
    }

    #[test]
    fn the_list_type_decides_and_not_the_version() {
        let (old, new) = (version("v1beta1", true, None), version("v1beta2", true, Some("map")));
        assert_eq!(read(&[old.clone(), new]), Ok(("v1beta2", Way::Apply)));
        assert_eq!(read(std::slice::from_ref(&old)), Ok(("v1beta1", Way::Replace)));
        let atomic = version("v1beta2", true, Some("atomic"));
        assert_eq!(read(&[old.clone(), atomic]), Ok(("v1beta2", Way::Replace)));
        assert_eq!(read(&[old, version("v1beta2", false, Some("map"))]), Ok(("v1beta1", Way::Replace)));
        assert_eq!(read(&[version("v1beta1", true, Some("map"))]), Ok(("v1beta1", Way::Apply)));
        assert_eq!(read(&[version("v1alpha4", true, None)]), Err(Unknown));
        assert_eq!(Shape::read(&json!({})), Err(Unknown));
    }
}
