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
    #[error("`{namespace}` is no name of a namespace")]
    Namespace { namespace: String },
    #[error("the namespace `{namespace}` is not the tunnel's alone, and is deleted with it")]
    SharedNamespace { namespace: String },
    #[error("`{name}` is no name of an object")]
    Object { name: String },
    #[error("`{selector}` selects no labels")]
    Selector { selector: String },
    #[error("`{text}` tells no end of a bootstrap here")]
    Completion { text: String },
    #[error("`{image}` is no name of an image")]
    Image { image: String },
    #[error("`{address}` is no address or name of a server")]
    Address { address: String },
    #[error("`{node}` is no name of a node, or too long to name objects after it")]
    Node { node: String },
    #[error("invalid network `{network}`: must be a CIDR such as `10.0.0.0/8`")]
    Network { network: String },
    #[error("`{url}` is no address of a file or hub")]
    Url { url: String },
    #[error("`{url}` would be sent secrets in the clear")]
    InTheClear { url: String },
    #[error("`{url}` is no address of a NATS server")]
    Nats { url: String },
    #[error("`{subject}` is no subject of NATS")]
    Subject { subject: String },
    #[error("`{place}` is no place of a neighbour")]
    Neighbour { place: String },
    #[error("`{object}` is no object of the management cluster")]
    Report { object: String },
    #[error("the agent cannot serve on `{address}`")]
    Port { address: String },
    #[error("`{device}` is no console")]
    Console { device: String },
    #[error("a pod without all rights reaches no console of its machine")]
    ConsoleOfPod,
    #[error("nothing is fetched for a pod: its image brings the program")]
    DownloadOfPod,
    #[error("`{hash}` is no SHA-256 hash")]
    Hash { hash: String },
    #[error("a machine of Cluster API is not configured by an Ignition file of its own")]
    IgnitionOfCapi,
    #[error("Cluster API puts no files into images")]
    ImageOfCapi,
    #[error("a hub is one machine, and Cluster API would put it on all of them")]
    HubOfCapi,
    #[error("`{group}` is no group whose members could gather")]
    Group { group: String },
    #[error("an OpenShift bootstrap host alone can find its own address")]
    OwnAddress,
    #[error("a host that finds its own address makes an authority of its own")]
    OwnAuthority,
    #[error("a private key would lie in the installer's source, the same for every cluster")]
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
    #[error("`{url}` is no store that several hubs share")]
    Store { url: String },
    #[error("{replicas} hubs beside each other are refused")]
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
