//! A simulated machine: disk, updater, torcx at boot, a bucket.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;
use landfall_durable::simulated::{Aftermath, Data, Moment, Names, SimulatedDisk};
use landfall_durable::{self as durable, Access, Disk};
use landfall_fetch::{Algorithm, Digest as Expected, FetchError, Order, Source};
use landfall_model::step::Outcome;
use landfall_steps::events::EventStream;
use landfall_steps::{BootId, BootIdError};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::environment::{ClusterUnavailable, Environment, make_dir};
use crate::prepare::decision::ServerAnswer;
use crate::prepare::digest::Digest;
use crate::prepare::environment::{FleetLockRequest, FleetLockResponse, PrepareEnvironment, Progress};
use crate::prepare::profile;
use crate::prepare::request::{FleetLock, Request, Trust};
use crate::prepare::run::{self, Other, Prepared};
use crate::prepare::sysext::image::ImageError;
use crate::prepare::sysext::release::ExtensionRelease;
use crate::prepare::update_engine::{Operation, Pending, Status, UpdateError};

const MAX_STARTS: usize = 40;
pub(crate) const OLD: &str = "2000.0.0";
pub(crate) const NEW: &str = "2001.0.0";
pub(crate) const ENV: &str = "/etc/kubernetes/kubelet.env";
const OS_RELEASE: &str = "/usr/lib/os-release";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// A new operating system, a new runtime, a reboot.
    UpdateAndRuntime,
    /// The right runtime is running already.
    EverythingRuns,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Crash {
    Kill,
    PowerCut(Aftermath),
}

/// The parts of the final state that must not depend on crashes.
#[derive(Debug, PartialEq)]
pub(crate) struct End {
    pub(crate) outcome: Outcome,
    pub(crate) kubelet_env: Option<String>,
    pub(crate) selector: Option<String>,
    pub(crate) profile: Option<String>,
    /// The image for the running system. A machine that lost power between the update and the decision does not need
    /// the other one.
    pub(crate) image: Option<Vec<u8>>,
    pub(crate) system: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Machine {
    scenario: Scenario,
    disk: SimulatedDisk,
    rest: Arc<Mutex<Rest>>,
}

/// State outside the disk.
#[derive(Clone, Debug, Default)]
struct Rest {
    boots: u32,
    /// Number of update requests since the start.
    updates: u32,
    /// An update is pending. Like the updater's own partition, it survives a power failure.
    staged: bool,
    /// The updater restarted and does not know the version any more.
    forgot: bool,
    /// Truncated images existed from the start.
    damaged: bool,
    /// Versions of the API servers, if not the default ones.
    servers: Vec<&'static str>,
}

// === impl Crash ===

impl Crash {
    /// A state in which names survived a power failure but their content did not.
    pub(crate) fn worst() -> Self {
        Self::PowerCut(Aftermath { data: Data::Torn, names: Names::Kept })
    }
}

// === impl Machine ===

impl Machine {
    pub(crate) fn new(scenario: Scenario) -> Self {
        let disk = SimulatedDisk::new(&[
            "/etc/kubernetes/installer",
            "/var/lib",
            "/usr/lib",
            "/run/torcx",
            "/run/metadata",
            "/run/systemd/system",
            "/etc/torcx",
        ]);
        let put = |path: &str, text: &str| {
            durable::write(&disk, Path::new(path), text.as_bytes(), Access::PUBLIC).unwrap();
        };
        put(
            "/etc/kubernetes/installer/kubelet.env",
            "KUBELET_IMAGE_URL=\"quay.io/h\"\nKUBELET_IMAGE_TAG=\"v1.7.5\"\n",
        );
        put(OS_RELEASE, &os_release(OLD));
        let running = match scenario {
            Scenario::UpdateAndRuntime => "1.12",
            Scenario::EverythingRuns => "17.03",
        };
        put(profile::RUNNING, &profile::with_image(None, "docker", running).unwrap());
        put(profile::SEAL, "TORCX_UPPER_PROFILE=\"vendor\"\n");
        Self { scenario, disk, rest: Arc::default() }
    }

    pub(crate) fn fork(&self) -> Self {
        let rest = self.rest().clone();
        Self { scenario: self.scenario, disk: self.disk.fork(), rest: Arc::new(Mutex::new(rest)) }
    }

    pub(crate) fn operations(&self) -> Vec<String> {
        self.disk.operations()
    }

    pub(crate) fn boots(&self) -> u32 {
        self.rest().boots
    }

    pub(crate) fn updates(&self) -> u32 {
        self.rest().updates
    }

    pub(crate) fn run(&self, runtime: &Runtime, cut: Option<usize>) -> Option<End> {
        for _ in 0..MAX_STARTS {
            if let Some(cut) = cut {
                self.disk.cut_power_at(cut, Moment::Before);
            }
            let request = self.request();
            let prepared = runtime.block_on(run::prepare(
                &Arc::new(self.clone()),
                &request,
                Other::Respect,
                &EventStream::default(),
                &CancellationToken::new(),
            ));
            if self.disk.is_off() {
                return None;
            }
            self.check_promises("while running");
            match prepared.unwrap() {
                Prepared::Before => return Some(self.end(Outcome::Done)),
                Prepared::Run(outcome) if outcome.is_final() => return Some(self.end(outcome)),
                Prepared::Run(Outcome::RebootNeeded { .. }) => self.boot(),
                Prepared::Run(other) => panic!("{other:?}"),
                Prepared::Failed { .. } => {}
            }
            self.disk.restart_process();
        }
        panic!("no end after {MAX_STARTS} starts: {:#?}", self.operations());
    }

