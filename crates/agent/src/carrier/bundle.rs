//! A carrier for the logs of a failure.
//!
//! When the verdict changes to failed or hung, it collects one bundle and uploads it to the hub. The hub's
//! pages then have the logs even if the machine is removed.
//!
//! The carrier receives every report, as all carriers do, and ignores most of them. A separate process
//! collects the bundle, so that the agent's memory does not grow. The bundle stays on disk until the hub has
//! stored it.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hyper::Method;
use landfall_durable::{self as durable, Access, Disk as _, HostDisk};
use landfall_fetch::{Algorithm, Hasher};
use landfall_model::chain;
use landfall_model::envelope::{ReportId, ReportMessage};
use landfall_model::report::State;
use rustix::process::{Pid, setpriority_process};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use super::line::{Errand, HubError, Line, Sent};
use super::{Carrier, CarryError, message, runtime};
use crate::keeper::{KeepError, signing_key};

/// Directory below the state directory; it contains at most one bundle.
const FOLDER: &str = "bundle";
const SUFFIX: &str = ".tar.gz";
/// Record of the failures whose bundles were uploaded, so that none is uploaded twice.
const BROUGHT: &str = "brought.json";
/// Standard error of the collecting process.
const SAID: &str = "making.log";
/// Compressed size limit. A machine's bundle has a few megabytes; larger ones are left to `landfall gather`.
const MAX_BUNDLE: u64 = 64 << 20;
/// Free disk space required beside the bundle: a full disk may be the cause of the failure.
const MIN_FREE: u64 = 256 << 20;
/// Bundles per boot. A recurring cause counts once; this limits a sequence of different causes.
const MAX_FAILURES: usize = 4;
/// Attempts per failure. A collection that crashes its process or the agent must not be retried without
/// limit.
const MAX_TRIES: u32 = 2;
/// Time limit of the collecting process, in case the deadlines of its parts do not end it.
const MAKING_LIMIT: Duration = Duration::from_mins(10);
/// Poll interval for the collecting process.
const LOOK: Duration = Duration::from_millis(250);
/// The lowest CPU priority, and the first victim of the OOM killer. The process shares the agent's memory
/// limit.
const PRIORITY: i32 = 19;
const FIRST_TO_GO: &str = "1000";
/// Time limit of the response. An upload gets more time by its size, at this minimum rate per second.
const PATIENCE: Duration = Duration::from_secs(60);
const THINNEST_LINE: u64 = 64 << 10;
/// Prefix of the signed text, so that the signature is valid for bundles only.
const SIGNED: &str = "landfall-bundle-v1";
const MAX_BROUGHT: u64 = 64 << 10;
/// Characters of the process's error output that are logged.
const MAX_WORDS: usize = 400;

/// A carrier that uploads bundles to a hub.
#[expect(missing_debug_implementations, reason = "holds the way to a token")]
pub struct Bundle {
    line: Line,
    maker: Maker,
    state: PathBuf,
    /// Cached content of the record file, including changes that the disk rejected. `None` before the first
    /// read.
    brought: Option<Brought>,
    runtime: Runtime,
}

/// The binary that collects a bundle, and the root directory it reads.
#[derive(Clone, Debug)]
pub struct Maker {
    /// This binary as `/proc/self/exe`, which works even after its file was replaced.
    pub program: PathBuf,
    pub root: PathBuf,
}

/// The failures of one boot whose bundles were uploaded or permanently skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Brought {
    boot: Option<String>,
    failures: Vec<String>,
    /// The failure whose bundle is not collected yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    making: Option<Making>,
}

/// Number of attempts to collect a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Making {
    failure: String,
    tries: u32,
}

