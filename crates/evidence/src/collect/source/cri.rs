//! Pods, containers and images of the container runtime, queried over its socket.
//!
//! The only source with containers that never started.

use crate::cri::{Connection, Container, ContainerState, CriError};
use jiff::Timestamp;
use landfall_diagnose::{Fact, Observation};
use landfall_model::chain;
use serde::Serialize;

use super::Source;
use crate::collect::host::Host;
use crate::collect::piece::{Piece, Trouble};
use crate::collect::sink::Sink;

/// Maximum number of containers inspected individually, earliest end first. More on one node do not help a
/// reader.
const MAX_INSPECTED: usize = 300;

pub(super) struct Cri {
    pub(super) to: String,
    pub(super) sockets: Vec<String>,
    /// Directory for the details of each container.
    pub(super) inspect: String,
}

/// In the format of `crictl inspect`.
#[derive(Serialize)]
struct Inspected {
    status: Container,
}

// === impl Cri ===

impl Source for Cri {
    fn collect(&self, host: &Host, sink: &mut Sink) -> Result<(), Trouble> {
        let mut trouble = Trouble::Absent;
        let mut found = false;
        for socket in &self.sockets {
            match self.one(host, socket, sink) {
                Ok(()) => found = true,
                // A machine has one runtime; missing sockets of others are normal.
                Err(Trouble::Absent) => {}
                Err(other) => trouble = other,
            }
        }
        if found && trouble == Trouble::Absent { Ok(()) } else { Err(trouble) }
    }
}

impl Cri {
    fn one(&self, host: &Host, socket: &str, sink: &mut Sink) -> Result<(), Trouble> {
        let open = |sink: &Sink| -> Result<Connection, Trouble> {
            Ok(Connection::new(host.connect(socket)?, sink.time_left()?))
        };
        let name = socket.rsplit('/').next().unwrap_or_default();
        let folder = format!("{}{}/", self.to, name.strip_suffix(".sock").unwrap_or(name));
        // A runtime that does not return its version does not respond to other requests either.
        let version = open(sink)?.version()?;
        put(sink, &format!("{folder}version.json"), socket, &version);
        let status = open(sink)?.status();
        tell(sink, &format!("{folder}status.json"), socket, status);
        let pods = open(sink)?.pods();
        tell(sink, &format!("{folder}pods.json"), socket, pods);
        let images = open(sink)?.images();
        tell(sink, &format!("{folder}images.json"), socket, images);
        let mut containers = match open(sink)?.containers() {
            Ok(containers) => containers,
            Err(error) => {
                sink.note(&format!("{folder}containers.json"), socket, &error.into());
                return Ok(());
            }
        };
        put(sink, &format!("{folder}containers.json"), socket, &containers);
        containers.sort_by_key(|container| container.state != ContainerState::Exited);
        for container in containers.iter().take(MAX_INSPECTED) {
            let path = format!("{}{}-{}.inspect", self.inspect, container.name, container.id);
            let status = open(sink)?.container(&container.id);
            if let Ok(status) = &status {
                observe(sink, status);
            }
            let status = status.map(|status| Inspected {
                status: Container { pod_sandbox_id: container.pod_sandbox_id.clone(), ..status },
            });
            tell(sink, &path, socket, status);
        }
        Ok(())
    }
}

/// Records a container's exit as a fact from the runtime; its files may contain text chosen by the container.
fn observe(sink: &mut Sink, status: &Container) {
    const NAMESPACE: &str = "io.kubernetes.pod.namespace";
    let ended = Timestamp::from_nanosecond(status.finished_at.into());
    if let (ContainerState::Exited, Some(namespace), Ok(time)) =
        (status.state, status.labels.get(NAMESPACE), ended)
    {
        let (container, namespace) = (status.name.clone(), namespace.clone());
        let kind = Fact::Container { container, namespace, reason: status.reason.clone() };
        sink.pass(Piece::Observed(Observation { kind, time }));
    }
}

fn tell<T: Serialize>(sink: &mut Sink, path: &str, socket: &str, told: Result<T, CriError>) {
    match told {
        Ok(told) => put(sink, path, socket, &told),
        Err(error) => sink.note(path, socket, &error.into()),
    }
}

fn put<T: Serialize>(sink: &mut Sink, path: &str, socket: &str, told: &T) {
    match serde_json::to_string_pretty(told) {
        Ok(text) => sink.text(path, socket, &(text + "\n")),
        Err(error) => sink.note(path, socket, &Trouble::Failed(error.to_string())),
    }
}

// === impl Trouble ===

impl From<CriError> for Trouble {
    fn from(error: CriError) -> Self {
        match error {
            CriError::TimedOut => Self::TimedOut,
            other => Self::Failed(chain(&other).to_string()),
        }
    }
}
