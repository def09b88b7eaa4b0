use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, ValueEnum};
use landfall_node::environment::HostEnvironment;
use landfall_node::prepare::decision::{Backend, Decision};
use landfall_node::prepare::request::{self, FleetLock, Request, Trust};
use landfall_node::prepare::run::Other;
use landfall_node::prepare::verify::Policy;
use landfall_node::prepare::version::KubeVersion;
use landfall_node::prepare::why::Why;
use landfall_node::prepare::{DecideError, decide, profile, show, template};

use super::Format;
use super::status::json;
use super::work::{self, Ask};
use crate::exit::{Exit, Failure};
use crate::{output, runtime};

/// Lay down the right runtime for the cluster, verified, exactly once, then let the kubelet start
///
/// The cluster's version decides which runtime fits; signed lists say where it is for the operating system that runs and
/// for the one that will. `kubelet.env` is written last. An interrupted run resumes where it stopped.
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall node prepare --dry-run
  landfall node prepare --dry-run --output json | jq .reboot
  landfall node prepare --upgrade-os=false --manifest-mirror 'https://mirror.corp/{{.Board}}/{{.OSVersion}}/torcx_manifest.json'

Exit codes: 0 prepared, or prepared before · 1 failed · 69 a server did not respond · 75 waiting for another process or node · 77 refused by \
the version-skew policy · 100 reboot, then run again")]
pub(crate) struct Prepare {
    #[command(flatten)]
    flags: Flags,

    /// Print the whole decision and change nothing
    #[arg(long)]
    dry_run: bool,

    /// How a reboot comes about when one is needed
    #[arg(long, value_enum, default_value_t = RebootBy::Exit, overrides_with = "reboot")]
    reboot: RebootBy,

    /// Abandon an unfinished run, whatever its options, and decide again
    #[arg(long)]
    start_over: bool,

    /// Format of the decision of a dry run, or of the final status (text goes to standard error only)
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,

    /// Write the status to this node of the cluster, if it exists already
    #[arg(long, value_name = "NAME", env = "NODE")]
    node_name: Option<String>,

    /// The node's root folder: every path but that of `--ca-file` is below it
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum RebootBy {
    /// Exit with code 100 and leave it to the caller
    Exit,
    /// Ask systemd for it
    Systemd,
    /// Create `/run/reboot-required` for the tool that reboots machines here, such as kured, and exit with code 100
    Required,
}

/// What decides what is done.
#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own on the command line")]
pub(super) struct Flags {
    /// Access to the API server
    #[arg(long, value_name = "FILE", default_value = request::KUBECONFIG)]
    kubeconfig: PathBuf,

    /// Ask for an update of the operating system first, and wait for it
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = BoolishValueParser::new())]
    upgrade_os: bool,

    /// Leave the runtime alone; only write `kubelet.env`
    #[arg(long, value_name = "BOOL", default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = BoolishValueParser::new())]
    torcx_skip_setup: bool,

    /// Trust lists of images without looking at their signatures
    #[arg(long, value_name = "BOOL", default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = BoolishValueParser::new())]
    no_verify_signatures: bool,

    /// Take this Kubernetes version instead of the cluster's
    #[arg(long, value_name = "VERSION")]
    force_kube_version: Option<String>,

    /// Where the lists of torcx images are; `{{.Board}}` and `{{.OSVersion}}` are replaced
    #[arg(long, value_name = "URL", default_value = template::MANIFEST_URL)]
    torcx_manifest_url: String,

    /// Further places of the same lists, asked in turn
    #[arg(long, value_name = "URL")]
    manifest_mirror: Vec<String>,

    /// Where extension images and their `SHA256SUMS` are; `{{.Extension}}` is replaced; several are mirrors
    #[arg(long, value_name = "URL", default_value = request::EXTENSIONS_URL)]
    extension_url: Vec<String>,

    /// The torcx profile to make when none is chosen
    #[arg(long, value_name = "NAME", default_value = request::PROFILE)]
    torcx_profile: String,

    /// Accepted for old units; profiles are written without it
    #[arg(long, value_name = "FILE", hide = true)]
    torcx_bin: Option<PathBuf>,

    /// OpenPGP keys, armored or not
    #[arg(long, value_name = "FILE", default_value = request::KEYRING)]
    keyring: PathBuf,

    /// The fingerprint of a primary key that may sign; none given: every key of the keyring
    #[arg(long, value_name = "FINGERPRINT")]
    trusted_key: Vec<String>,

    /// How many different keys must have signed; none at all is `--no-verify-signatures`
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    signatures: u16,

    /// Take only lists that say which board and system they are for, and until when
    #[arg(long)]
    require_fresh_index: bool,

    /// Runtime mappings for when the cluster has none
    #[arg(long, value_name = "FILE", default_value = request::MAPPINGS)]
    version_manifest: PathBuf,

    /// The file the kubelet waits for; empty: write none
    #[arg(long, value_name = "FILE", default_value = landfall_node::prepare::kubelet_env::PATH)]
    kubelet_env_path: String,

    /// What lays the runtime down [default: by the operating system]
    #[arg(long, value_enum)]
    backend: Option<BackendName>,

    /// Continue outside the version-skew policy, with a warning
    #[arg(long)]
    allow_skew: bool,

    /// Certificate authorities for downloads, instead of the machine's; a path here, not below `--root`
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,

    /// Ask this FleetLock server before a reboot, and tell it after
    #[arg(long, value_name = "URL")]
    fleet_lock: Option<String>,

    /// The group of machines that share a reboot lock
    #[arg(long, value_name = "NAME", default_value = "default", requires = "fleet_lock")]
    fleet_lock_group: String,

    /// The name of this machine at the lock server [default: the machine id]
    #[arg(long, value_name = "ID", requires = "fleet_lock")]
    fleet_lock_id: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum BackendName {
    Torcx,
    Sysext,
}