#[derive(Debug, thiserror::Error)]
enum BundleError {
    #[error("cannot serialize the record of sent bundles")]
    Serialize(#[source] serde_json::Error),
    #[error("no hub knows a node by the name `{0}`")]
    Name(String),
    #[error("cannot use `{}`", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot record delivered bundles")]
    Remember(#[source] durable::Error),
    #[error("cannot sign the bundle")]
    Sign(#[source] KeepError),
    #[error("the disk has less than {} MiB to spare", (MIN_FREE + MAX_BUNDLE) >> 20)]
    NoRoom,
    #[error("no bundle was made: {0}")]
    NotMade(String),
    #[error("no bundle after {MAX_TRIES} attempts: `dmesg` may report a lack of memory")]
    Exhausted,
    #[error("no bundle was made within {} s", MAKING_LIMIT.as_secs())]
    Hung,
    #[error("the bundle is larger than {} MiB", MAX_BUNDLE >> 20)]
    TooLarge,
}

// === impl Bundle ===

impl Bundle {
    /// Creates a carrier to a hub with the same options as for reports. `authority` is the CA file; a token
    /// or client certificate authenticates the agent. `state` is the agent's state directory, which contains
    /// the key that signs its reports.
    pub fn new(
        address: &str,
        authority: Option<&Path>,
        token: Option<PathBuf>,
        certificate: Option<(&Path, &Path)>,
        maker: Maker,
        state: PathBuf,
    ) -> Result<Self, HubError> {
        let line = Line::new(address, authority, token, certificate)?;
        Ok(Self { line, maker, state, brought: None, runtime: runtime().map_err(HubError::Network)? })
    }

    fn folder(&self) -> PathBuf {
        self.state.join(FOLDER)
    }

    /// Collects the bundle for this report, unless it exists, and returns its path. The attempt is recorded
    /// on disk before it starts.
    fn made(&self, id: ReportId, brought: &mut Brought, failure: &str) -> Result<PathBuf, BundleError> {
        let folder = self.folder();
        let path = folder.join(format!("{id}{SUFFIX}"));
        if path.exists() {
            return Ok(path);
        }
        durable::create_dir(&HostDisk, &folder, Access::PRIVATE_DIR).map_err(BundleError::Remember)?;
        // Leftovers of an abandoned report or a killed process.
        for name in HostDisk.names(&folder).map_err(failed(&folder))? {
            if name.to_string_lossy().contains(SUFFIX) {
                std::fs::remove_file(folder.join(&name)).map_err(failed(&folder))?;
            }
        }
        let free = rustix::fs::statvfs(&folder).map_err(|error| failed(&folder)(error.into()))?;
        if free.f_bavail.saturating_mul(free.f_frsize) < MIN_FREE + MAX_BUNDLE {
            return Err(BundleError::NoRoom);
        }
        let begun = brought.begun(failure).ok_or(BundleError::Exhausted)?;
        self.write(&begun)?;
        *brought = begun;
        let part = folder.join(format!("{id}{SUFFIX}.part"));
        let made = self.maker.make(&part, &folder.join(SAID));
        let kept =
            made.and_then(|()| durable::publish(&HostDisk, &part, &path).map_err(BundleError::Remember));
        if kept.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        kept.map(|()| path)
    }

    fn send(&self, node: &str, path: &Path) -> Result<(), CarryError> {
        let later = |error: BundleError| CarryError::Later(Box::new(error));
        let (digest, length) = hash(path).map_err(failed(path)).map_err(later)?;
        let key = signing_key(&HostDisk, &self.state).map_err(BundleError::Sign).map_err(later)?;
        let signature = BASE64.encode(key.sign(format!("{SIGNED}\n{node}\n{digest}").as_bytes()));
        let errand = Errand {
            method: Method::PUT,
            path: &format!("/api/v1/nodes/{node}/bundles/{digest}"),
            kind: "application/gzip",
            header: Some(("landfall-signature", signature)),
            body: Sent::File(path, length),
            patience: PATIENCE + Duration::from_secs(length / THINNEST_LINE),
        };
        self.runtime.block_on(self.line.run(&errand)).map_err(|error| match error.judged() {
            // The hub may not know the node yet, or may have pinned an older key. A newer report would have
            // the same logs.
            CarryError::NotPermitted(error) => CarryError::Later(error),
            judged => judged,
        })
    }

    fn brought(&self) -> Brought {
        if let Some(known) = &self.brought {
            return known.clone();
        }
        let read = HostDisk.read(&self.folder().join(BROUGHT), MAX_BROUGHT).ok();
        // An unreadable record only costs one more bundle.
        read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    /// Records that the bundle of this failure is neither collected nor uploaded again. The record also
    /// counts in memory if the disk rejects it.
    fn remember(&mut self, mut brought: Brought, failure: String, path: Option<&Path>) {
        brought.add(failure);
        let written = self.write(&brought);
        if let Some(path) = path
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove an obsolete bundle");
        }
        // The removed bundle has freed space on a full disk.
        if let Err(error) = written.or_else(|_| self.write(&brought)) {
            tracing::warn!(error = %chain(&error), "cannot store the list of delivered bundles");
        }
        self.brought = Some(brought);
    }

    fn write(&self, brought: &Brought) -> Result<(), BundleError> {
        durable::create_dir(&HostDisk, &self.folder(), Access::PRIVATE_DIR).map_err(BundleError::Remember)?;
        let bytes = serde_json::to_vec(brought).map_err(BundleError::Serialize)?;
        durable::write(&HostDisk, &self.folder().join(BROUGHT), &bytes, Access::PRIVATE)
            .map_err(BundleError::Remember)
    }
}

impl Carrier for Bundle {
    fn name(&self) -> &'static str {
        "bundle"
    }

    fn carry(&mut self, id: ReportId, envelope: &[u8]) -> Result<(), CarryError> {
        let never = |error: BundleError| CarryError::Never(Box::new(error));
        let message = message(envelope)?;
        let Some(failure) = failure(&message) else { return Ok(()) };
        let mut brought = self.brought().of(&message);
        if !brought.wants(&failure) {
            return Ok(());
        }
        let node = &message.node.hostname;
        if !is_name(node) {
            return Err(never(BundleError::Name(node.clone())));
        }
        let made = self.made(id, &mut brought, &failure);
        self.brought = Some(brought.clone());
        let path = match made {
            Ok(path) => path,
            // Disk errors may be temporary. Any other failure is final and the bundle is not attempted again.
            Err(error @ (BundleError::NoRoom | BundleError::File { .. } | BundleError::Remember(_))) => {
                return Err(CarryError::Later(Box::new(error)));
            }
            Err(error) => {
                self.remember(brought, failure, None);
                return Err(never(error));
            }
        };
        let sent = self.send(node, &path);
        if matches!(sent, Ok(()) | Err(CarryError::Never(_))) {
            self.remember(brought, failure, Some(&path));
        }
        sent
    }
}

/// Returns the identity of the failure in a report: its cause if known; `None` if the node has not failed.
fn failure(message: &ReportMessage) -> Option<String> {
    let verdict = &message.report.verdict;
    let cause = || verdict.cause.as_ref().map(ToString::to_string);
    matches!(verdict.state, State::Failed | State::Hung)
        .then(|| cause().unwrap_or_else(|| verdict.state.name().to_owned()))
}

/// Whether the name is valid as the node's path segment in a bundle URL.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    name.bytes().all(plain) && name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
}

fn hash(path: &Path) -> io::Result<(String, u64)> {
    let (mut file, mut hasher, mut length) = (File::open(path)?, Hasher::new(Algorithm::Sha256), 0);
    let mut piece = vec![0; 64 << 10];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok((hasher.finish().hex().to_owned(), length)),
            count => {
                hasher.add(&piece[..count]);
                length += count as u64;
            }
        }
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> BundleError {
    move |source| BundleError::File { path: path.to_owned(), source }
}

// === impl Brought ===

impl Brought {
    /// Returns the record if it is of the report's boot, else an empty one.
    fn of(self, message: &ReportMessage) -> Self {
        let boot = &message.node.boot_id;
        if self.boot == *boot { self } else { Self { boot: boot.clone(), ..Self::default() } }
    }