    pub(crate) fn crashes(&self) -> Vec<Crash> {
        self.disk.aftermaths().into_iter().map(Crash::PowerCut).chain([Crash::Kill]).collect()
    }

    pub(crate) fn crash(&self, crash: Crash) {
        match crash {
            Crash::Kill => self.disk.restart_process(),
            Crash::PowerCut(aftermath) => {
                self.disk.power_on(aftermath);
                self.boot();
            }
        }
    }

    /// Checks the invariants: no image is visible before it is complete, and the kubelet's file not before everything
    /// it refers to exists.
    #[track_caller]
    pub(crate) fn check_promises(&self, when: &str) {
        let damaged = self.rest().damaged;
        for image in self.images().into_iter().flatten().filter(|_| !damaged) {
            assert_eq!(image, image_bytes(), "a torn image has its final name, {when}");
        }
        if let Some(env) = self.text(ENV) {
            assert!(env.ends_with("KUBELET_IMAGE_TAG=v1.9.3_c.0\n"), "{env:?}, {when}");
            assert_eq!(self.text(profile::SELECTOR).as_deref(), Some("tectonic\n"), "{when}");
            let running = self.text(profile::RUNNING).unwrap();
            assert_eq!(profile::reference(&running, "docker").unwrap().as_deref(), Some("17.03"), "{when}");
        }
    }

    /// Simulates the next boot: the staged system, and the effect of torcx on the selected profile.
    pub(crate) fn boot(&self) {
        let mut rest = self.rest();
        rest.boots += 1;
        if std::mem::take(&mut rest.staged) {
            self.disk.damage(Path::new(OS_RELEASE), os_release(NEW).as_bytes());
        }
        drop(rest);
        let system = self.system();
        let selected = self.text(profile::SELECTOR).and_then(|text| profile::selected(&text).ok().flatten());
        let taken = selected.and_then(|name| self.text(&format!("/etc/torcx/profiles/{name}.json")));
        if let Some(profile) = taken {
            let wanted = profile::reference(&profile, "docker").unwrap().unwrap();
            let image = format!("/var/lib/torcx/store/{system}/docker:{wanted}.torcx.tgz");
            assert!(self.disk.peek(Path::new(&image)).is_some(), "{system} boots without docker {wanted}");
            self.disk.damage(Path::new(profile::RUNNING), profile.as_bytes());
            self.disk.damage(Path::new(profile::SEAL), b"TORCX_UPPER_PROFILE=\"tectonic\"\n");
        }
    }

    fn system(&self) -> String {
        let text = self.text(OS_RELEASE).unwrap();
        text.lines().find_map(|line| line.strip_prefix("VERSION_ID=")).unwrap().to_owned()
    }

    fn end(&self, outcome: Outcome) -> End {
        End {
            outcome,
            kubelet_env: self.text(ENV),
            selector: self.text(profile::SELECTOR),
            profile: self.text("/etc/torcx/profiles/tectonic.json"),
            image: self.disk.peek(&image_path(&self.system())),
            system: self.text(OS_RELEASE),
        }
    }

    pub(crate) fn images(&self) -> Vec<Option<Vec<u8>>> {
        [NEW, OLD].map(|system| self.disk.peek(&image_path(system))).into()
    }

    /// Stages an update without a request, possibly with an unknown version.
    pub(crate) fn stage_update(&self, forgot: bool) {
        let mut rest = self.rest();
        (rest.staged, rest.forgot) = (true, forgot);
    }

    pub(crate) fn restart_process(&self) {
        self.disk.restart_process();
    }

    pub(crate) fn disk_has(&self, path: &Path) -> Option<Vec<u8>> {
        self.disk.peek(path)
    }

    /// Runs to the end from a disk with truncated images. The invariants do not hold at its start.
    pub(crate) fn run_over_damage(&self, runtime: &Runtime) -> End {
        self.rest().damaged = true;
        let end = self.run(runtime, None);
        self.rest().damaged = false;
        self.check_promises("in the end");
        end.unwrap()
    }

    pub(crate) fn servers_say(&self, versions: &[&'static str]) {
        self.rest().servers = versions.to_vec();
    }

    pub(crate) fn put(&self, path: &str, text: &str) {
        let path = Path::new(path);
        make_dir(self, path.parent().unwrap(), Access { mode: 0o755, owner: None }).unwrap();
        durable::write(&self.disk, path, text.as_bytes(), Access::PUBLIC).unwrap();
    }

    pub(crate) fn request(&self) -> Request {
        Request {
            upgrade_os: self.scenario == Scenario::UpdateAndRuntime,
            manifest_urls: vec!["https://bucket/{{.Board}}/{{.OSVersion}}.json".to_owned()],
            trust: Trust { verify: false, ..Trust::default() },
            ..Request::default()
        }
    }

    pub(crate) fn text(&self, path: &str) -> Option<String> {
        self.disk.peek(Path::new(path)).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap()
    }
}

impl Environment for Machine {
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.disk.clone())
    }

