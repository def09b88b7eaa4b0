use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use landfall_fetch::{Exchange, Method};
use landfall_model::chain;
use serde_json::Value;

use super::{Check, Outcome, registries};
use crate::environment::read;
use crate::in_place::credentials::{Credentials, CredentialsError, HubEndpoint, ProgressEndpoint};
use crate::in_place::environment::{InPlaceEnvironment, TrustRoots};
use crate::in_place::flavour::Flavour;
use crate::in_place::ignition::{self, Ignition};
use crate::in_place::machine_config::{self, Host};
use crate::in_place::mirrors::{self, Variables};
use crate::in_place::oci::{AuthFile, Registry, mirrored};
use crate::in_place::payload;
use crate::in_place::places::{CURRENT_CONFIG, Folder};
use crate::in_place::request::{ClusterUse, Request};
use crate::in_place::source;
use crate::in_place::steps::{aside, stage};

/// A larger clock skew breaks certificates and tokens and makes logs misleading.
const MAX_SKEW: Duration = Duration::from_mins(5);
/// A correct clock cannot show an earlier date.
const EARLIEST: &str = "2025-01-01T00:00:00Z";
const ASK_LIMIT: Duration = Duration::from_secs(30);
/// Size limit of an answer to a reachability check.
const MAX_ANSWER: u64 = 8 * 1024 * 1024;
const MAX_CONFIG: u64 = 32 * 1024 * 1024;
/// File systems that need free space.
const ROOM: [&str; 2] = ["/var/lib", "/"];
/// Limit above the number of registries in any pull secret; each one that does not answer costs its timeout.
const MAX_REGISTRIES: usize = 64;
/// Number of pods named in a message.
const MAX_NAMED: usize = 5;
/// Limit above the number of repositories of any machine.
const MAX_REPOSITORIES: usize = 64;

/// A report in progress.
pub(super) struct Checks<'a, W> {
    env: &'a W,
    request: &'a Request,
    folder: &'a Folder,
    done: Vec<Check>,
}

/// Reads the properties that decide whether machine-config-daemon can change this machine.
pub fn host_facts(env: &impl InPlaceEnvironment) -> io::Result<Host> {
    let fips = read(env, Path::new("/proc/sys/crypto/fips_enabled"), 16)?;
    let current = read(env, Path::new(CURRENT_CONFIG), MAX_CONFIG)?;
    let current = current.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    Ok(Host {
        fips: fips.is_some_and(|text| text.trim_ascii() == b"1"),
        ostree: env.exists(Path::new("/run/ostree-booted"))?,
        current: current.as_ref().and_then(machine_config::name).map(str::to_owned),
    })
}

// === impl Checks ===

impl<'a, W: InPlaceEnvironment> Checks<'a, W> {
    pub(super) fn new(env: &'a W, request: &'a Request, folder: &'a Folder) -> Self {
        Self { env, request, folder, done: Vec::new() }
    }

    pub(super) fn done(self) -> Vec<Check> {
        self.done
    }

    fn say(&mut self, name: &str, outcome: Outcome, says: impl Into<String>) {
        self.done.push(Check { name: name.to_owned(), outcome, says: says.into() });
    }

    pub(super) async fn without_credentials(&mut self, error: &CredentialsError) {
        self.say("secret", Outcome::Failed, chain(error).to_string());
        for name in ["source", "registry", "progress"] {
            self.say(name, Outcome::Skipped, "the Secret cannot be used");
        }
        self.disk();
        self.state();
        self.node().await;
    }

    pub(super) async fn all(&mut self, credentials: &Credentials) {
        self.say("secret", Outcome::Passed, format!("complete for {}", self.request.flavour.name()));
        self.source(credentials).await;
        if self.request.flavour == Flavour::Rhel {
            self.mirrors().await;
        }
        self.progress(credentials.progress.as_ref()).await;
        self.hub(credentials.hub.as_ref()).await;
        self.disk();
        self.state();
        self.node().await;
    }

