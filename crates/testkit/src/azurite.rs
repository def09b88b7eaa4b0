//! Azurite, Microsoft's Azure Blob storage emulator.
//!
//! The test bed accesses it with `curl` and its own signatures.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::{Need, ObjectStore, Package, Process};

pub(crate) const NEEDS: &[Need] =
    &[Need::Program("node"), Need::Program("curl"), Need::Installed(Package::Azurite)];
pub(crate) const ACCOUNT: &str = "harbour";
const KEY: &[u8] = b"between sea and shore there is a harbour";
const VERSION: &str = "2021-12-02";
const NOT_SOON: &str = "2099-01-01T00:00:00Z";
const LONG_AGO: &str = "2020-01-01T00:00:00Z";

/// Returns the contents of valid and of invalid credential files.
pub(crate) fn credentials() -> (Vec<String>, Vec<String>) {
    let connection = |key: &[u8]| {
        let (protocol, key) = ("DefaultEndpointsProtocol=https", BASE64.encode(key));
        format!("{protocol};AccountName={ACCOUNT};AccountKey={key};EndpointSuffix=core.windows.net\n")
    };
    let signature = |expires| format!("azure_storage_sas_token = ?{}\n", signature(expires));
    (vec![connection(KEY), signature(NOT_SOON)], vec![connection(b"somebody else"), signature(LONG_AGO)])
}

pub(crate) fn start(directory: &Path, port: u16, more: &[&str]) -> Result<Process> {
    Process::start("azurite", &Package::Azurite.path()?, directory, |command| {
        command
            .current_dir(directory)
            .env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{}", BASE64.encode(KEY)))
            .args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()])
            .args(["--inMemoryPersistence", "--disableTelemetry", "--cert"])
            .arg(directory.join("tls.crt"))
            .arg("--key")
            .arg(directory.join("tls.key"))
            .args(more);
    })
}

pub(crate) fn make_bucket(directory: &Path, port: u16) -> Result<()> {
    let url = url(port, "", "restype=container&");
    curl(directory, &["--request", "PUT", "--data", "", &url]).map(drop).context("make a container")
}

/// Uploads objects concurrently over persistent connections.
pub(crate) fn fill(directory: &Path, port: u16, folder: &str, names: &[String]) -> Result<()> {
    let (config, contents) = (directory.join("uploads"), directory.join("contents"));
    std::fs::create_dir_all(&contents)?;
    let mut uploads = String::new();
    for name in names {
        let content = contents.join(name);
        std::fs::write(&content, name)?;
        let url = url(port, &format!("/{folder}/{name}"), "");
        uploads.push_str(&format!("upload-file = \"{}\"\nurl = \"{url}\"\n", content.display()));
    }
    std::fs::write(&config, uploads)?;
    let config = config.to_str().context("a folder whose name is text")?;
    let header = "x-ms-blob-type: BlockBlob";
    curl(directory, &["--parallel", "--parallel-max", "8", "--header", header, "--config", config]).map(drop)
}

/// Lists objects. Tests use names that need no escaping.
pub(crate) fn objects(directory: &Path, port: u16, folder: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let prefix = format!("{folder}/");
    let listing = url(port, "", &format!("restype=container&comp=list&prefix={prefix}&"));
    let listing = String::from_utf8(curl(directory, &[&listing])?)?;
    let names = listing.split("<Name>").skip(1).filter_map(|rest| rest.split_once("</Name>"));
    names
        .map(|(name, _)| {
            let below = name.strip_prefix(&prefix).context("a name that was asked for")?;
            Ok((below.to_owned(), curl(directory, &[&url(port, &format!("/{name}"), "")])?))
        })
        .collect()
}

/// Returns the URL of the bucket or of an object in it.
fn url(port: u16, path: &str, query: &str) -> String {
    let (bucket, signature) = (ObjectStore::BUCKET, signature(NOT_SOON));
    format!("https://127.0.0.1:{port}/{ACCOUNT}/{bucket}{path}?{query}{signature}")
}

fn curl(directory: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--fail", "--noproxy", "*", "--max-time", "120", "--cacert"])
        .arg(directory.join("ca.crt"))
        .args(arguments)
        .output()
        .context("run `curl`")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "Azurite was not asked: {}", errors.trim());
    Ok(output.stdout)
}

/// Returns a shared access signature for the complete account, valid until then.
fn signature(expires: &str) -> String {
    let (permissions, services, kinds, protocol) = ("rwdlc", "b", "co", "https");
    let text =
        format!("{ACCOUNT}\n{permissions}\n{services}\n{kinds}\n\n{expires}\n\n{protocol}\n{VERSION}\n\n");
    // HMAC accepts keys of any length.
    let mac = Hmac::<Sha256>::new_from_slice(KEY).map(|mac| mac.chain_update(text).finalize().into_bytes());
    let signature = mac.map(|mac| BASE64.encode(mac)).unwrap_or_default();
    let signature = signature.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    format!(
        "sv={VERSION}&ss={services}&srt={kinds}&sp={permissions}&se={expires}&spr={protocol}&sig={signature}"
    )
}
