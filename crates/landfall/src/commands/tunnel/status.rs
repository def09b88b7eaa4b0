use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::{Args, ValueEnum};
use landfall_net::http::{self, Limits, Request, Server};
use landfall_tunnel::Status as Told;
use landfall_tunnel::agent::AgentReport;
use landfall_tunnel::server::ServerStatus;

use crate::exit::{Exit, Failure};
use crate::output;

/// Timeout of one request.
const PATIENCE: Duration = Duration::from_secs(10);
/// A server with 5 000 agents sends less than 2 MiB.
const MAX_ANSWER: usize = 64 << 20;

/// Show a running server's agents, or a running agent's servers: tunnels, bytes, stalls
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall tunnel status
  landfall tunnel status --address 127.0.0.1:8094 --output json

Exit codes: 0 ready · 1 not ready, or failed · 69 no response")]
pub(super) struct Status {
    /// Admin port of the server or agent; an agent's is 8094
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8095")]
    address: String,

    /// How to print
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A table
    Text,
    /// For programs
    Json,
}

// === impl Status ===

impl Status {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let body = self.ask().map_err(|error| {
            Failure::new(
                error,
                "is it running? `--address` names its admin port, 8095 of a server, 8094 of an agent",
            )
            .exit(Exit::Unavailable)
        })?;
        let told: Told = serde_json::from_slice(body.as_ref())
            .map_err(|_| anyhow!("`{}` answers, but not as a tunnel of ours does", self.address))
            .map_err(|error| Failure::new(error, "`--address` names the admin port of a Landfall tunnel"))?;
        let ready = match &told {
            Told::Server(server) => server.ready,
            Told::Agent(agent) => !agent.servers.is_empty(),
        };
        match self.output {
            Format::Json => {
                let json = serde_json::to_string_pretty(&told).context("write JSON")?;
                output::print(&(json + "\n"))?;
            }
            Format::Text => output::print(&match told {
                Told::Server(server) => server_table(&server),
                Told::Agent(agent) => agent_lines(&agent),
            })?,
        }
        Ok(if ready { Exit::Done } else { Exit::Failed })
    }

    fn ask(&self) -> anyhow::Result<impl AsRef<[u8]>> {
        let server = Server::parse(&format!("http://{}", self.address));
        let server =
            server.with_context(|| format!("invalid address `{}`: expected `HOST:PORT`", self.address))?;
        let request = Request::get("/status").body(http::empty())?;
        let limits = Limits { within: PATIENCE, answer: MAX_ANSWER };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(runtime.context("start the runtime")?.block_on(http::exchange(&server, None, request, limits))?)
    }
}

fn server_table(server: &ServerStatus) -> String {
    let state = match (server.draining, server.ready) {
        (true, _) => "stopping",
        (false, true) => "ready",
        (false, false) => "not ready: no agent is connected",
    };
    let mut text = format!(
        "Server {} ({}), one of {}: {state}\n",
        output::harmless(&server.server_id),
        output::harmless(&server.version),
        server.server_count
    );
    if server.agents.is_empty() {
        return text;
    }
    let mut rows = vec![
        ["AGENT", "STATE", "CONNECTED", "TUNNELS", "DIALS", "SENT", "RECEIVED", "STALLED", "CUT OFF"]
            .map(str::to_owned),
    ];
    rows.extend(server.agents.iter().map(|agent| {
        let state = match (agent.draining, agent.doubted) {
            (true, _) => "draining",
            (false, true) => "doubted",
            (false, false) if agent.ours => "good",
            (false, false) => "good (upstream's)",
        };
        [
            agent.id.clone(),
            state.to_owned(),
            span(agent.connected_seconds),
            agent.tunnels.to_string(),
            agent.pending.to_string(),
            size(agent.bytes_sent),
            size(agent.bytes_received),
            agent.stalled.to_string(),
            agent.broken_off.to_string(),
        ]
    }));
    text += &table(&rows);
    text
}

fn agent_lines(agent: &AgentReport) -> String {
    let servers = if agent.servers.is_empty() {
        "none".to_owned()
    } else {
        output::harmless(&agent.servers.join(", "))
    };
    format!(
        "Agent {} ({}): {} of {} servers connected\n\
         servers   {servers}\ntunnels   {}\nsent      {}\nreceived  {}\nstalled   {}\ncut off   {}\n",
        output::harmless(&agent.agent_id),
        output::harmless(&agent.version),
        agent.servers.len(),
        agent.expected_servers,
        agent.tunnels,
        size(agent.bytes_sent),
        size(agent.bytes_received),
        agent.stalled,
        agent.broken_off,
    )
}

fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{:width$}", output::harmless(cell)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (0..UNITS.len() - 1).find(|unit| bytes >> (10 * (unit + 1)) == 0).unwrap_or(UNITS.len() - 1);
    if unit == 0 {
        return format!("{bytes} B");
    }
    let tenths = (u128::from(bytes) * 10) >> (10 * unit);
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;
    use landfall_tunnel::server::AgentStatus;

    #[test]
    fn a_server_is_shown_as_a_table() {
        let agent = AgentStatus {
            id: "node-1\x1b[2J".to_owned(),
            ours: true,
            draining: false,
            doubted: false,
            connected_seconds: 3725,
            tunnels: 12,
            pending: 0,
            bytes_sent: 1536,
            bytes_received: 5 << 30,
            stalled: 1,
            broken_off: 0,
        };
        let other = AgentStatus { id: "n".to_owned(), ours: false, connected_seconds: 59, ..agent.clone() };
        let server = ServerStatus {
            server_id: "s1".to_owned(),
            version: "0.1.0".to_owned(),
            ready: true,
            draining: false,
            server_count: 3,
            agents: vec![agent, other],
        };
        let expected = "\
Server s1 (0.1.0), one of 3: ready
AGENT       STATE              CONNECTED  TUNNELS  DIALS  SENT     RECEIVED  STALLED  CUT OFF
node-1\u{fffd}[2J  good               1h2m       12       0      1.5 KiB  5.0 GiB   1        0
n           good (upstream's)  59s        12       0      1.5 KiB  5.0 GiB   1        0
";
        assert_eq!(server_table(&server), expected);
    }
}
