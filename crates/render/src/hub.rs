//! The hub: one process with its state beside it, as a unit or in a cluster.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use landfall_model::Secret;
use landfall_pki::{Authority, KeyedCertificate, Leaf, Purpose};
use serde_json::{Value, json};

use crate::objects::NOBODY;
use crate::package::{HostFile, Package, Unit};
use crate::tunnel::RunAs;
use crate::{Download, Format, Plan, RenderError, Target, chart, names, objects};

const NAME: &str = "landfall-hub";
const UNIT: &str = "landfall-hub.service";
const SHIPPED: &str = include_str!("../../../dist/landfall-hub.service");
const SHIPPED_START: &str = "ExecStart=/usr/bin/landfall hub";
const PORT: u16 = 8700;
const FOLDER: &str = "/etc/landfall/hub";
const STATE: &str = "/var/lib/landfall";
/// Room for what the fleet sends.
const STORAGE: &str = "20Gi";
const FILES: [&str; 3] = ["tls.crt", "tls.key", "token.key"];

#[derive(Clone, Debug)]
pub struct Settings {
    pub target: Target,
    pub run_as: RunAs,
    /// Names and addresses the hub is reached at.
    pub names: Vec<String>,
    pub namespace: String,
    /// For a pod.
    pub image: Option<String>,
    /// For a unit.
    pub download: Option<Download>,
}

/// What the hub proves itself with, and what it knows callers by.
#[expect(missing_debug_implementations, reason = "holds private keys")]
pub struct Credentials {
    pub authority: String,
    pub serving: KeyedCertificate,
    pub token_key: Secret<String>,
}

/// A certificate for the hub's names, those in the cluster included.
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
            package.units.push(Unit { name: UNIT, text: unit() });
            package.download.clone_from(&settings.download);
        }
        RunAs::Pod if format == Format::Helm => {
            let (namespace, image) = (chart::NAMESPACE.into(), Some(chart::IMAGE.into()));
            let marked = Settings { namespace, image, ..settings.clone() };
            package.objects = objects(&marked, credentials, chart::STORAGE);
            let (namespace, image) = (Some(settings.namespace.clone()), settings.image.clone());
            package.values = chart::Values { namespace, image, storage: Some(STORAGE) };
        }
        RunAs::Pod => package.objects = objects(settings, credentials, STORAGE),
    }
    let mut plan = package.plan(format)?;
    // For those who call it.
    plan.add("hub-ca.crt", 0o644, credentials.authority.clone());
    Ok(plan)
}

/// The shipped unit, with more than loopback to listen on. The hub's user changes with each start, so the files come to it
/// as credentials.
fn unit() -> String {
    let loads: String = FILES.map(|name| format!("LoadCredential={name}:{FOLDER}/{name}\n")).concat();
    let start = format!(
        "{loads}ExecStart=/usr/local/bin/landfall hub --listen [::]:{PORT} \\\n  \
         --tls-cert ${{CREDENTIALS_DIRECTORY}}/tls.crt --tls-key ${{CREDENTIALS_DIRECTORY}}/tls.key \\\n  \
         --token-key ${{CREDENTIALS_DIRECTORY}}/token.key"
    );
    let comment =
        "# Without arguments it listens on 127.0.0.1:8700. For more, a drop-in with another ExecStart.\n";
    SHIPPED.replace(comment, "").replace(SHIPPED_START, &start)
}

