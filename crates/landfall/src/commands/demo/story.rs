//! The acts of the demo.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use landfall_hub::Client;
use landfall_model::chain;
use serde_json::Value;
use tokio::net::TcpSocket;

use super::cast::{Cast, LOOK, PATIENCE};
use super::{certificates, machines, pod_network, wave};
use crate::output;

const MACHINES: [&str; 4] = ["boot-0", "node-1", "node-2", "node-3"];
const WAVE: [&str; 3] = ["rhel-1", "rhel-2", "rhel-3"];
const TUNNEL: [&str; 2] = ["tunnel-server", "tunnel-agent"];
/// Limit for starts of the tunnel, each time on other ports.
const TRIES: u32 = 3;

pub(super) struct Story<'c> {
    cast: &'c mut Cast,
    begun: Instant,
    /// The state last printed for each machine.
    told: BTreeMap<String, String>,
    /// Reserves the port of the API server that never starts.
    upstream: Option<TcpSocket>,
}

/// The state of a machine in the hub's fleet view.
struct Standing {
    state: String,
    cause: String,
    title: String,
}

// === impl Story ===

impl<'c> Story<'c> {
    pub(super) fn new(cast: &'c mut Cast) -> Self {
        Self { cast, begun: Instant::now(), told: BTreeMap::new(), upstream: None }
    }

    /// Runs all acts; returns the address of the hub's page.
    pub(super) async fn tell(mut self, listen: SocketAddr) -> Result<String> {
        output::print(&format!(
            "A cluster bootstraps in {}: no root, no cluster, loopback only.\n\
             Roles are real processes of this program. Machines are folders; what they say was recorded.\n\n",
            self.cast.folder().display()
        ))?;
        let made = certificates::make(self.cast)?;
        self.say("pki", &format!("one bootstrap CA, {made} certificates, each for a single purpose"))?;
        for (number, name) in MACHINES.into_iter().enumerate() {
            machines::make(self.cast, name, number + 1)?;
        }
        let page = self.hub(listen).await?;
        let endpoint = self.gateway().await?;
        self.boot(&page).await?;
        self.gather(&endpoint).await?;
        self.mend(&page).await?;
        self.tunnel().await?;
        self.wave(&page).await?;
        self.board(&page).await?;
        Ok(page)
    }

    async fn hub(&mut self, listen: SocketAddr) -> Result<String> {
        let words =
            ["hub", "--listen", &listen.to_string(), "--store", "sqlite:hub.db", "--objects", "file:bundles"];
        self.cast.start("hub", &words.map(str::to_owned))?;
        let address = self.cast.says("hub", "The hub listens on ").await?;
        let page = format!("http://{address}");
        self.say("hub", &format!("the fleet is on one page: {page}"))?;
        Ok(page)
    }

    async fn gateway(&mut self) -> Result<String> {
        let collector = ["collector", "--socket", "collector.sock", "--root", "boot-0"];
        self.cast.start("collector", &collector.map(str::to_owned))?;
        // The address at which the API server of `boot-0` would listen: reserved, but without a listener.
        let upstream = TcpSocket::new_v4().context("take a port")?;
        upstream.bind(SocketAddr::from(([127, 0, 0, 1], 0))).context("take a port")?;
        let address = upstream.local_addr().context("take a port")?;
        self.upstream = Some(upstream);
        let upstream = address.to_string();
        let words = ["gateway", "--root", "boot-0", "--listen", "127.0.0.1:0", "--upstream", &upstream];
        let further = ["--collector", "collector.sock"];
        self.cast.start(
            "gateway",
            &[&words[..], &further].concat().iter().map(ToString::to_string).collect::<Vec<_>>(),
        )?;
        let address = self.cast.says("gateway", "listening on ").await?;
        let endpoint = format!("https://{address}");
        self.say("gateway", &format!("`boot-0` answers on {endpoint}, before there is an API server"))?;
        Ok(endpoint)
    }

    /// Machines boot and agents follow them; the first control plane fails, so no machine can join.
    async fn boot(&mut self, page: &str) -> Result<()> {
        for name in MACHINES {
            let (root, state) = (name.to_owned(), format!("{name}.state"));
            let words = ["agent", "--root", &root, "--state", &state, "--hub", page];
            self.cast.start(&format!("agent-{name}"), &words.map(str::to_owned))?;
        }
        self.say("agent", "four machines boot; an agent on each follows what it says")?;
        let waits = machines::WORKER_WAITS;
        let told = [("boot-0", machines::BOOT_0), ("node-1", waits), ("node-2", waits), ("node-3", waits)];
        machines::say(self.cast, &told).await?;
        let wanted = [
            ("boot-0", "failed", "cri-plugin-disabled"),
            ("node-1", "", "apiserver-unreachable"),
            ("node-2", "", "apiserver-unreachable"),
            ("node-3", "", "apiserver-unreachable"),
        ];
        self.until(page, &wanted).await
    }

