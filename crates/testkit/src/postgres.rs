//! A real PostgreSQL server with its own directory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use landfall_pki::{Authority, Leaf, Purpose};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{Need, Process, free_port};

const START_LIMIT: Duration = Duration::from_mins(2);
/// Debian's directory with the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// The server refuses to run as root; the package creates this user.
const USER: &str = "postgres";

/// Whether commits survive a crash of the machine. Tests without power cuts are faster without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    Real,
    None,
}

/// A server that runs until dropped.
#[derive(Debug)]
pub struct Postgres {
    directory: TempDir,
    port: u16,
    databases: AtomicU32,
    durability: Durability,
    /// The server ends with the thread that started it, so a dedicated thread lives as long as this value.
    server: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    id: u32,
    end: Sender<Signal>,
    thread: JoinHandle<()>,
}

// === impl Postgres ===

impl Postgres {
    pub const NEEDS: &'static [Need] = &[Need::Program("pg_ctlcluster"), Need::Program("psql")];
    pub const OWNER: &'static str = "hub";
    pub const PASSWORD: &'static str = "sea-and-shore-2";

    /// Returns the server shared by the running tests of a process.
    pub fn shared() -> Result<Arc<Self>> {
        static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = shared.upgrade() {
            return Ok(running);
        }
        let started = Arc::new(Self::start(Durability::None)?);
        *shared = Arc::downgrade(&started);
        Ok(started)
    }

    pub fn start(durability: Durability) -> Result<Self> {
        let directory = tempfile::tempdir().context("make a folder for PostgreSQL")?;
        let path = |name: &str| directory.path().join(name);
        // The server's user needs access to its own directories inside.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711))?;
        let authority = Authority::new("database authority", 7)?;
        let pair = authority.issue(&Leaf::new("postgres", Purpose::Serve).names(["localhost".to_owned()]))?;
        fs::write(path("ca.crt"), authority.certificate())?;
        fs::write(path("password"), Self::PASSWORD)?;
        for folder in ["data", "socket"] {
            fs::create_dir(path(folder))?;
        }
        for (name, content) in [("server.crt", &pair.certificate), ("server.key", pair.key.expose())] {
            fs::write(path(name), content)?;
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o600))?;
        }
        fs::set_permissions(path("password"), fs::Permissions::from_mode(0o644))?;
        if rustix::process::geteuid().is_root() {
            let owned = ["data", "socket", "server.crt", "server.key"].map(path);
            run(Command::new("chown").arg(format!("{USER}:")).args(owned))?;
        }
        let mut initialise = as_user(&program("initdb")?);
        initialise.args(["--username", Self::OWNER, "--encoding", "UTF8", "--locale", "C", "--no-sync"]);
        initialise.args(["--auth-local", "trust", "--auth-host", "scram-sha-256", "--pwfile"]);
        run(initialise.arg(path("password")).arg("--pgdata").arg(path("data")))?;
        let postgres = Self {
            port: free_port()?,
            databases: AtomicU32::new(0),
            server: Mutex::new(None),
            durability,
            directory,
        };
        postgres.serve()?;
        Ok(postgres)
    }

    /// Stops the server as in a power cut: without cleanup, with broken connections.
    pub fn kill(&self) -> Result<()> {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        server.map_or(Ok(()), |server| server.end(Signal::QUIT))
    }

    /// Starts a server that was killed.
    pub fn serve(&self) -> Result<()> {
        let (port, folder) = (self.port, self.directory.path().to_owned());
        let program = program("postgres")?;
        let durable = self.durability == Durability::Real;
        let (started, outcome) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let process = serve(&program, &folder, port, durable);
            let (process, said) = match process {
                Ok(process) => (Some(process.1), Ok(process.0)),
                Err(error) => (None, Err(error)),
            };
            // The send fails only if the test has already ended.
            let _ = started.send(said);
            if let Some(mut process) = process {
                let signal = ended.recv().unwrap_or(Signal::INT);
                let _ = process.signal(signal);
                let _ = process.wait(START_LIMIT);
            }
        });
        let id = outcome.recv().context("wait for PostgreSQL")??;
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(Running { id, end, thread });
        Ok(())
    }

    /// Creates an empty database and returns its URL over the socket, which needs no password.
    pub fn database(&self) -> Result<String> {
        let name = format!("landfall_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"))?;
        let socket = self.path("socket").display().to_string().replace('/', "%2f");
        Ok(format!("postgres://{}@{socket}:{}/{name}", Self::OWNER, self.port))
    }

    /// Returns the URL of the same database over TCP and TLS, with the password in a file.
    pub fn encrypted(&self, url: &str) -> String {
        let name = url.rsplit('/').next().unwrap_or_default();
        format!(
            "postgres://{}@localhost:{}/{name}?sslmode=verify-full&ca-file={}&password-file={}",
            Self::OWNER,
            self.port,
            self.path("ca.crt").display(),
            self.path("password").display()
        )
    }

    /// Runs a statement and returns its output, one row per line.
    pub fn sql(&self, database: &str, statement: &str) -> Result<String> {
        let mut command = Command::new("psql");
        command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--username", Self::OWNER]);
        command.arg("--host").arg(self.path("socket")).args(["--port", &self.port.to_string()]);
        run(command.args(["--dbname", database, "--command", statement]))
    }

    /// Returns the ID of the server's main process; `None` while it is stopped.
    pub fn id(&self) -> Option<u32> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|running| running.id)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Its files are removed as well, so no orderly shutdown is needed.
        let _ = self.kill();
    }
}

