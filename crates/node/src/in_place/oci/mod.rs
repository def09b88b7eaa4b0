//! Reads one file out of an image: a small client for OCI registries.
//!
//! ```text
//! image@sha256 ─▶ registries.conf: mirrors, the best first ─▶ manifest ─▶ digest? ─▶ layers, the last first ─▶ digest? ─▶ file
//!                                                    ▲ 401: token, as the registry says where
//! ```
//!
//! Everything is identified by digest, and content with another digest is rejected. Images identified by tag are
//! refused.

mod auth;
mod layer;
mod manifest;
mod reference;
mod registries;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use landfall_fetch::{Algorithm, Answer, Digest, Exchange, FetchError, Method};
use landfall_model::{Secret, chain};
use serde_json::Value;

pub(crate) use auth::escape;
pub use auth::{AuthFile, Challenge, MAX_BYTES as MAX_AUTH_BYTES};
pub use layer::{Extracted, LayerError, extract};
pub use manifest::{Layer, Manifest, ManifestError};
pub use reference::{Reference, ReferenceError};
pub use registries::{Place, RegistriesError, mirrored, places};

use crate::in_place::archive::ArchiveError;
use crate::in_place::environment::{InPlaceEnvironment, TrustRoots};

/// Manifests and indexes have some kilobytes; registries allow 4 MiB.
const MAX_MANIFEST: u64 = 4 * 1024 * 1024;
const MAX_TOKEN_ANSWER: u64 = 1024 * 1024;
/// The largest layer of a release image has some hundred megabytes.
const MAX_LAYER: u64 = 4 * 1024 * 1024 * 1024;
/// A registry redirects to a bucket; more redirects are a loop.
const MAX_REDIRECTS: usize = 5;
const WITHIN: Duration = Duration::from_secs(60);
const ACCEPT: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.docker.distribution.manifest.list.v2+json";

/// A resolved image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub place: Place,
    /// The layers, the lowest first.
    pub layers: Vec<Layer>,
}

