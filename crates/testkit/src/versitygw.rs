//! Versity's gateway: S3 for a directory.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use crate::object_store::files;
use crate::{Binary, Need, ObjectStore, Process};

pub(crate) const NEEDS: &[Need] = &[Need::Built(Binary::Versitygw)];
const KEY_ID: &str = "harbour";
const SECRET: &str = "between-sea-and-shore";
const DATA: &str = "data";
const SIDECAR: &str = "sidecar";

/// Returns the contents of valid and of invalid credential files.
pub(crate) fn credentials() -> (Vec<String>, Vec<String>) {
    let file =
        |secret| format!("[default]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {secret}\n");
    (vec![file(SECRET)], vec![file("somebody-else")])
}

pub(crate) fn start(directory: &Path, port: u16) -> Result<Process> {
    // A bucket is a directory.
    std::fs::create_dir_all(directory.join(DATA).join(ObjectStore::BUCKET))?;
    std::fs::create_dir(directory.join(SIDECAR))?;
    Process::start("versitygw", &Binary::Versitygw.path()?, directory, |command| {
        command
            .env("ROOT_ACCESS_KEY", KEY_ID)
            .env("ROOT_SECRET_KEY", SECRET)
            .args(["--port", &format!("127.0.0.1:{port}"), "--region", "us-east-1", "--quiet"])
            .arg("--cert")
            .arg(directory.join("tls.crt"))
            .arg("--key")
            .arg(directory.join("tls.key"))
            .args(["posix", "--sidecar"])
            .arg(directory.join(SIDECAR))
            .arg(directory.join(DATA));
    })
}

/// Writes objects, which are files.
pub(crate) fn fill(directory: &Path, folder: &str, names: &[String]) -> Result<()> {
    let folder = directory.join(DATA).join(ObjectStore::BUCKET).join(folder);
    std::fs::create_dir_all(&folder)?;
    names.iter().try_for_each(|name| std::fs::write(folder.join(name), name)).context("write objects")
}

pub(crate) fn objects(directory: &Path, folder: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let root = directory.join(DATA).join(ObjectStore::BUCKET).join(folder);
    let mut objects = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop().filter(|folder| folder.is_dir()) {
        for path in files(&folder)? {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(&root)?.to_str().context("an object's name is text")?;
            objects.insert(name.to_owned(), std::fs::read(&path)?);
        }
    }
    Ok(objects)
}