    /// The operator queries the endpoint and sees the cause.
    async fn gather(&mut self, endpoint: &str) -> Result<()> {
        self.say("gather", "SSH to `boot-0` is not allowed; its logs are fetched through the API endpoint:")?;
        let words = ["gather", endpoint, "-o", "bundle.tar.gz", "--wait", "60"];
        let access = [
            "--certificate-authority",
            "boot-0/etc/kubernetes/pki/ca.crt",
            "--client-certificate",
            "admin.crt",
            "--client-key",
            "admin.key",
        ];
        output::print(&format!("\n$ landfall {} {}\n", words[..4].join(" "), access.join(" ")))?;
        let words: Vec<String> = words.iter().chain(&access).map(ToString::to_string).collect();
        let performed = self.cast.perform("gather", &words).await?;
        if performed.code != Some(2) {
            self.cast.quote("gather");
            bail!("`gather` found nothing");
        }
        output::print(&format!("{}\n", performed.stdout))
    }

    /// The operator fixes the cause; the cluster starts, and one machine still fails to join.
    async fn mend(&mut self, page: &str) -> Result<()> {
        self.say("operator", "enables the plugin in `boot-0`'s containerd, as the report says")?;
        machines::say(self.cast, &[("boot-0", machines::BOOT_0_MENDED)]).await?;
        self.until(page, &[("boot-0", "succeeded", "")]).await?;
        let joins = machines::WORKER_JOINS;
        let told = [("node-1", joins), ("node-2", joins), ("node-3", machines::WORKER_CLOCK)];
        machines::say(self.cast, &told).await?;
        let wanted =
            [("node-1", "succeeded", ""), ("node-2", "succeeded", ""), ("node-3", "failed", "clock-skew")];
        self.until(page, &wanted).await
    }

    /// Sends a request into the pod network, like a kube-apiserver with an egress configuration.
    async fn tunnel(&mut self) -> Result<()> {
        let webhook = pod_network::webhook().await?;
        let mut tries = 1;
        loop {
            self.start_tunnel()?;
            match self.through_tunnel(webhook).await {
                Ok(()) => break,
                // Another process may have taken a port that was free before.
                Err(_) if tries < TRIES && self.cast.dismiss(&TUNNEL) => tries += 1,
                Err(error) => {
                    for name in TUNNEL {
                        self.cast.quote(name);
                    }
                    return Err(error.context("reach the webhook through the tunnel"));
                }
            }
        }
        self.say(
            "tunnel",
            "the API server calls a webhook in the (simulated) pod network through the agent on `node-1`:",
        )?;
        self.say(
            "",
            &format!("CONNECT {webhook} on the server's socket, POST /validate: {}", pod_network::ANSWER),
        )
    }

    fn start_tunnel(&mut self) -> Result<()> {
        let [agents, health, admin, agent_health, agent_admin] = machines::ports()?;
        let server = [
            "tunnel".to_owned(),
            "server".to_owned(),
            "--mode=http-connect".to_owned(),
            "--uds-name=tunnel.sock".to_owned(),
            "--server-port=0".to_owned(),
            "--agent-bind-address=127.0.0.1".to_owned(),
            format!("--agent-port={agents}"),
            "--health-bind-address=127.0.0.1".to_owned(),
            format!("--health-port={health}"),
            format!("--admin-port={admin}"),
            "--cluster-cert=tunnel-server.crt".to_owned(),
            "--cluster-key=tunnel-server.key".to_owned(),
            "--cluster-ca-cert=boot-0/etc/kubernetes/pki/ca.crt".to_owned(),
        ];
        let agent = [
            "tunnel".to_owned(),
            "agent".to_owned(),
            "--proxy-server-host=127.0.0.1".to_owned(),
            format!("--proxy-server-port={agents}"),
            "--ca-cert=boot-0/etc/kubernetes/pki/ca.crt".to_owned(),
            "--agent-cert=tunnel-agent.crt".to_owned(),
            "--agent-key=tunnel-agent.key".to_owned(),
            "--agent-id=node-1".to_owned(),
            "--health-server-host=127.0.0.1".to_owned(),
            format!("--health-server-port={agent_health}"),
            format!("--admin-server-port={agent_admin}"),
        ];
        self.cast.start(TUNNEL[0], &server)?;
        self.cast.start(TUNNEL[1], &agent)
    }