// === impl Prepare ===

impl Prepare {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let request = self.flags.request(&self.root)?;
        let env = HostEnvironment::new(&self.root, request.authority.as_deref())
            .context("prepare to look around")?;
        let runtime = runtime::multi_threaded()?;
        if self.dry_run {
            let decision = runtime.block_on(decide(&env, &request)).map_err(failure)?;
            self.print(&decision)?;
            return Ok(Exit::Done);
        }
        let other = if self.start_over { Other::Abandon } else { Other::Respect };
        let env = Arc::new(env);
        let ask = Ask { request: &request, other, reboot: self.reboot, output: self.output };
        let done = work::carry_out(&runtime, &env, &ask);
        if let Some(name) = &self.node_name {
            work::publish(&runtime, &env, &request.kubeconfig, name);
        }
        done
    }

    fn print(&self, decision: &Decision) -> Result<(), Failure> {
        let text = match self.output {
            Format::Text => show::text(decision),
            Format::Json => json(decision)?,
        };
        Ok(output::print(&text)?)
    }
}

/// Returns the failure for a missing decision, with a hint.
fn failure(error: DecideError) -> Failure {
    let (hint, exit) = advice((&error).into());
    Failure::new(error, hint).exit(exit)
}

/// Returns the hint for each kind of failure, and the exit code for scripts.
pub(super) fn advice(why: Why) -> (&'static str, Exit) {
    match why {
        Why::VersionSkew => (
            "let the control plane be upgraded first, name a fitting version with `--force-kube-version`, or insist with `--allow-skew`",
            Exit::NotPermitted,
        ),
        Why::Fetch => (
            "check whether this URL is reachable from here: proxies are read from `https_proxy` and `no_proxy`",
            Exit::Unavailable,
        ),
        Why::Signature => (
            "wrong key or man in the middle: compare the fingerprint; `--no-verify-signatures` skips the check",
            Exit::Failed,
        ),
        Why::NotForThis => (
            "the list is old or of another system: see what the place serves, and whether this machine's clock is right",
            Exit::Failed,
        ),
        Why::ClusterVersion => {
            ("give `--kubeconfig`, or name the version with `--force-kube-version`", Exit::Failed)
        }
        Why::NoRuntime => (
            "give runtime mappings for this version in the ConfigMap or with `--version-manifest`, or leave the runtime alone with `--torcx-skip-setup`",
            Exit::Failed,
        ),
        Why::WrongHash => (
            "the files differ from the list of this location: notify its maintainer, or name another with `--manifest-mirror`",
            Exit::Failed,
        ),
        Why::NextOs => (
            "see `journalctl -u update-engine`, or leave the operating system alone with `--upgrade-os=false`",
            Exit::Unavailable,
        ),
        Why::Unusable => (
            "fix the problem that the line names; `--dry-run` checks again and changes nothing",
            Exit::Failed,
        ),
        Why::Misfit => {
            ("build an image for this system, or remove the one that blocks the others", Exit::Failed)
        }
        Why::NotActive => (
            "read the messages of torcx or `systemd-sysext` in `journalctl --boot`, fix the problem and reboot",
            Exit::Failed,
        ),
        Why::Machine => ("make it root, with a disk that has room and can be written", Exit::Failed),
    }
}