    /// Downloads the source of the new configuration once.
    async fn source(&mut self, credentials: &Credentials) {
        let got = match source::get(self.env, credentials, self.folder).await {
            Ok(got) => got,
            Err(error) => {
                let outcome = if error.is_retryable() { Outcome::FailedForNow } else { Outcome::Failed };
                self.say("source", outcome, chain(&error).to_string());
                self.clock(None);
                return;
            }
        };
        self.clock(got.server_time);
        match self.request.flavour {
            Flavour::Rhcos => self.ignition(&got.path, credentials).await,
            Flavour::Rhel => self.payload(&got.path).await,
        }
    }

    fn clock(&mut self, server: Option<Timestamp>) {
        let now = self.env.now();
        if EARLIEST.parse().is_ok_and(|earliest: Timestamp| now < earliest) {
            return self.say("clock", Outcome::FailedForNow, format!("this machine says it is {now}"));
        }
        let Some(server) = server else {
            return self.say("clock", Outcome::Passed, "plausible; no server's clock to compare with");
        };
        let skew = now.duration_since(server).unsigned_abs();
        if skew > MAX_SKEW {
            let says = format!("{} s apart from the server's", skew.as_secs());
            self.say("clock", Outcome::FailedForNow, says);
        } else {
            self.say("clock", Outcome::Passed, format!("{} s apart from the server's", skew.as_secs()));
        }
    }

    async fn ignition(&mut self, path: &Path, credentials: &Credentials) {
        let ignition = read(self.env, path, ignition::MAX_BYTES).map_err(|error| error.to_string());
        let ignition = ignition.and_then(|bytes| {
            Ignition::parse(&bytes.unwrap_or_default()).map_err(|error| chain(&error).to_string())
        });
        let ignition = match ignition {
            Ok(ignition) => ignition,
            Err(error) => return self.say("source", Outcome::Failed, error),
        };
        let config = match ignition.complete_machine_config() {
            Ok(config) => config,
            Err(error) => return self.say("source", Outcome::Failed, chain(&error).to_string()),
        };
        let name = machine_config::name(&config).unwrap_or("without a name").to_owned();
        self.say("source", Outcome::Passed, format!("Ignition with MachineConfig {name}"));
        match host_facts(self.env) {
            Err(error) => self.say("machine-config", Outcome::FailedForNow, error.to_string()),
            Ok(host) => {
                let obstacles = machine_config::obstacles(&config, &host);
                if obstacles.is_empty() {
                    self.say("machine-config", Outcome::Passed, "this machine can take it");
                } else {
                    let told: Vec<String> = obstacles.iter().map(ToString::to_string).collect();
                    self.say("machine-config", Outcome::Failed, told.join("; "));
                }
                if host.current.as_deref() == Some(name.as_str()) {
                    let says = format!("{name} is on this machine's disk already");
                    self.say("already-there", Outcome::Warned, says);
                }
            }
        }
        self.registry(&ignition, &config, credentials).await;
    }

    /// Checks the images that will be pulled, with the mirrors and credentials that the machine will have.
    async fn registry(&mut self, ignition: &Ignition, config: &Value, credentials: &Credentials) {
        let settings = match stage::registry_settings(self.env, ignition) {
            Ok(settings) => settings,
            Err(reason) => return self.say("registry", Outcome::Failed, reason),
        };
        let daemon = match ignition.daemon_image() {
            Ok(image) => image,
            Err(error) => return self.say("registry", Outcome::Failed, chain(&error).to_string()),
        };
        let system = config["spec"]["osImageURL"].as_str().filter(|image| image.contains("@sha256:"));
        let registry = Registry {
            env: self.env,
            settings: settings.as_deref(),
            auth: stage::registry_auth(self.env, ignition, credentials.registry_auth.as_ref()),
        };
        for (name, image) in [("registry", Some(daemon.as_str())), ("system-image", system)] {
            let Some(image) = image else { continue };
            match registry.find(image).await {
                Ok(found) => {
                    let bytes: u64 = found.layers.iter().map(|layer| layer.bytes).sum();
                    let says = format!("{} has {image}, {} MB", found.place, bytes / 1_000_000);
                    self.say(name, Outcome::Passed, says);
                }
                Err(error) => self.say(name, Outcome::FailedForNow, chain(&error).to_string()),
            }
        }
    }