fn objects(settings: &Settings, credentials: &Credentials, storage: &str) -> Vec<(&'static str, Value)> {
    let namespace = settings.namespace.as_str();
    let metadata = || objects::metadata(NAME, namespace);
    let selector = json!({"app.kubernetes.io/name": NAME});
    let user = match settings.target {
        Target::Openshift => json!({
            "# runAsNonRoot": objects::CHOSEN_USER,
            "runAsNonRoot": true,
            "seccompProfile": {"type": "RuntimeDefault"},
        }),
        _ => json!({
            "runAsNonRoot": true, "runAsUser": NOBODY, "runAsGroup": NOBODY, "fsGroup": NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        }),
    };
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "https", "scheme": "HTTPS"}, "periodSeconds": 10, "timeoutSeconds": 5});
    vec![
        (
            "namespace",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": {
                "app.kubernetes.io/part-of": "landfall", "pod-security.kubernetes.io/enforce": "restricted",
            }}}),
        ),
        ("service-account", objects::service_account(NAME, namespace)),
        (
            "secret",
            json!({
                "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata(),
                "data": {
                    "tls.crt": STANDARD.encode(&credentials.serving.certificate),
                    "tls.key": STANDARD.encode(credentials.serving.key.expose()),
                    "token.key": STANDARD.encode(credentials.token_key.expose()),
                },
            }),
        ),
        (
            "service",
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": metadata(),
                "spec": {"selector": selector, "ports": [{"name": "https", "port": PORT, "targetPort": "https"}]},
            }),
        ),
        (
            "stateful-set",
            json!({
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "metadata": metadata(),
                "spec": {
                    "serviceName": NAME,
                    "# replicas": "One writer: its store is a file.",
                    "replicas": 1,
                    "selector": {"matchLabels": selector},
                    "template": {
                        "metadata": {"labels": objects::labels(NAME)},
                        "spec": {
                            "serviceAccountName": NAME,
                            "automountServiceAccountToken": false,
                            "terminationGracePeriodSeconds": 30,
                            "securityContext": user,
                            "containers": [{
                                "name": "hub",
                                "image": settings.image,
                                "imagePullPolicy": "IfNotPresent",
                                "command": ["/landfall"],
                                "args": [
                                    "hub",
                                    format!("--listen=0.0.0.0:{PORT}"),
                                    format!("--store=sqlite:{STATE}/hub.db"),
                                    format!("--objects=file:{STATE}/bundles"),
                                    format!("--tls-cert={FOLDER}/tls.crt"),
                                    format!("--tls-key={FOLDER}/tls.key"),
                                    format!("--token-key={FOLDER}/token.key"),
                                ],
                                "ports": [{"name": "https", "containerPort": PORT}],
                                "livenessProbe": probe("/livez"),
                                "readinessProbe": probe("/readyz"),
                                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
                                "securityContext": {
                                    "allowPrivilegeEscalation": false,
                                    "readOnlyRootFilesystem": true,
                                    "capabilities": {"drop": ["ALL"]},
                                },
                                "volumeMounts": [
                                    {"name": "keys", "mountPath": FOLDER, "readOnly": true},
                                    {"name": "state", "mountPath": STATE},
                                    {"name": "tmp", "mountPath": "/tmp"},
                                ],
                            }],
                            "volumes": [
                                {"name": "keys", "secret": {
                                    "secretName": NAME, "# defaultMode": objects::READ_BY_GROUP, "defaultMode": 0o440,
                                }},
                                {"name": "tmp", "emptyDir": {}},
                            ],
                        },
                    },
                    "volumeClaimTemplates": [{
                        "metadata": {"name": "state"},
                        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}},
                    }],
                },
            }),
        ),
    ]
}

// === impl Settings ===

impl Settings {
    fn check(&self) -> Result<(), RenderError> {
        names::namespace(&self.namespace)?;
        // Many machines are made from what Cluster API is told, and a hub is one.
        if self.run_as == RunAs::Unit && self.target == Target::Capi {
            return Err(RenderError::HubOfCapi);
        }
        self.names.iter().try_for_each(|name| names::host(name))?;
        self.download.as_ref().map_or(Ok(()), Download::check)?;
        match (&self.image, self.run_as) {
            (Some(image), _) => names::image(image),
            (None, RunAs::Pod) => Err(RenderError::Missing { what: "the image" }),
            (None, RunAs::Unit) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_shipped_unit_is_known() {
        let unit = super::unit();
        assert!(
            unit.contains("\nExecStart=/usr/local/bin/landfall hub --listen") && !unit.contains("/usr/bin/")
        );
        assert!(!unit.contains("drop-in"), "{unit}");
    }
}
