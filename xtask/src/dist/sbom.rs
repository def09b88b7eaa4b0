//! Software bill of materials (CycloneDX): each linked crate with version, license and source.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::package::About;

/// The platform of the binary; crates for others are not included.
pub(crate) const PLATFORM: &str = "x86_64-unknown-linux-gnu";
const PROGRAM: &str = "landfall";

/// Converts the output of `cargo metadata`.
pub(crate) fn cyclonedx(about: &About, metadata: &[u8]) -> Result<String> {
    let metadata: Value = serde_json::from_slice(metadata).context("read `cargo metadata`")?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages = list(&metadata["packages"]);
    let nodes = list(&metadata["resolve"]["nodes"]);
    let root = packages.iter().find(|package| package["name"] == PROGRAM).context("find our own crate")?;
    // Linked crates are those reachable without test and build dependencies.
    let mut linked: Vec<Value> = vec![root["id"].clone()];
    let mut at = 0;
    while let Some(id) = linked.get(at).cloned() {
        at += 1;
        let node = nodes.iter().find(|node| node["id"] == id).context("find a crate's dependencies")?;
        for dependency in list(&node["deps"]) {
            let normal = list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            if normal && !linked.contains(&dependency["pkg"]) {
                linked.push(dependency["pkg"].clone());
            }
        }
    }
    let reference = |package: &Value| {
        let text = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
        format!("pkg:cargo/{}@{}", text("name"), text("version"))
    };
    let component = |package: &Value, kind: &str| {
        let mut component = json!({
            "type": kind,
            "bom-ref": reference(package),
            "name": package["name"],
            "version": package["version"],
            "purl": reference(package),
        });
        if let Some(licence) = package["license"].as_str() {
            // Old manifests separate alternatives with a slash.
            component["licenses"] = json!([{"expression": licence.replace('/', " OR ")}]);
        }
        component
    };
    let mut components: Vec<(String, Value)> = packages
        .iter()
        .filter(|package| linked.contains(&package["id"]) && package["name"] != PROGRAM)
        .map(|package| (reference(package), component(package, "library")))
        .collect();
    components.sort_by(|one, other| one.0.cmp(&other.0));
    components.dedup_by(|one, other| one.0 == other.0);
    let sbom = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": component(root, "application"),
            "properties": [{"name": "source-date-epoch", "value": about.time.to_string()}],
        },
        "components": components.into_iter().map(|(_, component)| component).collect::<Vec<_>>(),
    });
    Ok(format!("{sbom:#}\n"))
}
