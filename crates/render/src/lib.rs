//! What a bootstrap plane is installed from: certificates, units, static pods, manifests, Ignition.
//!
//! Everything is a [`Plan`] first: a list of files that can be shown, compared and tested. Writing it is one step at
//! the end, and it never touches a file that is there already unless told to.

mod authority;
mod package;
mod plan;
mod teardown;
pub mod tunnel;
mod yaml;

pub use authority::{Credentials, authority, credentials, pki};
pub use package::Format;
pub use plan::{Content, File, Plan};
pub use teardown::{Step, script, steps};

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    #[error("`{namespace}` is no name of a namespace")]
    Namespace { namespace: String },
    #[error("`{image}` is no name of an image")]
    Image { image: String },
    #[error("`{address}` is no address or name of the tunnel server")]
    Address { address: String },
    #[error("certificates cannot live {days} days")]
    Days { days: u32 },
    #[error("the ports {ports} of the tunnel server are not all different")]
    Ports { ports: String },
    #[error("the certificate authority in `{folder}` has expired")]
    Expired { folder: PathBuf },
    #[error("cannot read `{path}`")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot make certificates")]
    Pki(#[from] landfall_pki::PkiError),
    #[error("cannot write YAML")]
    Yaml(#[source] serde_saphyr::ser::Error),
    #[error("`{path}` is there already")]
    Exists { path: PathBuf },
    #[error("cannot make the folder `{path}`")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("cannot write the files")]
    Write(#[source] landfall_steps::durable::Error),
}
