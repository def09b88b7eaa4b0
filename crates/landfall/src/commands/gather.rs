use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use landfall_evidence::bundle::bundle_id;
use landfall_gather::{
    AGENT_PORT, Access, Census, Endpoint, Fetched, NodeAnswer, Patience, Route, Ssh, Wanted, census, fetch,
    find, from_agent, from_agent_through, over_ssh, strangers,
};
use landfall_model::chain;

use super::diagnose::{self, Diagnose};
use super::reach::{self, Reach};
use crate::exit::{Exit, Failure};
use crate::output::{Progress, say};
use crate::runtime;

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
  landfall gather --from-agent n1.example.com:8710 --certificate-authority ca.crt --client-certificate me.crt --client-key me.key
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

    /// Fetch from this node's agent directly, without an API endpoint [default port: 8710]
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with_all = ["url", "node", "since"])]
    from_agent: Option<String>,

    /// Also collect this node through the endpoint: from its agent, else by SSH; may be repeated
    #[arg(long, value_name = "NAME")]
    node: Vec<String>,

    /// Where nodes' agents listen
    #[arg(long, value_name = "PORT", default_value_t = AGENT_PORT)]
    agent_port: u16,

    /// The authority of the agents' certificates, PEM [default: the endpoint's]
    #[arg(long, value_name = "FILE")]
    agent_ca: Option<PathBuf>,

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
        let url = self.from_agent.as_deref().map(agent_url).or_else(|| self.url.clone());
        let (endpoint, access) = self.reach.resolve(url.as_deref())?;
        let runtime = runtime::single_threaded()?;
        let extension = if self.format == Packing::Zstd { "tar.zst" } else { "tar.gz" };
        let to = self.bundle.clone().unwrap_or_else(|| {
            format!("log-bundle-{}.{extension}", bundle_id(jiff::Timestamp::now())).into()
        });
        let wanted = Wanted { since: self.since.clone(), zstd: self.format == Packing::Zstd };
        if self.from_agent.is_some() {
            let progress = Progress::start("Fetching", None);
            let seen = |bytes| progress.add(bytes);
            let fetched = runtime.block_on(from_agent(&endpoint, &access, &wanted, &to, &seen));
            progress.finish();
            let fetched = fetched.map_err(explain_agent)?;
            tell(&fetched);
            return self.conclude(fetched, Vec::new());
        }
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
        let others = runtime.block_on(self.nodes(route, &wanted, &to))?;
        let census = runtime.block_on(Self::census(&endpoint, &access, &phase));
        name_strangers(&fetched.path, census.as_ref());
        self.conclude(fetched, others)
    }

    /// Prints the diagnosis of the fetched bundles.
    fn conclude(self, fetched: Fetched, others: Vec<PathBuf>) -> Result<Exit, Failure> {
        if self.skip_analysis {
            return Ok(if fetched.cut.is_some() { Exit::Failed } else { Exit::Done });
        }
        let mut bundles = vec![fetched.path];
        bundles.extend(others);
        Diagnose::of(bundles, self.output).run()
    }

    /// Returns the credentials for agents: those of the endpoint, but with another CA.
    fn agent_access(&self) -> Result<Access, Failure> {
        let (_, mut access) = self.reach.resolve(self.url.as_deref())?;
        // Server name, token and proxy apply to the endpoint only.
        (access.server_name, access.token, access.proxy) = (None, None, None);
        if let Some(path) = &self.agent_ca {
            access.authority = Some(reach::read(path)?);
        }
        Ok(access)
    }

    /// Returns what the API server knows about nodes, if there is one and it permits the request.
    async fn census(endpoint: &Endpoint, access: &Access, phase: &str) -> Option<Census> {
        if matches!(phase, "no-api" | "failed") {
            return None;
        }
        let asked = census(endpoint, access).await;
        asked
            .inspect_err(|error| tracing::debug!(error = %chain(error), "The API server was not asked."))
            .ok()
    }

    /// Fetches the bundles of the requested nodes. An unreachable one does not affect the others.
    async fn nodes(&self, route: Route<'_>, wanted: &Wanted, beside: &Path) -> Result<Vec<PathBuf>, Failure> {
        if self.node.is_empty() {
            return Ok(Vec::new());
        }
        let agents = self.agent_access()?;
        let program = std::env::current_exe().context("find this program")?;
        let mut proxy_command = vec![program.clone().into_os_string(), "connect".into()];
        proxy_command.extend(self.reach.arguments());
        proxy_command.push(route.endpoint.to_string().into());
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
            match from_its_agent(route, node, self.agent_port, &agents, wanted, &to).await {
                Ok(fetched) => {
                    say(&format!("node {node}: collected by its agent"));
                    tell(&fetched);
                    bundles.push(fetched.path);
                    continue;
                }
                Err(reason) => say(&format!("node {node}: not collected by an agent ({reason}); trying SSH")),
            }
            let progress = Progress::start("Collecting a node over SSH", None);
            let answer = over_ssh(node, &ssh, &to).await;
            progress.finish();
            match answer.map_err(reach::explain)? {
                NodeAnswer::Bundle(fetched) => {
                    say(&format!("node {node}: collected over SSH"));
                    tell(&fetched);
                    bundles.push(fetched.path);
                }
                NodeAnswer::Nothing(reason) => say(&format!("node {node}: nothing collected: {reason}")),
            }
        }
        Ok(bundles)
    }
}