// === impl Flags ===

impl Flags {
    pub(super) fn request(&self, root: &Path) -> Result<Request, Failure> {
        // The original accepted an empty value as the default.
        let url = match self.torcx_manifest_url.as_str() {
            "" => template::MANIFEST_URL.to_owned(),
            url => url.to_owned(),
        };
        let force_kube_version = self.force_kube_version.clone().filter(|version| !version.is_empty());
        self.check(&url, force_kube_version.as_deref())?;
        let fleet_lock = match &self.fleet_lock {
            Some(url) => Some(FleetLock {
                url: url.clone(),
                group: self.fleet_lock_group.clone(),
                id: self.fleet_lock_id.clone().map_or_else(|| machine_id(root), Ok)?,
            }),
            None => None,
        };
        Ok(Request {
            kubeconfig: self.kubeconfig.clone(),
            force_kube_version,
            manifest_urls: std::iter::once(url).chain(self.manifest_mirror.iter().cloned()).collect(),
            extension_urls: self.extension_url.clone(),
            trust: Trust {
                verify: !self.no_verify_signatures,
                keyring: self.keyring.clone(),
                fingerprints: self.trusted_key.clone(),
                threshold: usize::from(self.signatures),
                require_fresh: self.require_fresh_index,
            },
            mappings_file: self.version_manifest.clone(),
            kubelet_env: Some(&self.kubelet_env_path).filter(|path| !path.is_empty()).map(PathBuf::from),
            profile: self.torcx_profile.clone(),
            upgrade_os: self.upgrade_os,
            skip_setup: self.torcx_skip_setup,
            backend: self.backend.map(BackendName::backend),
            allow_skew: self.allow_skew,
            authority: self.ca_file.clone(),
            fleet_lock,
            ..Request::default()
        })
    }
}

impl Flags {
    /// Rejects invalid flags before anything is read.
    fn check(&self, url: &str, version: Option<&str>) -> Result<(), Failure> {
        let wrong = |flag: &str, error: anyhow::Error, hint: &'static str| {
            Failure::usage(error.context(format!("`{flag}` cannot be used")), hint)
        };
        if let Some(version) = version {
            version.parse::<KubeVersion>().map_err(|error| {
                wrong(
                    "--force-kube-version",
                    error.into(),
                    "`--force-kube-version=v1.32.4` is how one is written",
                )
            })?;
        }
        let hint = "such as `https://mirror.corp/{{.Board}}/{{.OSVersion}}/torcx_manifest.json`";
        for (flag, url) in std::iter::once(("--torcx-manifest-url", url))
            .chain(self.manifest_mirror.iter().map(|url| ("--manifest-mirror", url.as_str())))
        {
            template::fill(url, &[("Board", "b"), ("OSVersion", "1")])
                .map_err(|error| wrong(flag, error.into(), hint))?;
        }
        for url in &self.extension_url {
            let hint = "such as `https://mirror.corp/extensions/{{.Extension}}/`";
            template::fill(url, &[("Extension", "e")])
                .map_err(|error| wrong("--extension-url", error.into(), hint))?;
        }
        if let Some(url) = &self.fleet_lock {
            let hint = "such as `https://fleetlock.corp`";
            template::fill(url, &[]).map_err(|error| wrong("--fleet-lock", error.into(), hint))?;
        }
        let trust = Trust { fingerprints: self.trusted_key.clone(), ..Trust::default() };
        Policy::new(&trust, 0).map_err(|error| {
            wrong(
                "--trusted-key",
                error.into(),
                "give the whole fingerprint, as `gpg --fingerprint` prints it",
            )
        })?;
        match profile::selected(&self.torcx_profile) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => {
                let error = anyhow!("`{}` is the vendor's profile, or none", self.torcx_profile);
                Err(wrong("--torcx-profile", error, "name a profile of your own"))
            }
            Err(error) => Err(wrong("--torcx-profile", error.into(), "a name of letters and digits")),
        }
    }
}

fn machine_id(root: &Path) -> Result<String, Failure> {
    let path = root.join("etc/machine-id");
    let id = std::fs::read_to_string(&path).with_context(|| format!("read `{}`", path.display()));
    let id = id.map_err(|error| Failure::new(error, "name this machine with `--fleet-lock-id`"))?;
    Ok(id.trim().to_owned())
}

// === impl BackendName ===

impl BackendName {
    fn backend(self) -> Backend {
        match self {
            Self::Torcx => Backend::Torcx,
            Self::Sysext => Backend::Sysext,
        }
    }
}
