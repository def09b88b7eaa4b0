//! Hosts seen by the bootstrap host that are not nodes. They requested their configuration or a certificate, or are on
//! the same network. The API lists none of them, and their logs are missing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::net::IpAddr;
use std::path::Path;

use base64::Engine as _;
use serde_json::Value;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

use crate::Census;

/// Maximum number of bytes read of one file in a bundle; a host leaves more than one trace.
const MAX_FILE: u64 = 64 << 20;

/// Maximum length of one line of a log.
const MAX_LINE: usize = 64 << 10;

/// More hosts than one bootstrap host ever serves.
const MAX_MACHINES: usize = 10_000;

/// A host that is not a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranger {
    /// Its name or address in the source.
    pub name: String,
    /// Human-readable descriptions of its traces.
    pub seen: Vec<&'static str>,
}

const NODE_USER: &str = "system:node:";
/// `ATF_COM`: the neighbor has answered.
const ARP_COMPLETE: u32 = 0x2;

const ASKED_CONFIGURATION: &str = "asked the machine-config server for its configuration";
const ASKED_CERTIFICATE: &str = "asked for a node's certificate";
const NEIGHBOUR: &str = "answers on the bootstrap machine's network";

/// Traces of hosts in the files of a bundle.
#[derive(Debug, Default)]
struct Sightings {
    seen: BTreeMap<String, BTreeSet<&'static str>>,
    /// Names and addresses of nodes, and of the host itself.
    known: BTreeSet<String>,
}

/// Returns the hosts in one bundle that are not nodes. The census of an API server, if available, contains more nodes
/// and more certificate requests.
pub fn strangers(bundle: &Path, census: Option<&Census>) -> io::Result<Vec<Stranger>> {
    let mut reader = BufReader::new(File::open(bundle)?);
    let is_zstd = reader.fill_buf()?.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
    let unpacked: Box<dyn Read> = if is_zstd {
        Box::new(zstd::Decoder::with_buffer(reader)?)
    } else {
        Box::new(flate2::bufread::MultiGzDecoder::new(reader))
    };
    let mut sightings = Sightings::default();
    if let Some(census) = census {
        sightings.nodes(&census.nodes);
        sightings.requests(&census.requests);
    }
    let mut archive = tar::Archive::new(unpacked);
    for entry in archive.entries()? {
        // A truncated bundle ends here; the traces so far count.
        let Ok(entry) = entry else { break };
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        sightings.file(&path, entry.take(MAX_FILE));
    }
    Ok(sightings.finish())
}

// === impl Sightings ===

impl Sightings {
    fn file(&mut self, path: &str, content: impl Read) {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name {
            "nodes.json" => self.nodes(&list(content)),
            "csr.json" => self.requests(&list(content)),
            "ip-addr.txt" => each_line(content, |line| self.own_address(line)),
            "ip-neigh.txt" | "neighbours.txt" => each_line(content, |line| self.neighbour(line)),
            _ if path.contains("/journals/") || path.contains("/containers/") || path.contains("/pods/") => {
                each_line(content, |line| self.log_line(line));
            }
            _ => {}
        }
    }

    fn nodes(&mut self, list: &Value) {
        for node in items(list) {
            if let Some(name) = node.pointer("/metadata/name").and_then(Value::as_str) {
                self.known.insert(name.to_owned());
            }
            let addresses = node.pointer("/status/addresses").and_then(Value::as_array);
            for address in addresses.into_iter().flatten() {
                if let Some(address) = address.get("address").and_then(Value::as_str) {
                    self.known.insert(address.to_owned());
                }
            }
        }
    }

    /// Reads certificate requests. Nodes use their own name. Other hosts use a bootstrap account and put the name of
    /// the future node inside the request.
    fn requests(&mut self, list: &Value) {
        for request in items(list) {
            let user = request.pointer("/spec/username").and_then(Value::as_str).unwrap_or_default();
            let inside = request.pointer("/spec/request").and_then(Value::as_str).and_then(requested_name);
            for name in [Some(user), inside.as_deref()].into_iter().flatten() {
                if let Some(name) = name.strip_prefix(NODE_USER) {
                    self.see(name, ASKED_CERTIFICATE);
                }
            }
        }
    }

