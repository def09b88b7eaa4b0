use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use landfall_evidence::bundle::bundle_id;
use landfall_gather::{
    Access, Census, Endpoint, Fetched, NodeAnswer, Patience, Route, Ssh, Wanted, census, fetch, find,
    over_ssh, strangers,
};
use landfall_model::chain;

use super::diagnose::{self, Diagnose};
use super::reach::{self, Reach};
use crate::exit::{Exit, Failure};
use crate::output::{Progress, say};

/// Fetch the bootstrap machine's bundle through the API endpoint, and diagnose it
///
/// Works in every phase of a bootstrap: before there is an API server, while it lives, and after it was torn down. Behind
/// a load balancer, connections are opened until the bootstrap machine answers.
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall gather https://api.example.com:6443
  landfall gather https://api.example.com:6443 --kubeconfig auth/kubeconfig -o failed.tar.gz
  landfall gather https://api.example.com:6443 --node 10.0.0.5 --ssh-user core --ssh-key ~/.ssh/id_ed25519
  kubectl landfall gather

Exit codes: 0 nothing wrong found · 1 failed · 2 findings present · 69 the bootstrap machine was not found · 77 not permitted")]
pub(crate) struct Gather {
    /// The API endpoint [default: the kubeconfig's server]
    #[arg(value_name = "URL")]
    url: Option<String>,

    /// Where the bundle goes [default: log-bundle-TIME.tar.gz here]
    #[arg(short = 'o', long = "bundle", value_name = "FILE")]
    bundle: Option<PathBuf>,

    /// Only what is younger: `2h`, `30m`, or a time such as 2026-01-02T03:04:05Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,

    /// How the bundle is packed
    #[arg(long, value_enum, default_value_t = Packing::Gzip)]
    format: Packing,

    /// Also collect this node, by SSH through the endpoint; may be repeated
    #[arg(long, value_name = "NAME")]
    node: Vec<String>,

    /// Log in on nodes as this user [default: ssh's own choice]
    #[arg(long, value_name = "USER")]
    ssh_user: Option<String>,

    /// Log in on nodes with this key [default: ssh's own choice]
    #[arg(long, value_name = "FILE")]
    ssh_key: Option<PathBuf>,

    /// Check nodes' host keys against this file [default: ssh's own]
    #[arg(long, value_name = "FILE")]
    known_hosts: Option<PathBuf>,

    /// How long to look for the bootstrap machine, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    wait: u64,

    /// Only fetch, do not diagnose
    #[arg(long)]
    skip_analysis: bool,

    /// How to print the report
    #[arg(long, value_enum, default_value_t = diagnose::Format::Text)]
    output: diagnose::Format,

    #[command(flatten)]
    reach: Reach,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Packing {
    /// What every reader of log bundles opens
    Gzip,
    /// Smaller and faster
    Zstd,
}

// === impl Gather ===

impl Gather {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let (endpoint, access) = self.reach.resolve(self.url.as_deref())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("start the runtime")?;
        let extension = if self.format == Packing::Zstd { "tar.zst" } else { "tar.gz" };
        let to = self.bundle.clone().unwrap_or_else(|| {
            format!("log-bundle-{}.{extension}", bundle_id(jiff::Timestamp::now())).into()
        });
        let wanted = Wanted { since: self.since.clone(), zstd: self.format == Packing::Zstd };
        let patience = Patience { within: Duration::from_secs(self.wait), tell: reach::tell_no_answer };

        let search = Progress::start("Looking for the bootstrap machine", None);
        let found = runtime.block_on(find(&endpoint, &access, patience));
        search.finish();
        let found = found.map_err(reach::explain)?;
        let identity = &found.identity;
        say(&format!(
            "bootstrap machine {} (phase {}), found on connection {}",
            identity.node.hostname, identity.phase, found.tries
        ));
        let phase = identity.phase.clone();
        let route = Route { endpoint: &endpoint, access: &access, patience };
        let progress = Progress::start("Fetching", None);
        let fetched = runtime.block_on(fetch(route, found, &wanted, &to, &|bytes| progress.add(bytes)));
        progress.finish();
        let fetched = fetched.map_err(reach::explain)?;
        tell(&fetched);
        let mut bundles = vec![fetched.path.clone()];
        bundles.extend(runtime.block_on(self.nodes(&endpoint.to_string(), &to))?);
        let census = runtime.block_on(Self::census(&endpoint, &access, &phase));
        name_strangers(&fetched.path, census.as_ref());
        if self.skip_analysis {
            return Ok(if fetched.cut.is_some() { Exit::Failed } else { Exit::Done });
        }
        Diagnose::of(bundles, self.output).run()
    }

    /// What the API server knows of nodes, where there is one and it lets us ask.
    async fn census(endpoint: &Endpoint, access: &Access, phase: &str) -> Option<Census> {
        if matches!(phase, "no-api" | "failed") {
            return None;
        }
        let asked = census(endpoint, access).await;
        asked
            .inspect_err(|error| tracing::debug!(error = %chain(error), "The API server was not asked."))
            .ok()
    }

    /// Bundles of the nodes that were asked for. One that cannot be reached does not cost the others.
    async fn nodes(&self, endpoint: &str, beside: &Path) -> Result<Vec<PathBuf>, Failure> {
        if self.node.is_empty() {
            return Ok(Vec::new());
        }
        let program = std::env::current_exe().context("find this program")?;
        let mut proxy_command = vec![program.clone().into_os_string(), "connect".into()];
        proxy_command.extend(self.reach.arguments());
        proxy_command.push(endpoint.into());
        let ssh = Ssh {
            user: self.ssh_user.clone(),
            key: self.ssh_key.clone(),
            known_hosts: self.known_hosts.clone(),
            proxy_command,
            program,
        };
        let mut bundles = Vec::new();
        for node in &self.node {
            let to = beside.with_file_name(format!("{}-{}", file_name(node), name_of(beside)));
            let progress = Progress::start("Collecting a node over SSH", None);
            let answer = over_ssh(node, &ssh, &to).await;
            progress.finish();
            match answer.map_err(reach::explain)? {
                NodeAnswer::Bundle(fetched) => {
                    tell(&fetched);
                    bundles.push(fetched.path);
                }
                NodeAnswer::Nothing(reason) => say(&format!("node {node}: nothing collected: {reason}")),
            }
        }
        Ok(bundles)
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A node's name as a part of a file's name.
fn file_name(node: &str) -> String {
    node.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' }).collect()
}

fn tell(fetched: &Fetched) {
    let verified = &fetched.verified;
    let (whole, wrong) = (verified.whole.len(), verified.wrong.len());
    let files = if whole == 1 { "file" } else { "files" };
    let mut line =
        format!("{} bytes to `{}`, {whole} {files} verified", fetched.bytes, fetched.path.display());
    if wrong > 0 {
        line += &format!(", {wrong} not as they were sent");
    }
    say(&line);
    if let Some(cut) = &fetched.cut {
        say(&format!("the stream was cut ({cut}): kept what came; run again for the rest"));
    } else if verified.cut {
        say("the bundle ends before its time: kept what came; run again for the rest");
    }
}

/// Machines nobody lists, and whose logs are therefore missing.
fn name_strangers(bundle: &Path, census: Option<&Census>) {
    match strangers(bundle, census) {
        Ok(found) => {
            for stranger in found {
                say(&format!("not a node: {} ({})", stranger.name, stranger.seen.join("; ")));
            }
        }
        Err(error) => tracing::debug!(%error, "Machines that never joined could not be looked for."),
    }
}
