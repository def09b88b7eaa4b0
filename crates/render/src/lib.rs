//! Installation files of landfall's roles: certificates, units, static pods, manifests, Ignition.
//!
//! Each result is a [`Plan`]: a list of files that can be shown, compared and tested. Writing it is one step
//! at the end, which replaces existing files only if requested.

pub mod agent;
mod authority;
pub mod carriers;
pub mod chart;
mod completion;
mod download;
pub mod gateway;
pub mod hub;
pub mod in_place;
mod installer;
mod names;
mod objects;
mod own_address;
mod package;
mod plan;
mod stores;
mod target;
mod teardown;
pub mod tunnel;
mod yaml;

pub use authority::{Credentials, Identity, authority, credentials, leaves, pki};
pub use completion::Completion;
pub use download::Download;
pub use names::{object_name, secure_url, selector};
pub use package::Format;
pub use plan::{Content, File, Plan};
pub use stores::Stores;
pub use target::Target;
pub use teardown::{Step, script, steps};

use std::path::PathBuf;

use serde_json::Value;

/// A role with complete objects of its own.
#[derive(Clone, Debug)]
pub struct Described {
    pub name: &'static str,
    /// One line for a chart.
    pub about: &'static str,
    pub namespace: String,
    pub image: String,
    /// Objects in the order of their application, each with the stem of its file name. For a chart, they
    /// contain placeholders instead of namespace and image.
    pub objects: Vec<(&'static str, Value)>,
}

/// Returns the objects of a role that are the same in every kind of cluster.
pub fn manifests(role: Described, format: Format) -> Result<Plan, RenderError> {
    names::namespace(&role.namespace)?;
    names::image(&role.image)?;
    if matches!(format, Format::Ignition | Format::Installer) {
        return Err(RenderError::Combination { way: role.name, format: format.name() });
    }
    let mut package = package::Package::new(role.name, role.about, Target::Kubeadm);
    package.objects = role.objects;
    package.values = chart::Values {
        namespace: Some(role.namespace),
        image: Some(role.image),
        ..chart::Values::default()
    };
    package.plan(format)
}

#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    #[error("invalid namespace `{namespace}`: must be a DNS-1123 label")]
    Namespace { namespace: String },
    #[error("the namespace `{namespace}` is not the tunnel's alone, and is deleted with it")]
    SharedNamespace { namespace: String },
    #[error("invalid object name `{name}`: must be a DNS-1123 subdomain")]
    Object { name: String },
    #[error("invalid label selector `{selector}`")]
    Selector { selector: String },
    #[error("invalid completion signal `{text}`")]
    Completion { text: String },
    #[error("invalid image reference `{image}`")]
    Image { image: String },
    #[error("invalid server address `{address}`: must be an IP address or a host name")]
    Address { address: String },
    #[error("invalid node name `{node}`: must be a DNS-1123 label that is short enough for object names")]
    Node { node: String },
    #[error("invalid network `{network}`: must be a CIDR such as `10.0.0.0/8`")]
    Network { network: String },
    #[error("invalid URL `{url}`: must name a file or a hub")]
    Url { url: String },
    #[error("refusing to send secrets to `{url}` without encryption")]
    InTheClear { url: String },
    #[error("invalid NATS server URL `{url}`")]
    Nats { url: String },
    #[error("invalid NATS subject `{subject}`")]
    Subject { subject: String },
    #[error("invalid peer address `{place}`")]
    Neighbour { place: String },
    #[error("invalid object `{object}`: must be in the management cluster")]
    Report { object: String },
    #[error("invalid serve address `{address}`")]
    Port { address: String },
    #[error("invalid console device `{device}`")]
    Console { device: String },
    #[error("an unprivileged pod cannot write to the console of its machine")]
    ConsoleOfPod,
    #[error("a pod cannot download the binary: its image contains it")]
    DownloadOfPod,
    #[error("invalid SHA-256 digest `{hash}`")]
    Hash { hash: String },
    #[error("a Cluster API machine cannot have its own Ignition file")]
    IgnitionOfCapi,
    #[error("Cluster API cannot add files to images")]
    ImageOfCapi,
    #[error("Cluster API would install the hub on all machines")]
    HubOfCapi,
    #[error("invalid group `{group}`: its members cannot gather")]
    Group { group: String },
    #[error("only an OpenShift bootstrap host can discover its own address")]
    OwnAddress,
    #[error("a host that discovers its own address creates its own CA")]
    OwnAuthority,
    #[error(
        "refusing to write a private key into the installer's source: it would be the same for every cluster"
    )]
    KeysInSource,
    #[error("`{way}` cannot be rendered as `{format}`: `--format {format}` does not go with it")]
    Combination { way: &'static str, format: &'static str },
    #[error("{what} is missing")]
    Missing { what: &'static str },
    #[error(
        "the first-boot snippet has {bytes} bytes; user data has no room for more than {}",
        agent::MAX_SNIPPET
    )]
    Snippet { bytes: usize },
    #[error("invalid certificate `{text}`")]
    Leaf { text: String },
    #[error("invalid store `{url}`: several hubs cannot share it")]
    Store { url: String },
    #[error("refusing to render {replicas} hubs")]
    Replicas { replicas: u32 },
    #[error("certificates cannot live {days} days")]
    Days { days: u32 },
    #[error("the ports {ports} cannot be used together")]
    Ports { ports: String },
    #[error("the tunnel's server may not listen on port {port}")]
    LowPort { port: u16 },
    #[error("the certificate authority in `{folder}` has expired")]
    Expired { folder: PathBuf },
    #[error("the certificate authority in `{folder}` ends in {left} days, before certificates of {days}")]
    Outlives { folder: PathBuf, left: i64, days: u32 },
    #[error("cannot read `{path}`")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot make certificates")]
    Pki(#[from] landfall_pki::PkiError),
    #[error("cannot write YAML")]
    Yaml(#[source] serde_saphyr::ser::Error),
    #[error("two files would be written to `{path}`")]
    Collision { path: PathBuf },
    #[error("`{path}` is there already")]
    Exists { path: PathBuf },
    #[error("cannot make the folder `{path}`")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("cannot write the files")]
    Write(#[source] landfall_durable::Error),
}