    fn host_path(&self, path: &Path) -> PathBuf {
        path.to_owned()
    }

    fn boot(&self) -> Result<BootId, BootIdError> {
        BootId::parse(&format!("b-{:x}", self.rest().boots))
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match self.disk.read(path, 1 << 20) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn set_link(&self, path: &Path, to: &Path) -> io::Result<()> {
        let text = to.display().to_string();
        durable::write(&self.disk, path, text.as_bytes(), Access::PUBLIC).map_err(|error| error.source)
    }

    fn remove_all(&self, path: &Path) -> io::Result<()> {
        for name in self.disk.names(path)? {
            self.disk.remove_file(&path.join(name))?;
        }
        Ok(())
    }

    async fn reload_units(&self) -> Result<(), String> {
        Ok(())
    }
}

impl PrepareEnvironment for Machine {
    async fn api_servers(&self, _: &Path) -> Result<Vec<ServerAnswer>, ClusterUnavailable> {
        let said = match self.rest().servers.clone() {
            none if none.is_empty() => vec!["v1.9.3+c.0"],
            servers => servers,
        };
        let answer = |text: &str| ServerAnswer {
            address: "https://api".to_owned(),
            version: Some(text.parse().unwrap()),
            error: None,
        };
        Ok(said.into_iter().map(answer).collect())
    }

    async fn config_map(&self, _: &Path, _: &str, _: &str, _: &str) -> Result<String, ClusterUnavailable> {
        Err(ClusterUnavailable { reason: "there is none".to_owned() })
    }

    async fn document(&self, urls: &[String], _: u64) -> Result<(Vec<u8>, Source), FetchError> {
        assert!(urls[0].starts_with("https://bucket/amd64-usr/"), "{urls:?}");
        let hash = Expected::of(Algorithm::Sha512, &image_bytes());
        let list = serde_json::json!({"kind": "torcx-package-list-v0", "value": {"packages": [{"name": "docker", "versions": [
            {"version": "17.03", "hash": format!("sha512-{}", hash.hex()), "locations": [{"url": "https://bucket/i"}]},
        ]}]}});
        Ok((list.to_string().into_bytes(), Source { url: urls[0].clone(), passed_over: Vec::new() }))
    }

    async fn fetch(&self, order: &Order, progress: Progress<'_>) -> Result<Source, FetchError> {
        progress(1, Some(2));
        durable::write(&self.disk, &order.target, &image_bytes(), Access::PUBLIC)
            .map_err(|source| FetchError::Publish { path: order.target.clone(), source })?;
        Ok(Source { url: order.urls[0].clone(), passed_over: Vec::new() })
    }

    async fn is_file(&self, path: &Path, digest: &Digest) -> io::Result<bool> {
        match self.disk.read(path, 1 << 20) {
            Ok(bytes) => Ok(Expected::of(Algorithm::Sha512, &bytes) == *digest.expected()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn update_status(&self) -> Result<Status, UpdateError> {
        let staged = self.rest().staged;
        Ok(Status {
            last_checked: 1,
            progress: 0.0,
            operation: if staged { Operation::NeedReboot } else { Operation::Idle },
            new_version: if staged && !self.rest().forgot { NEW } else { "0.0.0" }.to_owned(),
            new_size: 0,
        })
    }

    async fn update(&self, _: Progress<'_>) -> Result<Pending, UpdateError> {
        let newest = self.system() == NEW;
        let done = self.disk.effect("update", || {
            let mut rest = self.rest();
            rest.updates += 1;
            rest.staged = !newest;
        });
        done.map_err(|source| UpdateError::Bus { address: String::new(), source })?;
        Ok(Pending::Nothing)
    }

    async fn extension(&self, path: &Path, _: &str) -> Result<ExtensionRelease, ImageError> {
        Err(ImageError::NotSquashfs { path: path.to_owned() })
    }

    fn link(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        match self.disk.read(path, 4096) {
            Ok(bytes) => Ok(Some(PathBuf::from(String::from_utf8_lossy(&bytes).into_owned()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_live_system(&self) -> bool {
        true
    }

    async fn merge(&self) -> Result<(), String> {
        Ok(())
    }

    async fn merged(&self) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    async fn fleet_lock(&self, _: &FleetLock, _: FleetLockRequest) -> Result<FleetLockResponse, FetchError> {
        Ok(FleetLockResponse::Granted)
    }
}

pub(crate) fn image_path(system: &str) -> PathBuf {
    PathBuf::from(format!("/var/lib/torcx/store/{system}/docker:17.03.torcx.tgz"))
}

pub(crate) fn image_bytes() -> Vec<u8> {
    b"an image of some length".to_vec()
}

fn os_release(version: &str) -> String {
    format!("ID=coreos\nVERSION_ID={version}\nCOREOS_BOARD=amd64-usr\n")
}
