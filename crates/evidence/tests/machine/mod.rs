//! Directories that look like machines, and extracted bundles of them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use jiff::Timestamp;
use landfall_diagnose::{Engine, RuleSet};
use landfall_evidence::bundle::{BundleWriter, Packing, verify};
use landfall_evidence::collect::{Host, Plan, collect};
use landfall_evidence::read::{self, Input};
use landfall_model::bundle::{BundleManifest, ItemOutcome};
use landfall_model::report::Report;
use tempfile::TempDir;

/// A directory that looks like the root of a machine.
pub(crate) struct Machine {
    pub(crate) root: TempDir,
}

/// An extracted bundle.
pub(crate) struct Bundle {
    pub(crate) packed: Vec<u8>,
    pub(crate) manifest: BundleManifest,
    pub(crate) files: BTreeMap<String, Vec<u8>>,
}

/// Diagnoses the machine in place.
pub(crate) fn diagnose(root: &Path) -> Report {
    let host = Host::at(root).unwrap();
    let plan = Plan::of(&host).unwrap();
    let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
    read::diagnose(&engine, vec![Input::Machine { host, plan }], &|_| {}).unwrap()
}

impl Machine {
    pub(crate) fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn file(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    pub(crate) fn link(&self, from: &str, to: impl AsRef<Path>) -> &Self {
        let from = self.root.path().join(from.trim_start_matches('/'));
        fs::create_dir_all(from.parent().unwrap()).unwrap();
        symlink(to, from).unwrap();
        self
    }

    pub(crate) fn collect(&self) -> Bundle {
        Bundle::of(Host::at(self.root.path()).unwrap())
    }
}

impl Bundle {
    pub(crate) fn of(host: Host) -> Self {
        let plan = Plan::of(&host).unwrap();
        Self::with_plan(host, &plan)
    }

    pub(crate) fn with_plan(host: Host, plan: &Plan) -> Self {
        let started = Timestamp::from_second(1_767_323_045).unwrap();
        let mut bundle = BundleWriter::new(Vec::new(), Packing::Gzip, "1", host.identity(), started);
        collect(host, plan, &mut bundle, &|_| {}).unwrap();
        let finished = bundle.finish(started).unwrap();
        let verified = verify(&finished.out[..]).unwrap();
        assert!(verified.is_complete(), "{:?}", verified.wrong);
        let mut files = BTreeMap::new();
        let mut archive = tar::Archive::new(MultiGzDecoder::new(&finished.out[..]));
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(path.strip_prefix("log-bundle-1/").unwrap().to_owned(), content);
        }
        Self { packed: finished.out, manifest: finished.manifest, files }
    }

    #[track_caller]
    pub(crate) fn text(&self, path: &str) -> String {
        let content = self.files.get(path).unwrap_or_else(|| panic!("no {path} in {:?}", self.files.keys()));
        String::from_utf8_lossy(content).into_owned()
    }

    pub(crate) fn contains(&self, needle: &str) -> Option<&str> {
        let holds = |content: &[u8]| memchr::memmem::find(content, needle.as_bytes()).is_some();
        self.files.iter().find(|(_, content)| holds(content)).map(|(path, _)| path.as_str())
    }

    pub(crate) fn diagnose(&self) -> Report {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bundle.tar.gz");
        fs::write(&path, &self.packed).unwrap();
        let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
        read::diagnose(&engine, vec![Input::Path(path)], &|_| {}).unwrap()
    }

    pub(crate) fn outcome(&self, source: &str) -> &ItemOutcome {
        let item = self.manifest.items.iter().find(|item| item.source == source);
        &item.unwrap_or_else(|| panic!("no {source} in {:#?}", self.manifest.items)).outcome
    }
}
