use clap::Args;
use landfall_controller::manifests::{Rights, Settings, install};
use landfall_render::Described;

use super::{Folder, Format, explain};
use crate::exit::{Exit, Failure};

/// The controller: its definition, accounts, rights, admission policy and Deployment
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall render controller --image registry.example/landfall:0.1.0 -o controller
  landfall render controller --image … --approve-certificates --format kustomize -o controller -- --max-unavailable=3")]
pub(super) struct Controller {
    /// The namespace to install into
    #[arg(long, value_name = "NAME", default_value = "landfall")]
    namespace: String,

    /// The image of the controller and of the pods on nodes
    #[arg(long, value_name = "IMAGE")]
    image: String,

    /// The Secret that those of nodes are made from
    #[arg(long, value_name = "NAME")]
    secret_template: Option<String>,

    /// Look after nodes with these labels only
    #[arg(long, value_name = "LABELS", default_value = "", hide_default_value = true)]
    selector: String,

    /// Approve certificates of nodes: gives the controller the right, and the flag
    #[arg(long)]
    approve_certificates: bool,

    /// How the files are wrapped
    #[arg(long, value_enum, default_value_t = Format::Yaml)]
    format: Format,

    #[command(flatten)]
    target: Folder,

    /// Further flags of the controller, behind `--`
    #[arg(last = true, value_name = "FLAGS")]
    flags: Vec<String>,
}

// === impl Controller ===

impl Controller {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let settings = Settings {
            namespace: self.namespace,
            selector: self.selector,
            image: self.image,
            template: self.secret_template,
            runner_arguments: Vec::new(),
        };
        let mut flags = self.flags;
        let rights = if self.approve_certificates {
            flags.insert(0, "--approve-certificates".to_owned());
            Rights::Approving
        } else {
            Rights::Usual
        };
        let objects = install(&settings, rights, &flags);
        let role = Described {
            name: "landfall-controller",
            about: "Leads a fleet through in-place bootstraps",
            namespace: settings.namespace,
            image: settings.image,
            objects,
        };
        self.target.put(&landfall_render::manifests(role, self.format.into()).map_err(explain)?)
    }
}