    async fn payload(&mut self, path: &Path) {
        let contents = self.env.open(path).map_err(|error| error.to_string());
        let contents = match contents {
            Ok(file) => {
                let read = move || payload::read(file, |_, _| Ok(()));
                let read = tokio::task::spawn_blocking(read).await.map_err(|error| error.to_string());
                read.and_then(|read| read.map_err(|error| chain(&error).to_string()))
            }
            Err(error) => Err(error),
        };
        match contents {
            Ok(contents) => {
                let says = format!("payload of {} files, read to its end", contents.files);
                self.say("source", Outcome::Passed, says);
            }
            Err(error) => self.say("source", Outcome::Failed, error),
        }
        self.payload_registry().await;
    }

    /// Checks the registries from which a package-based machine pulls, according to its `registries.conf` and its
    /// pull secret.
    async fn payload_registry(&mut self) {
        let text = |path: &str, limit| {
            let bytes = read(self.env, Path::new(path), limit).ok().flatten();
            bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        };
        let settings = text(ignition::REGISTRIES, stage::MAX_SETTINGS);
        let auth = text(stage::HOST_AUTH, crate::in_place::oci::MAX_AUTH_BYTES);
        let known = auth.as_deref().map(AuthFile::parse).map(|file| file.hosts()).unwrap_or_default();
        let mirrored = match mirrored(settings.as_deref()) {
            Ok(mirrored) => mirrored,
            Err(error) => return self.say("registry", Outcome::FailedForNow, chain(&error).to_string()),
        };
        let mut answers = BTreeMap::new();
        for host in mirrored.iter().flatten().chain(&known).take(MAX_REGISTRIES) {
            if !answers.contains_key(host) {
                let trust = TrustRoots::Registry { folder: Path::new("/etc/containers/certs.d").join(host) };
                let answer = self.status(&trust, &format!("https://{host}/v2/")).await;
                answers.insert(host.clone(), answer);
            }
        }
        for (outcome, says) in registries::judge(&mirrored, &answers) {
            self.say("registry", outcome, says);
        }
    }

    async fn mirrors(&mut self) {
        let folder = self.env.host_path(Path::new(mirrors::FOLDER));
        let mut names = self.env.disk().names(&folder).unwrap_or_default();
        names.sort_unstable();
        let variables =
            Variables { release: self.release(), architecture: std::env::consts::ARCH.to_owned() };
        let mut repositories = Vec::new();
        for name in names.iter().filter(|name| Path::new(name).extension().is_some_and(|kind| kind == "repo"))
        {
            let text = read(self.env, &Path::new(mirrors::FOLDER).join(name), mirrors::MAX_BYTES);
            let text = text.ok().flatten().unwrap_or_default();
            repositories.extend(mirrors::repositories(&String::from_utf8_lossy(&text), &variables));
        }
        if repositories.is_empty() {
            let says = format!("no repository is switched on in `{}`", mirrors::FOLDER);
            return self.say("mirrors", Outcome::FailedForNow, says);
        }
        repositories.truncate(MAX_REPOSITORIES);
        let count = repositories.len();
        for repository in repositories {
            let problem = match self.status(&TrustRoots::System, &repository.url).await {
                Ok(status) if mirrors::answers(&repository, status) => continue,
                Ok(status) => format!("answered {status}"),
                Err(error) => error,
            };
            let says = format!("{} ({}): {problem}", repository.id, repository.url);
            return self.say("mirrors", Outcome::FailedForNow, says);
        }
        self.say("mirrors", Outcome::Passed, format!("{count} answer; nothing was installed"));
    }

    fn release(&self) -> String {
        let text = read(self.env, Path::new("/etc/os-release"), 64 * 1024).ok().flatten().unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let version = text.lines().find_map(|line| line.strip_prefix("VERSION_ID="));
        let version = version.map(|version| version.trim_matches('"').to_owned()).unwrap_or_default();
        version.split('.').next().unwrap_or_default().to_owned()
    }