    fn log_line(&mut self, line: &str) {
        // machine-config-server: Pool "master" requested by address:"10.0.0.5:48392" User-Agent:"Ignition/2.14"
        if let Some((_, rest)) = line.split_once(" requested by address:\"") {
            let address = rest.split('"').next().unwrap_or_default();
            if let Some(address) = without_port(address) {
                self.see(&address.to_string(), ASKED_CONFIGURATION);
            }
        }
    }

    fn own_address(&mut self, line: &str) {
        let mut words = line.split_whitespace().skip_while(|word| !matches!(*word, "inet" | "inet6")).skip(1);
        if let Some(address) = words.next().and_then(|word| word.split('/').next()) {
            self.known.insert(address.to_owned());
        }
    }

    /// Parses a line of `ip neigh`, or one of `/proc/net/arp`:
    /// - `10.0.0.7 dev ens3 lladdr 52:54:00:00:00:01 REACHABLE`
    /// - `10.0.0.7 0x1 0x2 52:54:00:00:00:01 * ens3`
    fn neighbour(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let answers = match words[..] {
            [_, _, flags, _, _, _] if flags.starts_with("0x") => {
                u32::from_str_radix(&flags[2..], 16).is_ok_and(|flags| flags & ARP_COMPLETE != 0)
            }
            _ => words.contains(&"lladdr") && words.last() != Some(&"FAILED"),
        };
        let address = words.first().and_then(|word| word.parse::<IpAddr>().ok());
        if let Some(address) =
            address.filter(|address| answers && !address.is_multicast() && !link_local(*address))
        {
            self.see(&address.to_string(), NEIGHBOUR);
        }
    }

    fn see(&mut self, name: &str, how: &'static str) {
        if self.seen.len() < MAX_MACHINES || self.seen.contains_key(name) {
            self.seen.entry(name.to_owned()).or_default().insert(how);
        }
    }

    fn finish(self) -> Vec<Stranger> {
        let known = self.known;
        let strangers = self.seen.into_iter().filter(|(name, _)| !known.contains(name));
        strangers.map(|(name, seen)| Stranger { name, seen: seen.into_iter().collect() }).collect()
    }
}

fn link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn without_port(text: &str) -> Option<IpAddr> {
    text.parse::<std::net::SocketAddr>().map(|address| address.ip()).or_else(|_| text.parse()).ok()
}

fn list(content: impl Read) -> Value {
    // An unreadable list counts as empty.
    serde_json::from_reader(BufReader::new(content)).unwrap_or_default()
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.get("items").and_then(Value::as_array).into_iter().flatten()
}

/// Returns the common name of a certificate request, which the API server provides as PEM in base64.
fn requested_name(text: &str) -> Option<String> {
    let pem = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).ok()?;
    let (_, request) = X509CertificationRequest::from_der(&pem.contents).ok()?;
    let name = request.certification_request_info.subject.iter_common_name().next()?;
    name.as_str().ok().map(str::to_owned)
}

