//! Installation of the hub as a unit or in a cluster.
//!
//! It is one process with local state, or several with shared stores.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use landfall_cluster::manifest;
use landfall_model::Secret;
use landfall_pki::{Authority, KeyedCertificate, Leaf, Purpose};
use serde_json::{Value, json};

use crate::package::{HostFile, Package, Unit};
use crate::stores::Placed;
use crate::tunnel::RunAs;
use crate::{Download, Format, Plan, RenderError, Stores, Target, chart, names, objects};

const NAME: &str = "landfall-hub";
const UNIT: &str = "landfall-hub.service";
const SHIPPED: &str = include_str!("../../../dist/landfall-hub.service");
const SHIPPED_START: &str = "ExecStart=/usr/bin/landfall hub";
const PORT: u16 = 8700;
const FOLDER: &str = "/etc/landfall/hub";
const STATE: &str = "/var/lib/landfall";
/// Storage for the fleet's reports and bundles.
const STORAGE: &str = "20Gi";
const FILES: [&str; 3] = ["tls.crt", "tls.key", "token.key"];
/// The Secret with the files that the stores' URLs reference, and its mount path. An administrator creates
/// it.
const STORES: &str = "landfall-hub-stores";
const STORES_FOLDER: &str = "/etc/landfall/stores";
/// The path of the same files in a unit.
const CREDENTIALS: &str = "${CREDENTIALS_DIRECTORY}";
/// Stems of the file names of the objects in `hub.yaml`.
const STEMS: [&str; 6] = ["namespace", "secret", "service", STATEFUL_SET, DISRUPTION_BUDGET, DEPLOYMENT];
const STATEFUL_SET: &str = "stateful-set";
const DISRUPTION_BUDGET: &str = "disruption-budget";
const DEPLOYMENT: &str = "deployment";
const MAX_REPLICAS: u32 = 50;

#[derive(Clone, Debug)]
pub struct Settings {
    pub target: Target,
    pub run_as: RunAs,
    /// Names and addresses of the hub.
    pub names: Vec<String>,
    pub namespace: String,
    /// Required for a pod.
    pub image: Option<String>,
    /// Required for a unit.
    pub download: Option<Download>,
    /// Stores that several hubs share; without them, the hub keeps its state locally.
    pub stores: Option<Stores>,
    /// Number of pods; more than one requires shared stores.
    pub replicas: u32,
}

/// The hub's certificate, and the keys by which it authenticates callers.
#[expect(missing_debug_implementations, reason = "holds private keys")]
pub struct Credentials {
    pub authority: String,
    pub serving: KeyedCertificate,
    pub token_key: Secret<String>,
}

/// Issues a certificate for the hub's names, including those in the cluster.
pub fn credentials(
    authority: &Authority,
    settings: &Settings,
    token_key: Secret<String>,
    days: u32,
) -> Result<Credentials, RenderError> {
    settings.check()?;
    let mut all = settings.names.clone();
    if settings.run_as == RunAs::Pod {
        all.push(format!("{NAME}.{}.svc", settings.namespace));
    }
    let leaf = Leaf::new(NAME, Purpose::Serve).names(all).days(days);
    Ok(Credentials {
        authority: authority.certificate().to_owned(),
        serving: authority.issue(&leaf)?,
        token_key,
    })
}

pub fn plan(settings: &Settings, credentials: &Credentials, format: Format) -> Result<Plan, RenderError> {
    settings.check()?;
    let fits = match settings.run_as {
        RunAs::Pod => !matches!(format, Format::Ignition | Format::Installer),
        RunAs::Unit => matches!(format, Format::Yaml | Format::Ignition),
    };
    if !fits {
        return Err(RenderError::Combination { way: settings.run_as.name(), format: format.name() });
    }
    let mut package = Package::new(NAME, "The fleet on one page", settings.target);
    match settings.run_as {
        RunAs::Unit => {
            package.files = vec![
                HostFile::open(format!("{FOLDER}/tls.crt"), credentials.serving.certificate.clone()),
                HostFile::secret(format!("{FOLDER}/tls.key"), credentials.serving.key.expose().clone()),
                HostFile::secret(format!("{FOLDER}/token.key"), credentials.token_key.expose().clone()),
            ];
            package.units.push(Unit { name: UNIT, text: unit(settings) });
            package.download.clone_from(&settings.download);
        }
        RunAs::Pod if format == Format::Helm => {
            let (namespace, image) = (chart::NAMESPACE.into(), Some(chart::IMAGE.into()));
            let marked = Settings { namespace, image, ..settings.clone() };
            package.objects = objects(&marked, credentials, chart::STORAGE);
            let (namespace, image) = (Some(settings.namespace.clone()), settings.image.clone());
            let storage = settings.stores.is_none().then_some(STORAGE);
            package.values = chart::Values { namespace, image, storage, ..chart::Values::default() };
        }
        RunAs::Pod => package.objects = objects(settings, credentials, STORAGE),
    }
    let mut plan = package.plan(format)?;
    // For clients of the hub.
    plan.add("hub-ca.crt", 0o644, credentials.authority.clone());
    Ok(plan)
}

