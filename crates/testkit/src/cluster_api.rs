use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cache::cache_dir;
use crate::{ApiServer, Need};

/// API version, module version, and its hash.
const PINS: &str = include_str!("../../../testbed/cluster-api.txt");
const MODULE: &str = "sigs.k8s.io/cluster-api";
/// Directory of the module's definitions.
const FOLDER: &str = "config/crd/bases";
const PLURALS: [&str; 3] = ["clusters", "machines", "machinehealthchecks"];

/// Cluster API's own definitions: one version with only v1beta1, and one that stores v1beta2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterApi {
    V1beta1,
    V1beta2,
}

// === impl ClusterApi ===

impl ClusterApi {
    pub const ALL: [Self; 2] = [Self::V1beta1, Self::V1beta2];
    pub const NEEDS: &'static [Need] = &[Need::Definitions(Self::V1beta1), Need::Definitions(Self::V1beta2)];

    /// Returns the storage version of the API.
    pub fn version(self) -> &'static str {
        match self {
            Self::V1beta1 => "v1beta1",
            Self::V1beta2 => "v1beta2",
        }
    }

    /// Installs the definitions in an API server.
    ///
    /// No conversion webhook runs there: objects are read in the version in which they were stored.
    pub fn install(self, server: &ApiServer) -> Result<()> {
        let folder = self.folder()?;
        // The definitions exceed the annotation size limit of client-side apply.
        server.kubectl(&["apply", "--server-side", "-f", &folder.display().to_string()])?;
        for plural in PLURALS {
            let wanted = format!("crd/{plural}.cluster.x-k8s.io");
            server.kubectl(&["wait", "--for=condition=Established", &wanted, "--timeout=25s"])?;
        }
        Ok(())
    }

    /// Copies the definitions from the Go module if they do not exist.
    pub fn fetch(self) -> Result<()> {
        let target = self.folder()?;
        if self.is_there() {
            return Ok(());
        }
        let (version, hash) = self.pin()?;
        let parent = target.parent().context("a cached folder has a folder")?;
        std::fs::create_dir_all(parent).with_context(|| format!("create `{}`", parent.display()))?;
        let output = Command::new("go")
            .current_dir(parent)
            .args(["mod", "download", "-json", &format!("{MODULE}@{version}")])
            .env("GOTOOLCHAIN", "local")
            .env_remove("GOFLAGS")
            .output()
            .context("run `go`")?;
        let told: Value =
            serde_json::from_slice(&output.stdout).context("read what `go mod download` says")?;
        ensure!(told["Error"].is_null(), "fetch {MODULE}@{version}: {}", told["Error"]);
        ensure!(told["Sum"] == hash, "{MODULE}@{version} has the hash {} in place of {hash}", told["Sum"]);
        let module = told["Dir"].as_str().context("`go mod download` names no folder")?;
        // Written under a temporary name until complete.
        let partial = parent.join(format!(".cluster-api.{}", std::process::id()));
        std::fs::create_dir_all(&partial)?;
        for plural in PLURALS {
            let name = file(plural);
            let content = std::fs::read(Path::new(module).join(FOLDER).join(&name));
            std::fs::write(partial.join(&name), content.with_context(|| format!("read `{name}`"))?)?;
        }
        std::fs::rename(&partial, &target).with_context(|| format!("put `{}` in place", target.display()))
    }

    pub fn is_there(self) -> bool {
        self.folder().is_ok_and(|folder| folder.is_dir())
    }

    fn folder(self) -> Result<PathBuf> {
        Ok(cache_dir()?.join(format!("cluster-api-{}", self.pin()?.0)))
    }

    fn pin(self) -> Result<(&'static str, &'static str)> {
        let lines = PINS.lines().filter(|line| !line.starts_with('#'));
        let mut words = lines.map(|line| line.split_whitespace());
        let pin = words.find_map(|mut words| {
            (words.next()? == self.version()).then(|| Some((words.next()?, words.next()?)))?
        });
        pin.with_context(|| format!("`testbed/cluster-api.txt` does not name {}", self.version()))
    }
}

fn file(plural: &str) -> String {
    format!("cluster.x-k8s.io_{plural}.yaml")
}