/// Fetches the bundle of a node from its own agent through the tunnel; returns the reason on failure.
async fn from_its_agent(
    route: Route<'_>,
    node: &str,
    port: u16,
    access: &Access,
    wanted: &Wanted,
    to: &Path,
) -> Result<Fetched, String> {
    if access.identity.is_none() {
        return Err("agents ask for a client certificate".to_owned());
    }
    let host = if node.contains(':') { format!("[{node}]") } else { node.to_owned() };
    let agent = format!("{host}:{port}").parse::<Endpoint>();
    let words = |error: landfall_gather::Error| chain(&error).to_string();
    let agent = agent.map_err(words)?;
    let found = find(route.endpoint, route.access, route.patience).await.map_err(words)?;
    from_agent_through((found, route.endpoint), &agent, access, wanted, to).await.map_err(words)
}

fn agent_url(agent: &str) -> String {
    let agent = agent.strip_prefix("https://").unwrap_or(agent).trim_end_matches('/');
    // The colons of an IPv6 address are in brackets.
    let behind = agent.rsplit_once(']').map_or(agent, |(_, behind)| behind);
    if behind.contains(':') { format!("https://{agent}") } else { format!("https://{agent}:{AGENT_PORT}") }
}

fn explain_agent(error: landfall_gather::Error) -> Failure {
    use landfall_gather::Error;
    use landfall_net::http::HttpError;
    let hint = match &error {
        Error::Agent { status: 429, .. } => "another collection is running; retry in 30 seconds",
        _ if error.is_denied() => {
            "use a certificate of landfall:operators, landfall:viewers or system:masters"
        }
        Error::Http(HttpError::Unreachable { .. } | HttpError::Late { .. }) => {
            "does the node run `landfall agent --serve`, and may this machine reach its port?"
        }
        Error::Http(error) if !matches!(error, HttpError::Proxy { .. }) => {
            "name the agent's CA with `--certificate-authority`, and use a client certificate that it trusts"
        }
        _ => return reach::explain(error),
    };
    reach::failed(error, hint)
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the name of a node as a part of a file name.
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

/// Reports machines that are not listed as nodes, and whose logs are therefore missing.
fn name_strangers(bundle: &Path, census: Option<&Census>) {
    match strangers(bundle, census) {
        Ok(found) => {
            for stranger in found {
                say(&format!("not a node: {} ({})", stranger.name, stranger.seen.join("; ")));
            }
        }
        Err(error) => tracing::debug!(%error, "search for machines that never joined failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_asked_at_its_own_port() {
        for (given, url) in [
            ("n1", "https://n1:8710"),
            ("n1:9000", "https://n1:9000"),
            ("https://n1/", "https://n1:8710"),
            ("[fd00::5]", "https://[fd00::5]:8710"),
            ("[fd00::5]:9000", "https://[fd00::5]:9000"),
        ] {
            assert_eq!(agent_url(given), url);
        }
    }
}
