//! Image manifests of a registry, parsed without I/O.

use landfall_fetch::{Algorithm, Digest};
use serde_json::Value;

/// An image has a dozen layers, not hundreds.
const MAX_LAYERS: usize = 256;
/// Limit above the number of platforms of any image.
const MAX_PLATFORMS: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    pub digest: Digest,
    pub kind: String,
    pub bytes: u64,
}

/// The content of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manifest {
    /// The layers, the lowest first.
    Image(Vec<Layer>),
    /// One manifest for each architecture of Linux.
    Index(Vec<(String, Digest)>),
}

/// The part of a manifest that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part} cannot be read")]
pub struct ManifestError {
    pub part: &'static str,
}

// === impl Manifest ===

impl Manifest {
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        let unusable = |part| ManifestError { part };
        let manifest: Value = serde_json::from_slice(bytes).map_err(|_| unusable("the manifest"))?;
        let Some(children) = manifest["manifests"].as_array() else {
            return layers(&manifest).map(Self::Image).ok_or_else(|| unusable("the list of layers"));
        };
        if children.len() > MAX_PLATFORMS {
            return Err(unusable("the index"));
        }
        let mut index = Vec::new();
        for child in children.iter().filter(|child| child["platform"]["os"] == "linux") {
            let architecture = child["platform"]["architecture"].as_str();
            let read = architecture.map(str::to_owned).zip(digest_of(&child["digest"]));
            index.push(read.ok_or_else(|| unusable("the index"))?);
        }
        Ok(Self::Index(index))
    }
}

fn layers(manifest: &Value) -> Option<Vec<Layer>> {
    let entries = manifest["layers"].as_array().filter(|entries| entries.len() <= MAX_LAYERS)?;
    entries
        .iter()
        .map(|entry| {
            Some(Layer {
                digest: digest_of(&entry["digest"])?,
                kind: entry["mediaType"].as_str()?.to_owned(),
                bytes: entry["size"].as_u64()?,
            })
        })
        .collect()
}

fn digest_of(value: &Value) -> Option<Digest> {
    Digest::new(Algorithm::Sha256, value.as_str()?.strip_prefix("sha256:")?)
}
