//! Machines that have shown themselves to the bootstrap machine and are no nodes: they asked for their configuration or
//! for a certificate, or live on the same network. Nobody lists them, and their logs are the ones that are missing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::net::IpAddr;
use std::path::Path;

use serde_json::Value;

/// What is read of one file in a bundle; a machine that asks shows itself more than once.
const MAX_FILE: u64 = 64 << 20;

/// One line of a log.
const MAX_LINE: usize = 64 << 10;

/// More machines than one bootstrap machine ever serves.
const MAX_MACHINES: usize = 10_000;

/// A machine that is no node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranger {
    /// Its name or address, as it was seen.
    pub name: String,
    /// How it was seen, for people.
    pub seen: Vec<&'static str>,
}

const ASKED_CONFIGURATION: &str = "asked the machine-config server for its configuration";
const ASKED_CERTIFICATE: &str = "asked for a node's certificate";
const NEIGHBOUR: &str = "answers on the bootstrap machine's network";

/// What the files of a bundle tell.
#[derive(Debug, Default)]
struct Sightings {
    seen: BTreeMap<String, BTreeSet<&'static str>>,
    /// Names and addresses of nodes, and of the machine itself.
    known: BTreeSet<String>,
}

/// The strangers of one bundle.
pub fn strangers(bundle: &Path) -> io::Result<Vec<Stranger>> {
    let mut reader = BufReader::new(File::open(bundle)?);
    let is_zstd = reader.fill_buf()?.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
    let unpacked: Box<dyn Read> = if is_zstd {
        Box::new(zstd::Decoder::with_buffer(reader)?)
    } else {
        Box::new(flate2::bufread::MultiGzDecoder::new(reader))
    };
    let mut sightings = Sightings::default();
    let mut archive = tar::Archive::new(unpacked);
    for entry in archive.entries()? {
        // A cut bundle ends here; what was seen so far counts.
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
            "nodes.json" => self.nodes(content),
            "csr.json" => self.requests(content),
            "ip-addr.txt" => each_line(content, |line| self.own_address(line)),
            "ip-neigh.txt" | "neighbours.txt" => each_line(content, |line| self.neighbour(line)),
            _ if path.contains("/journals/") || path.contains("/containers/") || path.contains("/pods/") => {
                each_line(content, |line| self.log_line(line));
            }
            _ => {}
        }
    }

    fn nodes(&mut self, content: impl Read) {
        for node in items(content) {
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

    /// Requests of machines that have no identity yet are made by a bootstrap account and name the node inside; those of
    /// nodes are made by the node itself.
    fn requests(&mut self, content: impl Read) {
        for request in items(content) {
            let user = request.pointer("/spec/username").and_then(Value::as_str).unwrap_or_default();
            if let Some(name) = user.strip_prefix("system:node:") {
                self.see(name, ASKED_CERTIFICATE);
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

    /// `10.0.0.7 dev ens3 lladdr 52:54:00:00:00:01 REACHABLE`
    fn neighbour(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let address = words.next().and_then(|word| word.parse::<IpAddr>().ok());
        let answers = line.contains(" lladdr ") && !line.ends_with("FAILED");
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

fn items(content: impl Read) -> Vec<Value> {
    let list: Value = serde_json::from_reader(BufReader::new(content)).unwrap_or_default();
    match list {
        Value::Object(mut list) => match list.remove("items") {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Every line that is text and not too long.
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

        let found = sightings.finish();
        let names: Vec<_> = found.iter().map(|stranger| stranger.name.as_str()).collect();
        assert_eq!(names, ["10.0.0.5", "fd00::6", "master-1"]);
        assert_eq!(found[0].seen, [NEIGHBOUR, ASKED_CONFIGURATION]);
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