/// Calls `line` for every line that is text and within the limit.
fn each_line(content: impl Read, mut line: impl FnMut(&str)) {
    let mut reader = BufReader::new(content);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match reader.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(_) => line(String::from_utf8_lossy(&bytes).trim_end()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_that_never_joined_are_named() {
        let mut sightings = Sightings::default();
        let nodes = r#"{"items": [{"metadata": {"name": "master-0"}, "status": {"addresses":
            [{"type": "InternalIP", "address": "10.0.0.4"}]}}]}"#;
        sightings.file("b/resources/nodes.json", nodes.as_bytes());
        let requests = r#"{"items": [{"spec": {"username": "system:node:master-0"}},
            {"spec": {"username": "system:node:master-1"}}]}"#;
        sightings.file("b/resources/csr.json", requests.as_bytes());
        let log = "I0102 Pool \"master\" requested by address:\"10.0.0.4:1\" User-Agent:\"Ignition\"\n\
                   I0102 Pool \"master\" requested by address:\"10.0.0.5:48392\" User-Agent:\"Ignition\"\n\
                   I0102 Pool \"worker\" requested by address:\"[fd00::6]:48392\" User-Agent:\"Ignition\"\n";
        sightings.file("b/bootstrap/containers/machine-config-server-abc.log", log.as_bytes());
        sightings.file(
            "b/bootstrap/network/ip-addr.txt",
            &b"    inet 10.0.0.2/24 brd 10.0.0.255 scope global ens3"[..],
        );
        let neighbours = "10.0.0.5 dev ens3 lladdr 52:54:00:00:00:05 STALE\n10.0.0.9 dev ens3 FAILED\n\
                          10.0.0.2 dev ens3 lladdr 52:54:00:00:00:02 REACHABLE\nfe80::1 dev ens3 lladdr 52:54:00:00:00:01 STALE\n";
        sightings.file("b/bootstrap/network/ip-neigh.txt", neighbours.as_bytes());
        // The kernel's format, which bundles contain.
        let arp = "IP address       HW type     Flags       HW address            Mask     Device\n\
                   10.0.0.7         0x1         0x2         52:54:00:00:00:07     *        ens3\n\
                   10.0.0.8         0x1         0x0         00:00:00:00:00:00     *        ens3\n";
        sightings.file("b/bootstrap/network/neighbours.txt", arp.as_bytes());

        let found = sightings.finish();
        let names: Vec<_> = found.iter().map(|stranger| stranger.name.as_str()).collect();
        assert_eq!(names, ["10.0.0.5", "10.0.0.7", "fd00::6", "master-1"]);
        assert_eq!(found[0].seen, [NEIGHBOUR, ASKED_CONFIGURATION]);
    }

    /// A request for `system:node:master-2`, made with openssl.
    const REQUEST: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIeU1JR1lBZ0VBTURZeEZUQVRCZ05WQkFvTURI\
        TjVjM1JsYlRwdWIyUmxjekVkTUJzR0ExVUVBd3dVYzNsegpkR1Z0T201dlpHVTZiV0Z6ZEdWeUxUSXdXVEFUQmdj\
        cWhrak9QUUlCQmdncWhrak9QUU1CQndOQ0FBU29tNnlLCjdZd2dVOEFmVmZQcytzVksrQms3bklGTkwzM3BtWUx2\
        MXN2QU1yaWxabS8yMGc1TkdNcGhtT1NjN3BzbnlkYjgKaE5GQWo5bVdDR2x3Zkt0OW9BQXdDZ1lJS29aSXpqMEVB\
        d0lEU1FBd1JnSWhBS0kyRWtDc3dqWlkyblFHU1FKTQp3TUpEQVVldVZGNE9FQWQrNlBSaUkxMkdBaUVBL3d4Z2dB\
        ZnU0MUFxYUZtSHhvL3NxcVNjc2hOaCtXc1Y2aXRiCnF2cHhsNnM9Ci0tLS0tRU5EIENFUlRJRklDQVRFIFJFUVVF\
        U1QtLS0tLQo=";

    #[test]
    fn a_machine_that_asks_with_a_bootstrap_account_is_named_by_its_request() {
        let mut sightings = Sightings::default();
        let requests = serde_json::json!({"items": [
            {"spec": {"username": "system:bootstrap:abcdef", "request": REQUEST}},
            {"spec": {"username": "system:bootstrap:abcdef", "request": "bm90aGluZw=="}},
            {"spec": {"username": "jane", "request": 7}},
        ]});
        sightings.requests(&requests);
        let found = sightings.finish();
        assert_eq!(found, [Stranger { name: "master-2".to_owned(), seen: vec![ASKED_CERTIFICATE] }]);
    }

    #[test]
    fn no_lists_no_strangers() {
        let mut sightings = Sightings::default();
        sightings.file("b/resources/nodes.json", &b"not json"[..]);
        sightings.file("b/resources/csr.json", &b"{\"items\": 7}"[..]);
        sightings.file("b/bootstrap/journals/journal.log", &b"\xff\xfe requested by address:\"nobody\""[..]);
        assert_eq!(sightings.finish(), []);
    }
}
