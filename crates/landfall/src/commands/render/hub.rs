use clap::Args;
use landfall_hub::{ObjectPlace, StorePlace};
use landfall_render::hub::{self, Settings};
use landfall_render::{Stores, authority, tunnel};

use super::{Certificates, Folder, Program, RunAs, Shape, explain, token};
use crate::exit::{Exit, Failure};

/// Default namespace of a hub in a pod.
const NAMESPACE: &str = "landfall-hub";

/// The hub, with its certificate and the key of its tokens: a unit for a machine, a StatefulSet, or a Deployment on stores it shares
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall render hub --for kubeadm --server hub.corp -o hub
  landfall render hub --for openshift --run-as pod --image registry.example/landfall:0.1.0 --server hub.corp -o hub
  landfall render hub --for kubeadm --run-as pod --image registry.example/landfall:0.1.0 --server hub.corp --replicas 3 \\
    --store postgres://hub@db.corp/landfall?password-file=/etc/landfall/db \\
    --objects s3://bundles/hub?region=r1&credentials-file=/etc/landfall/s3 -o hub")]
pub(super) struct Hub {
    #[command(flatten)]
    shape: Shape,

    /// A name or address the hub is reached at; may be repeated
    #[arg(long, value_name = "HOST", required = true)]
    server: Vec<String>,

    /// How the hub runs
    #[arg(long, value_enum, default_value_t = RunAs::Unit)]
    run_as: RunAs,

    /// The image that holds this program as `/landfall`, for a pod
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,

    /// Namespace of the pod [default: `landfall-hub`]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,

    /// Where reports are kept, when not beside the hub: `postgres://…`, as the hub takes it
    #[arg(long, value_name = "URL", requires = "objects")]
    store: Option<String>,

    /// Where bundles are kept, when not beside the hub: `s3://…`, as the hub takes it
    #[arg(long, value_name = "URL", requires = "store")]
    objects: Option<String>,

    /// How many pods, on stores they share [default: 2]
    #[arg(long, value_name = "NUMBER", requires = "store")]
    replicas: Option<u32>,

    #[command(flatten)]
    program: Program,

    #[command(flatten)]
    certificates: Certificates,

    #[command(flatten)]
    target: Folder,
}

// === impl Hub ===

impl Hub {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        if matches!(self.run_as, RunAs::Unit) && (self.image.is_some() || self.namespace.is_some()) {
            let error = anyhow::anyhow!("`--image` and `--namespace` are for a hub in a pod");
            return Err(Failure::usage(error, "add `--run-as pod`, or leave them out"));
        }
        if let (Some(store), Some(objects)) = (&self.store, &self.objects) {
            let hint = "as `landfall hub --store` and `--objects` take it: docs/guides/hub.md";
            StorePlace::parse(store).map_err(|error| Failure::usage(error, hint))?;
            ObjectPlace::parse(objects).map_err(|error| Failure::usage(error, hint))?;
        }
        let stores = self.store.zip(self.objects).map(|(reports, bundles)| Stores { reports, bundles });
        let run_as = tunnel::RunAs::from(self.run_as);
        let shared = stores.is_some() && run_as == tunnel::RunAs::Pod;
        let settings = Settings {
            target: self.shape.kind.into(),
            run_as,
            replicas: self.replicas.unwrap_or(if shared { 2 } else { 1 }),
            stores,
            names: self.server,
            namespace: self.namespace.unwrap_or_else(|| NAMESPACE.to_owned()),
            image: self.image,
            download: self.program.download(),
        };
        let Certificates { ca, days } = self.certificates;
        let signer = authority(ca.as_deref(), days).map_err(explain)?;
        let made = hub::credentials(&signer, &settings, token()?, days).map_err(explain)?;
        self.target.put(&hub::plan(&settings, &made, self.shape.format.into()).map_err(explain)?)
    }
}