fn serve(program: &Path, folder: &Path, port: u16, durable: bool) -> Result<(u32, Process)> {
    let on = if durable { "on" } else { "off" };
    let settings = [
        format!("port={port}"),
        "listen_addresses=localhost".to_owned(),
        format!("unix_socket_directories={}", folder.join("socket").display()),
        "ssl=on".to_owned(),
        format!("ssl_cert_file={}", folder.join("server.crt").display()),
        format!("ssl_key_file={}", folder.join("server.key").display()),
        format!("fsync={on}"),
        format!("full_page_writes={on}"),
        "max_connections=200".to_owned(),
    ];
    let mut wanted = as_user(program);
    wanted.arg("-D").arg(folder.join("data"));
    for setting in settings {
        wanted.args(["-c", &setting]);
    }
    let mut process = Process::start("postgres", Path::new(wanted.get_program()), folder, |command| {
        command.args(wanted.get_args());
    })?;
    let socket = folder.join("socket").display().to_string();
    process.wait_until("PostgreSQL answers", START_LIMIT, || {
        let mut ask = Command::new("psql");
        ask.args([
            "--no-psqlrc",
            "--username",
            Postgres::OWNER,
            "--host",
            &socket,
            "--port",
            &port.to_string(),
        ]);
        run(ask.args(["--dbname", "postgres", "--command", "SELECT 1"])).ok()
    })?;
    Ok((process.id(), process))
}

/// Returns the program of the newest installed version.
fn program(name: &str) -> Result<PathBuf> {
    let folders = fs::read_dir(VERSIONS).context("look for PostgreSQL")?.flatten();
    let found = folders.map(|entry| entry.path().join("bin").join(name)).filter(|path| path.is_file());
    found.max().with_context(|| format!("find `{name}` in `{VERSIONS}`"))
}

/// Runs the program as the server's user.
///
/// It still ends with its parent: the kernel clears that setting on a change of user, so it is set
/// afterwards.
fn as_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if rustix::process::geteuid().is_root() {
        command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]);
    }
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.current_dir("/").output().with_context(|| format!("start `{name}`"))?;
    ensure!(output.status.success(), "`{name}`: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

// === impl Running ===

impl Running {
    fn end(self, signal: Signal) -> Result<()> {
        // The thread ends only after the server.
        let _ = self.end.send(signal);
        ensure!(self.thread.join().is_ok(), "the thread of PostgreSQL panicked");
        Ok(())
    }
}
