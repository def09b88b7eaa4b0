//! Carriers and the port of an agent: its command-line arguments, and the files they need.
//!
//! CA files are rendered. Credentials of single machines (tokens, keys, logins) are not: the provisioning of
//! each machine must place them at fixed paths.

use crate::{RenderError, names};

/// Directory of the agent's files on a machine.
pub(crate) const FOLDER: &str = "/etc/landfall";
/// Lower ports need a capability that neither the unit nor the pods have.
const LOWEST_PORT: u16 = 1024;

/// All carriers of one agent; all of them are optional.
#[derive(Clone, Debug, Default)]
pub struct Carriers {
    pub hub: Option<Hub>,
    pub objects: Option<Objects>,
    pub events: Option<Events>,
    pub nats: Option<Nats>,
    pub neighbour: Option<Neighbour>,
    pub bootstrap_report: Option<BootstrapReport>,
    /// A device such as `/dev/ttyS0`.
    pub console: Option<String>,
    pub serve: Option<Serve>,
}

/// A hub. CA files are PEM, here and below.
#[derive(Clone, Debug)]
pub struct Hub {
    pub url: String,
    pub authority: Option<String>,
    /// Each machine has its own token in `hub.token`.
    pub token: bool,
    /// Each machine has its own certificate in `node.crt` and `node.key`.
    pub certificate: bool,
}