    /// Whether this failure is the first of its kind in this boot and within the limit.
    fn wants(&self, failure: &String) -> bool {
        !self.failures.contains(failure) && self.failures.len() < MAX_FAILURES
    }

    fn add(&mut self, failure: String) {
        self.making = None;
        self.failures.push(failure);
    }

    /// Returns the record with one more attempt for this failure, or `None` when all attempts are used.
    fn begun(&self, failure: &str) -> Option<Self> {
        let tries = self.making.as_ref().filter(|making| making.failure == failure).map_or(0, |it| it.tries);
        let making = Some(Making { failure: failure.to_owned(), tries: tries + 1 });
        (tries < MAX_TRIES).then(|| Self { making, ..self.clone() })
    }
}

// === impl Maker ===

impl Maker {
    fn make(&self, to: &Path, said: &Path) -> Result<(), BundleError> {
        let words = File::create(said).map_err(failed(said))?;
        let mut child = Command::new(&self.program)
            .args(["agent", "--once", "--format", "gzip", "--root"])
            .arg(&self.root)
            .arg("-o")
            .arg(to)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(words)
            .spawn()
            .map_err(failed(&self.program))?;
        if let Some(id) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            // Both settings are optional: the process works without them.
            let _ = setpriority_process(Some(id), PRIORITY);
            let _ = std::fs::write(format!("/proc/{}/oom_score_adj", id.as_raw_nonzero()), FIRST_TO_GO);
        }
        let made = watch(&mut child, to);
        if made.is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let status = made?;
        if status.success() {
            return Ok(());
        }
        // A killed process leaves no error message.
        let words = Some(last_words(said)).filter(|words| !words.is_empty());
        Err(BundleError::NotMade(words.unwrap_or_else(|| status.to_string())))
    }
}

