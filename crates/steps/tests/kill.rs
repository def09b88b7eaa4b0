//! Kills a real process on a real disk with SIGKILL at random moments and restarts it.
//!
//! The process is this test binary, started for the test `a_run_on_a_real_disk` with its directory in the
//! environment. It writes one byte per operation, and the test kills it after a random number of them.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use landfall_durable::{Access, Disk, DraftFile, HostDisk, Lock};
use landfall_model::step::Outcome;
use landfall_steps::events::EventStream;
use landfall_steps::{
    Applied, BootId, Confirmed, Context, Found, Key, Ledger, Outputs, Plan, Step, StepError, StepSpec,
    read_all, run,
};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use tokio_util::sync::CancellationToken;

/// `DIR:BOOT`, for the child process.
const PLACE: &str = "LANDFALL_STEPS_TEST_PLACE";
const KILLS: usize = 100;
/// A run writes about 300 bytes, so it is killed several times and still finishes.
const MAX_OPERATIONS: u64 = 90;
/// Far more than needed; a run without progress must not loop without limit.
const MAX_STARTS: usize = 2000;

const STEPS: [&str; 9] = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
/// These take effect at the next boot.
const REBOOTS: [&str; 2] = ["three", "seven"];

const TICK: u8 = b'.';
const DONE: u8 = b'D';
const REBOOT: u8 = b'R';

/// The host's disk, which writes a byte before and after every change.
#[derive(Debug)]
struct Telling(HostDisk);

#[derive(Debug)]
struct TellingDraft(Box<dyn DraftFile>);

/// Writes two markers, each of which may be written only once.
struct Marks {
    name: &'static str,
    before: Option<&'static str>,
    world: PathBuf,
}

/// Without a parent process it is a plain run from start to end, with two reboots.
#[test]
fn a_run_on_a_real_disk() {
    if let Some(place) = std::env::var_os(PLACE) {
        let place = place.into_string().unwrap();
        let (dir, boot) = place.rsplit_once(':').unwrap();
        let said = match work(Path::new(dir), boot) {
            Outcome::Done => DONE,
            Outcome::RebootNeeded { .. } => REBOOT,
            other => panic!("{other:?}"),
        };
        say(said);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("world")).unwrap();
    assert!(matches!(work(dir.path(), "a"), Outcome::RebootNeeded { step } if step == "three"));
    assert!(matches!(work(dir.path(), "a"), Outcome::RebootNeeded { step } if step == "three"));
    assert!(matches!(work(dir.path(), "b"), Outcome::RebootNeeded { step } if step == "seven"));
    assert_eq!(work(dir.path(), "c"), Outcome::Done);
    assert_eq!(work(dir.path(), "c"), Outcome::Done);
    check_world(dir.path());
}

#[test]
fn a_process_killed_at_random_moments_resumes_and_does_nothing_twice() {
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let (mut kills, mut starts, mut runs) = (0, 0, 0);
    while kills < KILLS {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("world")).unwrap();
        let mut boot = 0;
        loop {
            starts += 1;
            assert!(starts < MAX_STARTS, "{kills} kills, {runs} runs");
            let mut child = start(dir.path(), boot);
            let (said, killed) = listen_then_kill(&mut child, random.next_u64() % MAX_OPERATIONS);
            kills += usize::from(killed);
            match said.iter().find(|byte| **byte != TICK) {
                None => assert!(killed, "the process ended without a word"),
                Some(&DONE) => break,
                Some(&REBOOT) => boot += 1,
                Some(_) => panic!("{}", String::from_utf8_lossy(&said)),
            }
        }
        check_world(dir.path());
        runs += 1;
    }
    assert!(runs > 1);
}