#[derive(Debug, thiserror::Error)]
pub enum OciError {
    #[error("cannot use the name of the image")]
    Reference(#[source] ReferenceError),
    #[error("cannot use the settings of registries")]
    Registries(#[source] RegistriesError),
    #[error("none of {count} places has the image: {reasons}")]
    Nowhere { count: usize, reasons: String },
    #[error("cannot reach registry `{host}`")]
    Reach {
        host: String,
        #[source]
        source: FetchError,
    },
    #[error("registry `{host}` refuses access ({status}){hint}")]
    Refused { host: String, status: u16, hint: &'static str },
    #[error("registry `{host}` answered {status} for {what}")]
    Status { host: String, status: u16, what: String },
    #[error("{what} of registry `{host}` is not what its digest says")]
    Forged { host: String, what: String },
    #[error("{what} of registry `{host}` cannot be read")]
    Malformed { host: String, what: &'static str },
    #[error("the image has nothing for {architecture}")]
    Architecture { architecture: &'static str },
    #[error("cannot unpack a layer")]
    Layer(#[source] LayerError),
    #[error("the image has no file `{path}`")]
    NoFile { path: String },
}

/// Configuration for resolving and pulling images.
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Registry<'a, W> {
    pub env: &'a W,
    /// The text of `registries.conf`.
    pub settings: Option<&'a str>,
    /// Credentials in order of preference.
    pub auth: Vec<AuthFile>,
}

// === impl Registry ===

impl<W: InPlaceEnvironment> Registry<'_, W> {
    /// Finds the image at the first location that has it, and checks its manifest. Fetches manifests only.
    pub async fn find(&self, image: &str) -> Result<Image, OciError> {
        let reference = Reference::parse(image).map_err(OciError::Reference)?;
        let places = places(self.settings, &reference).map_err(OciError::Registries)?;
        let (mut reasons, count) = (Vec::new(), places.len());
        for place in places {
            match self.find_at(&place, &reference).await {
                Ok(image) => return Ok(image),
                Err(error) => {
                    tracing::info!(%place, error = %chain(&error), "A registry does not give the image.");
                    reasons.push(format!("{place}: {}", chain(&error)));
                }
            }
        }
        Err(OciError::Nowhere { count, reasons: reasons.join("; ") })
    }

    /// Reads one file out of an image. Layers are written to `folder`, one at a time, and removed again.
    pub async fn take(&self, image: &Image, path: &str, folder: &Path) -> Result<Vec<u8>, OciError> {
        for layer in image.layers.iter().rev() {
            let file = folder.join(format!("layer-{}", layer.digest.hex()));
            let found = self.take_from(image, layer, path, &file).await;
            // Best effort: the directory is removed with its content at the end.
            let _ = self.env.remove_all(&file);
            match found? {
                Extracted::File(bytes) => return Ok(bytes),
                Extracted::Removed => break,
                Extracted::Absent => {}
            }
        }
        Err(OciError::NoFile { path: path.to_owned() })
    }

    async fn take_from(
        &self,
        image: &Image,
        layer: &Layer,
        path: &str,
        file: &Path,
    ) -> Result<Extracted, OciError> {
        let host = &image.place.host;
        let what = format!("layer {}", short(&layer.digest));
        let url = image.place.url(&format!("blobs/sha256:{}", layer.digest.hex()));
        let saved = self.download(&image.place, &url, &self.env.host_path(file)).await?;
        let (digest, _) = saved.ok_or_else(|| OciError::Malformed { host: host.clone(), what: "a layer" })?;
        if digest != layer.digest {
            return Err(OciError::Forged { host: host.clone(), what });
        }
        let opened =
            self.env.open(file).map_err(|error| OciError::Layer(ArchiveError::Damaged(error).into()))?;
        let (kind, path) = (layer.kind.clone(), path.to_owned());
        let extracted = tokio::task::spawn_blocking(move || extract(opened, &kind, &path)).await;
        let stopped = |_| OciError::Malformed { host: host.clone(), what: "a layer" };
        extracted.map_err(stopped)?.map_err(OciError::Layer)
    }

    async fn find_at(&self, place: &Place, reference: &Reference) -> Result<Image, OciError> {
        let mut digest = reference.digest.clone();
        // An index leads to a manifest, and a manifest to layers: two rounds.
        for _ in 0..2 {
            let body = self.manifest(place, &digest).await?;
            let malformed = |what| OciError::Malformed { host: place.host.clone(), what };
            let children = match Manifest::parse(&body).map_err(|error| malformed(error.part))? {
                Manifest::Image(layers) => return Ok(Image { place: place.clone(), layers }),
                Manifest::Index(children) => children,
            };
            let architecture = architecture();
            let child = children.into_iter().find(|(made_for, _)| made_for == architecture);
            digest = child.ok_or(OciError::Architecture { architecture })?.1;
        }
        Err(OciError::Malformed { host: place.host.clone(), what: "an index of indexes" })
    }

    async fn manifest(&self, place: &Place, digest: &Digest) -> Result<Vec<u8>, OciError> {
        let url = place.url(&format!("manifests/sha256:{}", digest.hex()));
        let answer = self.ask(place, &url, Method::Get, MAX_MANIFEST).await?;
        let what = format!("manifest {}", short(digest));
        match answer.status {
            200 if Digest::of(Algorithm::Sha256, &answer.body) == *digest => Ok(answer.body),
            200 => Err(OciError::Forged { host: place.host.clone(), what }),
            status => Err(OciError::Status { host: place.host.clone(), status, what }),
        }
    }

    async fn ask(&self, place: &Place, url: &str, method: Method, limit: u64) -> Result<Answer, OciError> {
        let question = |authorization: Option<&Secret<String>>| {
            let mut question = Exchange::get(url, WITHIN, limit).header("accept", ACCEPT);
            question.method = method;
            if let Some(value) = authorization {
                question = question.header("authorization", value.expose().clone());
            }
            question
        };
        let answer = self.send(place, &question(None)).await?;
        if answer.status != 401 {
            return Ok(answer);
        }
        let authorization = self.authorize(place, &answer).await?;
        let answer = self.send(place, &question(Some(&authorization))).await?;
        match answer.status {
            status @ (401 | 403) => Err(OciError::Refused {
                host: place.host.clone(),
                status,
                hint: ": the credentials are wrong",
            }),
            _ => Ok(answer),
        }
    }

    /// Downloads a blob, following redirects of the registry; credentials are sent to the registry only.
    async fn download(
        &self,
        place: &Place,
        url: &str,
        file: &Path,
    ) -> Result<Option<(Digest, u64)>, OciError> {
        let mut url = url.to_owned();
        let mut authorization: Option<Secret<String>> = None;
        let mut elsewhere = false;
        let mut asked_for_access = false;
        for _ in 0..=MAX_REDIRECTS + 1 {
            let mut question = Exchange::get(url.as_str(), WITHIN, MAX_LAYER);
            if let Some(value) = authorization.as_ref().filter(|_| !elsewhere) {
                question = question.header("authorization", value.expose().clone());
            }
            let trust = if elsewhere { TrustRoots::System } else { place.trust() };
            let saved = self.env.download(&trust, &question, file).await;
            let saved = saved.map_err(|source| reach(place, source))?;
            match saved.answer.status {
                200 => return Ok(saved.file),
                401 if !asked_for_access && !elsewhere => {
                    asked_for_access = true;
                    authorization = Some(self.authorize(place, &saved.answer).await?);
                }
                301 | 302 | 303 | 307 | 308 => {
                    let malformed = || OciError::Malformed { host: place.host.clone(), what: "a redirect" };
                    let to = saved.answer.header("location").ok_or_else(malformed)?.to_owned();
                    if to.starts_with('/') {
                        url = format!("{}{to}", place.origin());
                    } else if to.starts_with("https://") || (place.insecure && to.starts_with("http://")) {
                        elsewhere = !to.starts_with(&format!("{}/", place.origin()));
                        url = to;
                    } else {
                        return Err(malformed());
                    }
                }
                status => {
                    let what = "a layer".to_owned();
                    return Err(OciError::Status { host: place.host.clone(), status, what });
                }
            }
        }
        Err(OciError::Malformed { host: place.host.clone(), what: "a circle of redirects" })
    }

    /// Returns the value of `Authorization` for the challenge of the registry.
    async fn authorize(&self, place: &Place, answer: &Answer) -> Result<Secret<String>, OciError> {
        let refused = |hint| OciError::Refused { host: place.host.clone(), status: answer.status, hint };
        let challenge = answer.header("www-authenticate").and_then(Challenge::parse);
        let challenge = challenge.ok_or_else(|| refused(": it does not say how to log in"))?;
        let known = self.auth.iter().find_map(|file| file.lookup(&place.host, &place.repository));
        match challenge {
            Challenge::Basic => {
                let known = known.ok_or_else(|| refused(": there are no credentials for it"))?;
                Ok(Secret::new(format!("Basic {}", known.expose())))
            }
            Challenge::Bearer { realm, service, scope } => {
                if !realm.starts_with("https://") && !place.insecure {
                    return Err(refused(": it wants the credentials sent over an open line"));
                }
                let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", place.repository));
                let url = auth::token_url(&realm, service.as_deref(), &scope);
                let mut question = Exchange::get(url, WITHIN, MAX_TOKEN_ANSWER);
                if let Some(known) = known {
                    question = question.header("authorization", format!("Basic {}", known.expose()));
                }
                let answer = self.send(place, &question).await?;
                let token: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
                let token = token["token"].as_str().or_else(|| token["access_token"].as_str());
                match token.filter(|_| answer.is_success()) {
                    Some(token) => Ok(Secret::new(format!("Bearer {token}"))),
                    None => Err(refused(": it gives no token")),
                }
            }
        }
    }

    async fn send(&self, place: &Place, question: &Exchange) -> Result<Answer, OciError> {
        self.env.exchange(&place.trust(), question).await.map_err(|source| reach(place, source))
    }
}

fn reach(place: &Place, source: FetchError) -> OciError {
    OciError::Reach { host: place.host.clone(), source }
}

fn short(digest: &Digest) -> String {
    digest.hex().chars().take(12).collect()
}

/// Returns the architecture in the notation of registries.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.repository)
    }
}

impl Place {
    fn origin(&self) -> String {
        format!("{}://{}", if self.insecure { "http" } else { "https" }, self.host)
    }

    fn url(&self, what: &str) -> String {
        format!("{}/v2/{}/{what}", self.origin(), self.repository)
    }

    /// A registry may have its own CAs on this machine.
    fn trust(&self) -> TrustRoots {
        TrustRoots::Registry { folder: PathBuf::from("/etc/containers/certs.d").join(&self.host) }
    }
}