/// Waits for the process to exit. Fails if the bundle becomes too large or the time limit passes.
fn watch(child: &mut Child, to: &Path) -> Result<ExitStatus, BundleError> {
    let until = Instant::now() + MAKING_LIMIT;
    loop {
        let ended = child.try_wait().map_err(failed(to))?;
        let length = std::fs::metadata(to).map_or(0, |metadata| metadata.len());
        if length > MAX_BUNDLE {
            return Err(BundleError::TooLarge);
        }
        if let Some(status) = ended {
            return Ok(status);
        }
        if Instant::now() >= until {
            return Err(BundleError::Hung);
        }
        thread::park_timeout(LOOK);
    }
}

fn last_words(path: &Path) -> String {
    let said = HostDisk.read(path, MAX_BROUGHT).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let line = said.lines().rfind(|line| line.starts_with("error")).or(said.lines().last()).unwrap_or("");
    line.chars().filter(|c| !c.is_control()).take(MAX_WORDS).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::mpsc;

    use jiff::Timestamp;
    use landfall_diagnose::{Engine, RuleSet};
    use landfall_model::Cause;
    use landfall_model::identity::NodeIdentity;
    use landfall_testkit::{free_port, serve_http};

    use super::*;
    use crate::keeper::{Keeper, SignedReport};

    /// Returns a report of a node that failed with this cause.
    fn report(keeper: &mut Keeper<'_>, boot: &str, cause: &str) -> SignedReport {
        let mut report = Engine::new(RuleSet::embedded().unwrap()).unwrap().open().finish();
        report.verdict.state = State::Failed;
        report.verdict.cause = Some(Cause::new(cause).unwrap());
        let node = NodeIdentity {
            hostname: "n1".to_owned(),
            machine_id: None,
            boot_id: Some(boot.to_owned()),
            os: None,
            architecture: None,
            provider_id: None,
        };
        keeper.keep(node, report, Timestamp::now()).unwrap().clone()
    }

    /// A replacement for the landfall binary that records each run.
    fn maker(folder: &Path, script: &str) -> Maker {
        let program = folder.join("maker");
        std::fs::write(&program, format!("#!/bin/sh\necho made >>{}/ran\n{script}\n", folder.display()))
            .unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        Maker { program, root: "/".into() }
    }

    /// A hub that reads each request to its end and returns this status. The channel yields the received
    /// bytes.
    fn hub(status: u16) -> (String, mpsc::Receiver<Vec<u8>>) {
        let (tell, heard) = mpsc::channel();
        let address = serve_http(move |request| {
            tell.send(request.body).unwrap();
            (status, String::new())
        });
        (address.unwrap(), heard)
    }

    fn ran(folder: &Path) -> usize {
        std::fs::read_to_string(folder.join("ran")).unwrap_or_default().lines().count()
    }

    #[test]
    fn a_bundle_that_is_not_brought_yet_is_not_made_again_and_one_that_cannot_be_made_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::open(&HostDisk, folder.path()).unwrap();
        let failed = report(&mut keeper, "b1", "swap-enabled");
        let (id, bytes) = (failed.message.id, failed.envelope);
        // Nothing listens on this port.
        let address = format!("http://127.0.0.1:{}", free_port().unwrap());
        let bundle = |script: &str| {
            let maker = maker(folder.path(), script);
            Bundle::new(&address, None, None, None, maker, folder.path().to_owned()).unwrap()
        };
        // The eighth argument is the output file.
        let mut good = bundle("echo bundle >\"$8\"");
        for _ in 0..2 {
            let carried = good.carry(id, &bytes);
            assert!(matches!(carried, Err(CarryError::Later(_))), "{carried:?}");
        }
        assert_eq!(ran(folder.path()), 1);
        let kept = folder.path().join(FOLDER).join(format!("{id}{SUFFIX}"));
        assert_eq!(std::fs::read(kept).unwrap(), b"bundle\n");
        // Another failure replaces it; a bundle that cannot be collected is not attempted again.
        let second = report(&mut keeper, "b1", "clock-skew");
        let (second, bytes) = (second.message.id, second.envelope);
        let mut bad = bundle("echo 'error: no way' >&2; exit 1");
        let carried = bad.carry(second, &bytes);
        let Err(CarryError::Never(error)) = carried else { panic!("{carried:?}") };
        assert!(error.to_string().contains("no way"), "{error}");
        assert_eq!(ran(folder.path()), 2);
        bad.carry(second, &bytes).unwrap();
        assert_eq!(ran(folder.path()), 2, "it was tried again");
        let left = std::fs::read_dir(folder.path().join(FOLDER)).unwrap().flatten();
        let left: Vec<_> = left.filter(|entry| entry.path().to_string_lossy().contains(SUFFIX)).collect();
        assert!(left.is_empty(), "{left:?}");
    }

    /// A stored or permanently rejected bundle is not sent again, even if the record cannot be written.
    #[test]
    fn a_bundle_the_hub_has_seen_is_sent_once_whatever_the_disk_takes() {
        for (status, good) in [(201, true), (422, false)] {
            let folder = tempfile::tempdir().unwrap();
            let mut keeper = Keeper::open(&HostDisk, folder.path()).unwrap();
            let failed = report(&mut keeper, "b1", "swap-enabled");
            let (id, bytes) = (failed.message.id, failed.envelope);
            // A directory blocks the path of the record.
            std::fs::create_dir_all(folder.path().join(FOLDER).join(BROUGHT).join("x")).unwrap();
            let made = folder.path().join(FOLDER).join(format!("{id}{SUFFIX}"));
            std::fs::write(&made, "bundle").unwrap();
            let (address, heard) = hub(status);
            let maker = maker(folder.path(), "exit 1");
            let mut bundle =
                Bundle::new(&address, None, None, None, maker, folder.path().to_owned()).unwrap();
            let carried = bundle.carry(id, &bytes);
            let expected = if good { carried.is_ok() } else { matches!(carried, Err(CarryError::Never(_))) };
            assert!(expected && !made.exists(), "{status}: {carried:?}");
            bundle.carry(id, &bytes).unwrap();
            assert_eq!(heard.try_iter().collect::<Vec<_>>(), [b"bundle"], "{status}");
            assert_eq!(ran(folder.path()), 0);
        }
    }

    /// The hub rejects the new key of a reinstalled machine until an operator deletes the node.
    #[test]
    fn a_bundle_that_is_not_permitted_waits() {
        let folder = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::open(&HostDisk, folder.path()).unwrap();
        let failed = report(&mut keeper, "b1", "swap-enabled");
        let (address, _heard) = hub(403);
        let maker = maker(folder.path(), "exit 1");
        let mut bundle = Bundle::new(&address, None, None, None, maker, folder.path().to_owned()).unwrap();
        let made = folder.path().join(FOLDER).join(format!("{}{SUFFIX}", failed.message.id));
        std::fs::create_dir_all(folder.path().join(FOLDER)).unwrap();
        std::fs::write(&made, "bundle").unwrap();
        let carried = bundle.carry(failed.message.id, &failed.envelope);
        assert!(matches!(carried, Err(CarryError::Later(_))) && made.exists(), "{carried:?}");
    }

    /// Each collection exhausts memory and takes the agent down with it.
    #[test]
    fn a_bundle_that_ends_the_agent_is_begun_twice_and_then_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::open(&HostDisk, folder.path()).unwrap();
        let failed = report(&mut keeper, "b1", "swap-enabled");
        let (id, bytes) = (failed.message.id, failed.envelope);
        let agent = || {
            let maker = maker(folder.path(), "kill -9 $$");
            Bundle::new("http://127.0.0.1:1", None, None, None, maker, folder.path().to_owned()).unwrap()
        };
        for tries in 1..=MAX_TRIES {
            let killed = agent();
            let mut brought = killed.brought().of(&failed.message);
            assert!(killed.made(failed.message.id, &mut brought, "swap-enabled").is_err());
            assert_eq!(ran(folder.path()), tries as usize);
        }
        let carried = agent().carry(id, &bytes);
        assert!(matches!(carried, Err(CarryError::Never(_))), "{carried:?}");
        agent().carry(id, &bytes).unwrap();
        assert_eq!(ran(folder.path()), MAX_TRIES as usize);
        // Another failure has its own attempts.
        assert!(agent().brought().of(&failed.message).begun("clock-skew").is_some());
        // If only the collecting process is killed, the agent gives up immediately and reports the signal.
        let second = report(&mut keeper, "b1", "clock-skew");
        let carried = agent().carry(second.message.id, &second.envelope);
        let Err(CarryError::Never(error)) = carried else { panic!("{carried:?}") };
        assert!(error.to_string().contains("SIGKILL"), "{error}");
    }

    #[test]
    fn each_failure_of_a_boot_counts_once_and_there_is_an_end_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::open(&HostDisk, folder.path()).unwrap();
        let mut brought = Brought::default();
        let mut add = |boot: &str, cause: &str| {
            let message = report(&mut keeper, boot, cause).message;
            let failure = failure(&message).unwrap();
            brought = std::mem::take(&mut brought).of(&message);
            let wanted = brought.wants(&failure);
            if wanted {
                brought.add(failure);
            }
            wanted
        };
        assert!(add("b1", "a") && !add("b1", "a") && add("b1", "b"));
        assert!(add("b2", "a"), "another boot");
        assert!(add("b2", "b") && add("b2", "c") && add("b2", "d") && !add("b2", "e"));
        let mut fine = report(&mut keeper, "b1", "a");
        fine.message.report.verdict.state = State::Running;
        assert_eq!(failure(&fine.message), None);
    }
}