    /// Retries until there is an answer, and fails when an end of the tunnel exits.
    async fn through_tunnel(&mut self, webhook: SocketAddr) -> Result<()> {
        let socket = self.cast.path("tunnel.sock");
        let limit = Instant::now() + PATIENCE;
        loop {
            match pod_network::ask(&socket, webhook).await {
                Ok(answer) => {
                    ensure!(answer == pod_network::ANSWER, "the webhook answered `{answer}`");
                    return Ok(());
                }
                Err(error)
                    if Instant::now() > limit || TUNNEL.iter().any(|name| self.cast.has_ended(name)) =>
                {
                    return Err(error);
                }
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    async fn wave(&mut self, page: &str) -> Result<()> {
        self.say(
            "in-place",
            "three machines are re-bootstrapped, one at a time. This is a replay of their reports:",
        )?;
        self.say("", "a real wave reboots real machines and needs root on them")?;
        for machine in WAVE {
            let states = wave::replay(page, machine).await?;
            self.say("", &format!("{machine}: {}", states.join(" → ")))?;
        }
        let wanted = WAVE.map(|machine| (machine, "succeeded", ""));
        for machine in WAVE {
            // All states were printed above.
            self.told.insert(machine.to_owned(), "succeeded".to_owned());
        }
        self.until(page, &wanted).await
    }

    /// Prints the final state: the fleet as the hub shows it.
    async fn board(&mut self, page: &str) -> Result<()> {
        output::print(&format!("\n$ landfall status --hub {page}\n"))?;
        let words = ["status", "--hub", page].map(str::to_owned);
        let performed = self.cast.perform("status", &words).await?;
        ensure!(performed.code == Some(2), "`status` does not show the machine that failed");
        output::print(&performed.stdout)?;
        let seconds = self.begun.elapsed().as_secs_f64();
        output::print(&format!("\nCompleted in {seconds:.1} s. `node-3` waits for its clock to be set.\n"))
    }

    /// Waits until machines have these states, and prints every change. An empty state matches any.
    async fn until(&mut self, page: &str, wanted: &[(&str, &str, &str)]) -> Result<()> {
        let client = Client::new(page, None, None).context("reach the hub")?;
        let limit = Instant::now() + PATIENCE;
        loop {
            let standings = standings(&client).await?;
            for (name, standing) in &standings {
                let key = format!("{} {}", standing.state, standing.cause);
                if self.told.get(name).is_some_and(|told| *told == key || *told == standing.state) {
                    continue;
                }
                let cause =
                    if standing.cause.is_empty() { String::new() } else { format!(" ({})", standing.cause) };
                self.say(name, &format!("{}: {}{cause}", standing.state, standing.title))?;
                self.told.insert(name.clone(), key);
            }
            let stands = |(name, state, cause): &(&str, &str, &str)| {
                standings.get(*name).is_some_and(|standing| {
                    (state.is_empty() || standing.state == *state) && standing.cause == *cause
                })
            };
            let Some((name, state, cause)) = wanted.iter().find(|wanted| !stands(wanted)) else {
                return Ok(());
            };
            if Instant::now() > limit {
                let agent = format!("agent-{name}");
                self.cast.quote(&agent);
                bail!("the hub did not hear in time that `{name}` is `{state}{cause}`");
            }
            self.cast.check("hub")?;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Prints one line: time, component, message.
    fn say(&self, who: &str, what: &str) -> Result<()> {
        let seconds = self.begun.elapsed().as_secs_f64();
        let clean = output::harmless(what);
        if who.is_empty() {
            return output::print(&format!("{:18}{clean}\n", ""));
        }
        output::print(&format!("{seconds:5.1} s  {who:<8}  {clean}\n"))
    }
}

async fn standings(client: &Client) -> Result<BTreeMap<String, Standing>> {
    let answer = client.get("/api/v1/fleet?limit=50").await;
    let answer = answer.map_err(|error| anyhow::anyhow!("{}", chain(&error))).context("ask the hub")?;
    let fleet: Value = serde_json::from_slice(&answer).context("read the hub's answer")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let nodes = fleet["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let standing = |node: &Value| {
        let standing = Standing {
            state: text(&node["state"]),
            cause: text(&node["cause"]),
            title: text(&node["title"]),
        };
        (text(&node["name"]), standing)
    };
    Ok(nodes.iter().map(standing).collect())
}