/// A bucket; each machine has its key in `bucket`.
#[derive(Clone, Debug)]
pub struct Objects {
    pub url: String,
    pub authority: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Events {
    pub url: String,
    pub authority: Option<String>,
    /// Each machine has the token in `events.token`.
    pub token: bool,
}

#[derive(Clone, Debug)]
pub struct Nats {
    pub url: String,
    pub subject: Option<String>,
    pub authority: Option<String>,
    /// Each machine has the login in `nats`.
    pub login: bool,
    /// Each machine has its own certificate in `node.crt` and `node.key`.
    pub certificate: bool,
}

/// Agents of other nodes; each machine has its own certificate in `node.crt` and `node.key`.
#[derive(Clone, Debug)]
pub struct Neighbour {
    pub places: Vec<String>,
    pub authority: String,
}

/// An object of the management cluster; each machine has its token in `bootstrap-report.token`.
#[derive(Clone, Debug)]
pub struct BootstrapReport {
    /// `NAMESPACE/NAME`.
    pub object: String,
    pub server: String,
    pub authority: String,
}

/// The agent's port; each machine has its certificate in `agent.crt` and `agent.key`.
#[derive(Clone, Debug)]
pub struct Serve {
    /// `[ADDRESS:]PORT`.
    pub address: String,
    pub client_authority: String,
}

/// Paths at which an agent sees the files of its machine, and the rendered CA files.
#[derive(Clone, Copy)]
pub(crate) struct Sight {
    pub(crate) machine: &'static str,
    pub(crate) authorities: &'static str,
}

// === impl Carriers ===

impl Carriers {
    pub(crate) fn check(&self) -> Result<(), RenderError> {
        if let Some(hub) = &self.hub {
            names::secure_url(&hub.url)?;
        }
        if let Some(Objects { url, .. }) = &self.objects {
            names::plain(url)?;
        }
        if let Some(events) = &self.events {
            names::secure_url(&events.url)?;
        }
        if let Some(nats) = &self.nats {
            names::nats(&nats.url)?;
            nats.subject.as_deref().map_or(Ok(()), names::subject)?;
        }
        if let Some(neighbour) = &self.neighbour {
            neighbour.places.iter().try_for_each(|place| names::host_and_port(place))?;
        }
        if let Some(BootstrapReport { object, server, .. }) = &self.bootstrap_report {
            names::secure_url(server)?;
            if !object.split_once('/').is_some_and(|(namespace, name)| names::object(namespace, name)) {
                return Err(RenderError::Report { object: object.clone() });
            }
        }
        if let Some(device) = &self.console
            && !(names::path(device) && device.starts_with("/dev/"))
        {
            return Err(RenderError::Console { device: device.clone() });
        }
        match &self.serve {
            Some(serve) if names::listen(&serve.address)? < LOWEST_PORT => {
                Err(RenderError::Port { address: serve.address.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Returns the agent's command-line options and their values.
    pub(crate) fn arguments(&self, sight: Sight) -> Vec<(&'static str, String)> {
        let machine = |name: &str| format!("{}{FOLDER}/{name}", sight.machine);
        let authority = |name: &str| format!("{}/{name}", sight.authorities);
        let mut words = Words(Vec::new());
        if let Some(hub) = &self.hub {
            words.say("--hub", hub.url.clone());
            words.say_if(hub.authority.is_some(), "--hub-ca", authority("hub-ca.crt"));
            words.say_if(hub.token, "--hub-token", machine("hub.token"));
            words.say_if(hub.certificate, "--hub-cert", machine("node.crt"));
            words.say_if(hub.certificate, "--hub-key", machine("node.key"));
        }
        if let Some(objects) = &self.objects {
            words.say("--objects", objects.url.clone());
            words.say("--objects-credentials", machine("bucket"));
            words.say_if(objects.authority.is_some(), "--objects-ca", authority("objects-ca.crt"));
        }
        if let Some(events) = &self.events {
            words.say("--events", events.url.clone());
            words.say_if(events.token, "--events-token", machine("events.token"));
            words.say_if(events.authority.is_some(), "--events-ca", authority("events-ca.crt"));
        }
        if let Some(nats) = &self.nats {
            words.say("--nats", nats.url.clone());
            if let Some(subject) = &nats.subject {
                words.say("--nats-subject", subject.clone());
            }
            words.say_if(nats.login, "--nats-login", machine("nats"));
            words.say_if(nats.authority.is_some(), "--nats-ca", authority("nats-ca.crt"));
            words.say_if(nats.certificate, "--nats-cert", machine("node.crt"));
            words.say_if(nats.certificate, "--nats-key", machine("node.key"));
        }
        if let Some(neighbour) = &self.neighbour {
            for place in &neighbour.places {
                words.say("--neighbour", place.clone());
            }
            words.say("--neighbour-ca", authority("neighbour-ca.crt"));
            words.say("--neighbour-cert", machine("node.crt"));
            words.say("--neighbour-key", machine("node.key"));
        }
        if let Some(report) = &self.bootstrap_report {
            words.say("--bootstrap-report", report.object.clone());
            words.say("--bootstrap-report-server", report.server.clone());
            words.say("--bootstrap-report-ca", authority("bootstrap-report-ca.crt"));
            words.say("--bootstrap-report-token", machine("bootstrap-report.token"));
        }
        if let Some(device) = &self.console {
            words.say("--console", format!("{}{device}", sight.machine));
        }
        if let Some(serve) = &self.serve {
            words.say("--serve", serve.address.clone());
            words.say("--serve-cert", machine("agent.crt"));
            words.say("--serve-key", machine("agent.key"));
            words.say("--serve-client-ca", authority("serve-client-ca.crt"));
        }
        words.0
    }

    /// Returns the names and contents of the rendered CA files.
    pub(crate) fn authorities(&self) -> Vec<(&'static str, &str)> {
        [
            ("hub-ca.crt", self.hub.as_ref().and_then(|hub| hub.authority.as_ref())),
            ("objects-ca.crt", self.objects.as_ref().and_then(|objects| objects.authority.as_ref())),
            ("events-ca.crt", self.events.as_ref().and_then(|events| events.authority.as_ref())),
            ("nats-ca.crt", self.nats.as_ref().and_then(|nats| nats.authority.as_ref())),
            ("neighbour-ca.crt", self.neighbour.as_ref().map(|neighbour| &neighbour.authority)),
            ("bootstrap-report-ca.crt", self.bootstrap_report.as_ref().map(|report| &report.authority)),
            ("serve-client-ca.crt", self.serve.as_ref().map(|serve| &serve.client_authority)),
        ]
        .into_iter()
        .filter_map(|(name, authority)| Some((name, authority?.as_str())))
        .collect()
    }

    /// Returns the number of the agent's port.
    pub(crate) fn port(&self) -> Option<u16> {
        self.serve.as_ref().and_then(|serve| names::listen(&serve.address).ok())
    }
}

struct Words(Vec<(&'static str, String)>);

// === impl Words ===

impl Words {
    fn say(&mut self, option: &'static str, value: String) {
        self.0.push((option, value));
    }

    fn say_if(&mut self, wanted: bool, option: &'static str, value: String) {
        if wanted {
            self.say(option, value);
        }
    }
}