/// Returns the shipped unit, changed to listen on more than loopback. The hub's user ID changes with each
/// start, so the files are passed as credentials.
fn unit(settings: &Settings) -> String {
    let own = FILES.map(|name| (name.to_owned(), format!("{FOLDER}/{name}")));
    let stores = settings.stores.as_ref().map(|stores| stores.placed(CREDENTIALS));
    let files = own.iter().chain(stores.iter().flat_map(|stores| &stores.files));
    let loads: String = files.map(|(name, path)| format!("LoadCredential={name}:{path}\n")).collect();
    let mut start = format!(
        "{loads}ExecStart=/usr/local/bin/landfall hub --listen [::]:{PORT} \\\n  \
         --tls-cert {CREDENTIALS}/tls.crt --tls-key {CREDENTIALS}/tls.key \\\n  \
         --token-key {CREDENTIALS}/token.key"
    );
    if let Some(stores) = stores {
        let [reports, bundles] = [stores.reports, stores.bundles].map(|url| url.replace('%', "%%"));
        start += &format!(" \\\n  --store {reports} \\\n  --objects {bundles}");
    }
    let comment =
        "# Without arguments it listens on 127.0.0.1:8700. For more, a drop-in with another ExecStart.\n";
    SHIPPED.replace(comment, "").replace(SHIPPED_START, &start)
}

fn objects(settings: &Settings, credentials: &Credentials, storage: &str) -> Vec<(&'static str, Value)> {
    let namespace = settings.namespace.as_str();
    let values = [
        ("NAME", json!(NAME)),
        ("NAMESPACE", json!(namespace)),
        ("METADATA", objects::metadata(NAME, namespace)),
        ("CERTIFICATE", json!(STANDARD.encode(&credentials.serving.certificate))),
        ("KEY", json!(STANDARD.encode(credentials.serving.key.expose()))),
        ("TOKEN_KEY", json!(STANDARD.encode(credentials.token_key.expose()))),
        ("PORT", json!(PORT)),
        ("POD", pod(settings)),
        ("STORAGE", json!(storage)),
        ("REPLICAS", json!(settings.replicas)),
    ];
    let objects = manifest::objects(include_str!("../files/hub.yaml"), &values);
    let mut all: Vec<_> = STEMS.into_iter().zip(objects).collect();
    // One hub writes a file; several share stores.
    let shared = settings.stores.is_some();
    all.retain(|(stem, _)| match *stem {
        STATEFUL_SET => !shared,
        DISRUPTION_BUDGET | DEPLOYMENT => shared,
        _ => true,
    });
    all.insert(1, ("service-account", objects::service_account(NAME, namespace)));
    all
}

fn pod(settings: &Settings) -> Value {
    let Placed { reports, bundles, files } = match &settings.stores {
        Some(stores) => stores.placed(STORES_FOLDER),
        None => Placed {
            reports: format!("sqlite:{STATE}/hub.db"),
            bundles: format!("file:{STATE}/bundles"),
            files: Vec::new(),
        },
    };
    let (mut mount, mut volume, mut affinity) = (Value::Null, Value::Null, Value::Null);
    if settings.stores.is_none() {
        mount = json!({"name": "state", "mountPath": STATE});
    } else {
        affinity = manifest::object(include_str!("../files/hub-affinity.yaml"), &[]);
    }
    if !files.is_empty() {
        mount = json!({"name": "stores", "mountPath": STORES_FOLDER, "readOnly": true});
        volume = json!({"name": "stores", "secret": {
            "secretName": STORES, "# defaultMode": "0440: for the group of the pod", "defaultMode": 0o440,
        }});
    }
    let values = [
        ("NAME", json!(NAME)),
        ("LABELS", objects::labels(NAME)),
        ("USER", objects::unprivileged(settings.target)),
        ("AFFINITY", affinity),
        ("IMAGE", json!(settings.image)),
        ("PORT", json!(PORT)),
        ("FOLDER", json!(FOLDER)),
        ("REPORTS", json!(reports)),
        ("BUNDLES", json!(bundles)),
        ("STORE_MOUNT", mount),
        ("STORES_VOLUME", volume),
    ];
    manifest::object(include_str!("../files/hub-pod.yaml"), &values)
}

// === impl Settings ===

impl Settings {
    fn check(&self) -> Result<(), RenderError> {
        names::namespace(&self.namespace)?;
        // Cluster API configures many machines, while the hub is a single one.
        if self.run_as == RunAs::Unit && self.target == Target::Capi {
            return Err(RenderError::HubOfCapi);
        }
        self.names.iter().try_for_each(|name| names::host(name))?;
        self.stores.as_ref().map_or(Ok(()), Stores::check)?;
        let replicas = self.replicas;
        if replicas == 0
            || replicas > MAX_REPLICAS
            || replicas > 1 && (self.stores.is_none() || self.run_as == RunAs::Unit)
        {
            return Err(RenderError::Replicas { replicas });
        }
        self.download.as_ref().map_or(Ok(()), Download::check)?;
        if self.run_as == RunAs::Pod && self.download.is_some() {
            return Err(RenderError::DownloadOfPod);
        }
        match (&self.image, self.run_as) {
            (Some(image), _) => names::image(image),
            (None, RunAs::Pod) => Err(RenderError::Missing { what: "the image" }),
            (None, RunAs::Unit) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_unit_is_known() {
        let settings = Settings {
            target: Target::Kubeadm,
            run_as: RunAs::Unit,
            names: Vec::new(),
            namespace: String::new(),
            image: None,
            download: None,
            stores: None,
            replicas: 1,
        };
        let unit = unit(&settings);
        assert!(
            unit.contains("\nExecStart=/usr/local/bin/landfall hub --listen") && !unit.contains("/usr/bin/")
        );
        assert!(!unit.contains("drop-in"), "{unit}");
    }
}