fn start(dir: &Path, boot: u32) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_run_on_a_real_disk", "--nocapture"])
        .env(PLACE, format!("{}:{boot:x}", dir.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Returns the output of the child, and whether it was killed before it exited.
fn listen_then_kill(child: &mut Child, operations: u64) -> (Vec<u8>, bool) {
    let mut voice = child.stderr.take().unwrap();
    let mut said = Vec::new();
    voice.by_ref().take(operations).read_to_end(&mut said).unwrap();
    child.kill().unwrap();
    let killed = !child.wait().unwrap().success();
    voice.read_to_end(&mut said).unwrap();
    // A child that failed has reported the reason.
    (said, killed)
}

/// Runs the part of one process.
fn work(dir: &Path, boot: &str) -> Outcome {
    let mut plan = Plan::of("marks");
    for (index, name) in STEPS.into_iter().enumerate() {
        let before = index.checked_sub(1).map(|before| STEPS[before]);
        plan = plan.step(Marks { name, before, world: dir.join("world") });
    }
    let plan = plan.build().unwrap();
    let disk = Arc::new(Telling(HostDisk));
    let mut ledger = Ledger::open(disk, &dir.join("state"), &plan, BootId::parse(boot).unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(run(&plan, &mut ledger, &EventStream::default(), &CancellationToken::new())).unwrap()
}

fn check_world(dir: &Path) {
    let mut marks = HostDisk.names(&dir.join("world")).unwrap();
    marks.sort();
    let mut expected: Vec<_> = STEPS
        .iter()
        .flat_map(|name| ["a", "b"].map(|half| OsString::from(format!("{name}-{half}"))))
        .collect();
    expected.sort();
    assert_eq!(marks, expected, "each mark once, and none that says `twice`");
    let records = read_all(&HostDisk, &dir.join("state"), "marks").unwrap();
    assert_eq!((records.len(), records[0].ended()), (1, Some(Outcome::Done)));
    let mut files = HostDisk.names(&dir.join("state/marks").join(records[0].attempt())).unwrap();
    files.sort();
    assert_eq!(files, ["ledger-0.jsonl", "ledger-1.jsonl"], "no draft is left");
}

fn say(byte: u8) {
    // Bypasses the output capture of the test harness; write errors after the parent's exit are ignored.
    let _ = io::stderr().write_all(&[byte]);
}

fn telling<T>(act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if std::env::var_os(PLACE).is_none() {
        return act();
    }
    say(TICK);
    let result = act();
    say(TICK);
    result
}

// === impl Marks ===

impl Marks {
    fn path(&self, half: char) -> PathBuf {
        self.world.join(format!("{}-{half}", self.name))
    }

    fn is_reboot(&self) -> bool {
        REBOOTS.contains(&self.name)
    }

    fn outputs(&self) -> Result<Outputs, StepError> {
        Ok(Outputs::none().give(&Key::<String>::new(self.name), &format!("from {}", self.name))?)
    }

    fn is_staged_in_this_boot(&self, context: &Context<'_>) -> bool {
        self.is_reboot() && std::fs::read_to_string(self.path('b')).unwrap() == context.boot().as_str()
    }
}

impl Step for Marks {
    fn spec(&self) -> StepSpec {
        StepSpec::new(self.name, format!("Mark {}", self.name))
            .needs(self.before.iter().map(|name| Key::<String>::new(name).slot()))
            .gives([Key::<String>::new(self.name).slot()])
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        if let Some(before) = self.before {
            assert_eq!(context.get(&Key::<String>::new(before))?, format!("from {before}"));
        }
        if !self.path('b').exists() {
            return Ok(Found::Needed);
        }
        if self.is_staged_in_this_boot(context) {
            return Ok(Found::RebootNeeded(self.outputs()?));
        }
        Ok(Found::Satisfied { reason: "marked".into(), outputs: self.outputs()? })
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        for half in ['a', 'b'] {
            let path = self.path(half);
            if path.exists() && half == 'a' {
                continue;
            }
            // The second marker names its boot. It is written aside and linked, because a link is created completely
            // or not at all.
            let aside = self.world.with_file_name("aside");
            let _ = std::fs::remove_file(&aside);
            File::create_new(&aside).unwrap().write_all(context.boot().as_str().as_bytes()).unwrap();
            let twice = path.with_extension("twice");
            telling(|| std::fs::hard_link(&aside, &path))
                .or_else(|_| OpenOptions::new().create(true).append(true).open(twice).map(drop))
                .unwrap();
        }
        Ok(if self.is_reboot() {
            Applied::RebootNeeded(self.outputs()?)
        } else {
            Applied::Done(self.outputs()?)
        })
    }

    async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
        if self.is_staged_in_this_boot(context) {
            return Err(StepError::never("confirmed before the reboot"));
        }
        Ok(Confirmed::Holds)
    }
}

// === impl Telling ===

impl Disk for Telling {
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        self.0.read(path, limit)
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.0.names(dir)
    }

    fn open_draft(&self, path: &Path, access: Access) -> io::Result<Box<dyn DraftFile>> {
        telling(|| self.0.open_draft(path, access))
            .map(|file| Box::new(TellingDraft(file)) as Box<dyn DraftFile>)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        telling(|| self.0.sync_file(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        telling(|| self.0.rename(from, to))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        telling(|| self.0.sync_dir(dir))
    }

    fn sync_all(&self) -> io::Result<()> {
        // Killing a process loses no data that the kernel has, so there is no need to wait for other writes of the
        // machine.
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        telling(|| self.0.remove_file(path))
    }

    fn create_dir(&self, path: &Path, access: Access) -> io::Result<()> {
        telling(|| self.0.create_dir(path, access))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        self.0.lock(path)
    }
}

impl DraftFile for TellingDraft {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        telling(|| self.0.write_all(bytes))
    }

    fn sync(&mut self) -> io::Result<()> {
        telling(|| self.0.sync())
    }
}