    /// Any answer is sufficient. The password is not sent, because it can be used only once.
    async fn progress(&mut self, endpoint: Option<&ProgressEndpoint>) {
        let Some(endpoint) = endpoint else {
            return self.say("progress", Outcome::Passed, "reported on the node and in the cluster only");
        };
        let trust = endpoint.authorities.clone().map_or(TrustRoots::System, TrustRoots::Only);
        match self.status(&trust, &endpoint.url).await {
            Ok(status) => {
                self.say("progress", Outcome::Passed, format!("{} answers ({status})", endpoint.url));
            }
            Err(error) => self.say("progress", Outcome::FailedForNow, error),
        }
    }

    /// An unreachable hub does not block the bootstrap.
    async fn hub(&mut self, endpoint: Option<&HubEndpoint>) {
        let Some(endpoint) = endpoint else { return };
        let trust = endpoint.authorities.clone().map_or(TrustRoots::System, TrustRoots::Only);
        match self.status(&trust, &endpoint.url).await {
            Ok(status) => self.say("hub", Outcome::Passed, format!("{} answers ({status})", endpoint.url)),
            Err(error) => self.say("hub", Outcome::Warned, error),
        }
    }

    async fn status(&self, trust: &TrustRoots, url: &str) -> Result<u16, String> {
        let mut question = Exchange::get(url, ASK_LIMIT, MAX_ANSWER);
        question.method = Method::Head;
        let answer = self.env.exchange(trust, &question).await;
        answer.map(|answer| answer.status).map_err(|error| chain(&error).to_string())
    }

    fn disk(&mut self) {
        for path in ROOM {
            match self.env.free_bytes(Path::new(path)) {
                Ok(free) if free < self.request.free_bytes => {
                    let needed = self.request.free_bytes / 1_000_000;
                    let says = format!("{} MB free on `{path}`, {needed} needed", free / 1_000_000);
                    return self.say("disk", Outcome::FailedForNow, says);
                }
                Ok(_) => {}
                Err(error) => return self.say("disk", Outcome::FailedForNow, format!("`{path}`: {error}")),
            }
        }
        self.say("disk", Outcome::Passed, "room enough");
    }

    /// Checks the state that will be moved aside while the machine is down.
    fn state(&mut self) {
        match aside::obstacles(self.env, self.request.flavour) {
            Ok(obstacles) if obstacles.is_empty() => {
                self.say("state", Outcome::Passed, "what the old kubelet keeps can be set aside");
            }
            Ok(obstacles) => {
                let says = format!("{}: it cannot be set aside; make it a folder", obstacles.join("; "));
                self.say("state", Outcome::FailedForNow, says);
            }
            Err(error) => self.say("state", Outcome::FailedForNow, error.to_string()),
        }
    }

    /// Lists the pods that will block draining the node. They do not keep the machine itself from going down.
    async fn drain(&mut self) {
        match self.env.drain_blockers(&self.request.node).await {
            Ok(pods) if pods.is_empty() => {
                self.say("drain", Outcome::Passed, "nothing on the node would refuse to go");
            }
            Ok(mut pods) => {
                let more = pods.len().saturating_sub(MAX_NAMED);
                pods.truncate(MAX_NAMED);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let says = format!("would not go now: {}{more}", pods.join(", "));
                self.say("drain", Outcome::Warned, says);
            }
            // The service account of the pod may not be allowed to list other pods.
            Err(error) => self.say("drain", Outcome::Skipped, error.reason),
        }
    }

    async fn node(&mut self) {
        if self.request.cluster == ClusterUse::None {
            return self.say("node", Outcome::Passed, "no cluster is concerned");
        }
        match self.env.node(&self.request.node).await {
            Ok(Some(facts)) if !facts.cordoned => {
                let says = "it is not cordoned: what runs on it goes down with it";
                self.say("node", Outcome::Warned, says);
                self.drain().await;
            }
            Ok(Some(_)) => {
                self.say("node", Outcome::Passed, "cordoned");
                self.drain().await;
            }
            Ok(None) => {
                let says = format!("the cluster has no node `{}`", self.request.node);
                self.say("node", Outcome::Failed, says);
            }
            Err(error) => self.say("node", Outcome::FailedForNow, error.reason),
        }
    }
}
