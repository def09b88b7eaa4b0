//! API objects, queried with a kubeconfig of this machine, in the layout of an OpenShift log bundle.
//!
//! Lists are JSON; Secrets are included by name only.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use landfall_diagnose::Fact;
use serde_json::Value;

use super::api_server::ApiServer;
use super::{NOT_FROM_OUTSIDE, Source};
use crate::collect::host::Host;
use crate::collect::piece::Trouble;
use crate::collect::sink::{Framing, Sink, shown};

/// Timeout for one list. Responses take longer only when etcd has problems, and the record then shows that.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum number of objects per list; a `continue` token shows that more exist.
const MAX_OBJECTS: u32 = 2_000;

/// Maximum size of lists that are parsed to extract names.
const MAX_PARSED: u64 = 16 << 20;

const CHUNK: usize = 64 << 10;

/// File names and request paths. The names are those of an OpenShift log bundle.
const LISTS: [(&str, &str); 24] = [
    ("nodes", "/api/v1/nodes"),
    ("csr", "/apis/certificates.k8s.io/v1/certificatesigningrequests"),
    ("events", "/api/v1/events"),
    ("pods", "/api/v1/pods"),
    ("clusteroperators", "/apis/config.openshift.io/v1/clusteroperators"),
    ("clusterversion", "/apis/config.openshift.io/v1/clusterversions"),
    ("kubeapiserver", "/apis/operator.openshift.io/v1/kubeapiservers"),
    ("kubecontrollermanager", "/apis/operator.openshift.io/v1/kubecontrollermanagers"),
    ("openshiftapiserver", "/apis/operator.openshift.io/v1/openshiftapiservers"),
    ("machines", "/apis/machine.openshift.io/v1beta1/machines"),
    ("capi-machines", "/apis/cluster.x-k8s.io/v1beta1/machines"),
    ("machineconfigpools", "/apis/machineconfiguration.openshift.io/v1/machineconfigpools"),
    ("machineconfigs", "/apis/machineconfiguration.openshift.io/v1/machineconfigs"),
    ("apiservices", "/apis/apiregistration.k8s.io/v1/apiservices"),
    ("validatingwebhooks", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"),
    ("mutatingwebhooks", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"),
    ("leases", "/apis/coordination.k8s.io/v1/leases"),
    ("namespaces", "/api/v1/namespaces"),
    ("services", "/api/v1/services"),
    ("endpoints", "/api/v1/endpoints"),
    ("configmaps", "/api/v1/configmaps"),
    ("deployments", "/apis/apps/v1/deployments"),
    ("daemonsets", "/apis/apps/v1/daemonsets"),
    ("rolebindings", "/apis/rbac.authorization.k8s.io/v1/rolebindings"),
];

/// Requests object metadata without content: names are sufficient.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

pub(super) struct Resources {
    pub(super) to: String,
    /// The first one whose server responds is used.
    pub(super) kubeconfigs: Vec<String>,
}

// === impl Resources ===

impl Source for Resources {
    fn collect(&self, host: &Host, sink: &mut Sink) -> Result<(), Trouble> {
        if !host.is_this_machine() {
            return Err(Trouble::Skipped(NOT_FROM_OUTSIDE));
        }
        let server = self.server(host, sink)?;
        if sink.is_for_diagnosis() {
            let deadline = sink.deadline().min(Instant::now() + PATIENCE);
            sink.observe(own_node(host, &server, deadline));
        }
        for (name, path) in LISTS {
            sink.time_left()?;
            let to = format!("{}{name}.json", self.to);
            // One field per line: a list on a single line could not be searched for secrets.
            let path = format!("{path}?pretty=true&limit={MAX_OBJECTS}");
            let deadline = sink.deadline().min(Instant::now() + PATIENCE);
            let answer = server.get(host, &path, "application/json", deadline);
            match answer.map(|answer| (answer.status, answer.body)) {
                Ok((200, mut body)) => {
                    sink.file(&to, &path, Framing::Lines, |file| {
                        let mut buffer = vec![0; CHUNK];
                        loop {
                            match body.read(&mut buffer) {
                                Ok(0) => return Ok(()),
                                Ok(count) => file.write(&buffer[..count])?,
                                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                                Err(error) => return Err(error.into()),
                            }
                        }
                    });
                }
                // The cluster does not have this resource.
                Ok((404, _)) => sink.note(&to, &path, &Trouble::Absent),
                Ok((status, _)) => sink.note(&to, &path, &refused(status)),
                Err(error) => sink.note(&to, &path, &error.into()),
            }
        }
        self.names(host, &server, sink)
    }
}

impl Resources {
    /// Returns the server of the first kubeconfig that gets a response.
    fn server(&self, host: &Host, sink: &mut Sink) -> Result<ApiServer, Trouble> {
        let mut trouble = Trouble::Skipped("no kubeconfig on this machine");
        for path in self.kubeconfigs.iter().filter(|path| host.exists(path)) {
            let deadline = sink.deadline().min(Instant::now() + PATIENCE);
            sink.time_left()?;
            let answer = ApiServer::of(Path::new(path)).and_then(|server| {
                let answer = server.get(host, "/version", "application/json", deadline);
                let status = answer.map_err(|error| error.to_string())?.status;
                if status == 200 { Ok(server) } else { Err(format!("the API server answered {status}")) }
            });
            match answer {
                Ok(server) => return Ok(server),
                Err(why) => trouble = Trouble::Failed(format!("with `{path}`: {why}")),
            }
        }
        Err(trouble)
    }

    /// Collects the names of Secrets, and the names and addresses of nodes: bundle readers check these before
    /// opening a list.
    fn names(&self, host: &Host, server: &ApiServer, sink: &mut Sink) -> Result<(), Trouble> {
        for (file, path, accept, line) in [
            (
                "secrets-names.txt",
                "/api/v1/secrets",
                METADATA,
                (|object| {
                    format!("{} {}", text(object, "/metadata/namespace"), text(object, "/metadata/name"))
                }) as fn(&Value) -> String,
            ),
            ("nodes.list", "/api/v1/nodes", METADATA, |object| text(object, "/metadata/name").to_owned()),
            (
                "masters.list",
                "/api/v1/nodes?labelSelector=node-role.kubernetes.io%2Fcontrol-plane",
                "application/json",
                internal_address,
            ),
        ] {
            sink.time_left()?;
            let to = format!("{}{file}", self.to);
            let deadline = sink.deadline().min(Instant::now() + PATIENCE);
            match list(host, server, path, accept, deadline) {
                Ok(objects) => {
                    let mut told = String::new();
                    for object in &objects {
                        // Writing to a string cannot fail.
                        let _ = writeln!(told, "{}", shown(&line(object)));
                    }
                    sink.text(&to, path, &told);
                }
                Err(trouble) => sink.note(&to, path, &trouble),
            }
        }
        Ok(())
    }
}

/// Returns whether this machine's Node is ready; `None` if the cluster has no such Node.
fn own_node(host: &Host, server: &ApiServer, deadline: Instant) -> Option<Fact> {
    let name = host.fact("/proc/sys/kernel/hostname")?.trim().to_lowercase();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if name.is_empty() || !name.bytes().all(is_name) {
        return None;
    }
    let answer = server.get(host, &format!("/api/v1/nodes/{name}"), "application/json", deadline).ok()?;
    if answer.status != 200 {
        return None;
    }
    let mut bytes = Vec::new();
    answer.body.take(MAX_PARSED).read_to_end(&mut bytes).ok()?;
    let node: Value = serde_json::from_slice(&bytes).ok()?;
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array)?;
    let ready = conditions.iter().find(|condition| text(condition, "/type") == "Ready")?;
    Some(Fact::Node { node: name, ready: text(ready, "/status") == "True" })
}

fn list(
    host: &Host,
    server: &ApiServer,
    path: &str,
    accept: &str,
    deadline: Instant,
) -> Result<Vec<Value>, Trouble> {
    let answer = server.get(host, path, accept, deadline)?;
    if answer.status != 200 {
        return Err(refused(answer.status));
    }
    let mut bytes = Vec::new();
    answer.body.take(MAX_PARSED).read_to_end(&mut bytes)?;
    // Unparsable content is not quoted.
    let list: Value = serde_json::from_slice(&bytes)
        .map_err(|_| Trouble::Failed("the response is not a readable list".to_owned()))?;
    let items = list.get("items").and_then(Value::as_array).cloned();
    Ok(items.unwrap_or_default())
}

fn refused(status: u16) -> Trouble {
    Trouble::Failed(format!("the API server answered {status}"))
}

fn text<'v>(object: &'v Value, place: &str) -> &'v str {
    object.pointer(place).and_then(Value::as_str).unwrap_or_default()
}

fn internal_address(node: &Value) -> String {
    let addresses = node.pointer("/status/addresses").and_then(Value::as_array);
    let mut internal =
        addresses.into_iter().flatten().filter(|address| text(address, "/type") == "InternalIP");
    internal.next().map(|address| text(address, "/address")).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use landfall_model::bundle::ItemOutcome;
    use landfall_redact::Redactor;
    use landfall_testkit::{ApiServer as RealServer, have};
    use serde_json::json;

    use super::*;
    use crate::collect::piece::{Piece, Purpose, Record};
    use crate::collect::sink::Limits;

    fn collect(kubeconfigs: Vec<String>) -> (Vec<Record>, Result<(), Trouble>) {
        let (sender, pieces) = mpsc::sync_channel(1);
        let run = thread::spawn(move || {
            let limits = Limits { time: Duration::from_secs(120), bytes: 8 << 20, since: None };
            let redactor = Redactor::builder().build().unwrap();
            let mut sink = Sink::new(redactor, sender, limits, Purpose::Bundle);
            let source = Resources { to: "resources/".to_owned(), kubeconfigs };
            source.collect(&Host::at(Path::new("/")).unwrap(), &mut sink)
        });
        (pieces.iter().filter_map(Piece::into_record).collect(), run.join().unwrap())
    }

    #[test]
    fn a_real_api_server_tells_what_it_knows_and_keeps_its_secrets() {
        if !have(RealServer::NEEDS) {
            return;
        }
        let cluster = RealServer::start().unwrap();
        let object = |kind: &str, data: Value| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "plums", "namespace": "default"}, "stringData": data});
        cluster.apply(&object("Secret", json!({"jam": "Zimt-77-und-Zucker"}))).unwrap();
        let mut map = object("ConfigMap", Value::Null);
        map["data"] = json!({"script": "set -x\nkubeadm join --token abcdef.0f1e2d3c4b5a6978\n"});
        map.as_object_mut().unwrap().remove("stringData");
        cluster.apply(&map).unwrap();

        // The first kubeconfig names a missing server, the second an unknown user.
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let kubeconfig = std::fs::read_to_string(cluster.admin_kubeconfig()).unwrap();
        let closed = kubeconfig.replace(&format!(":{}", cluster.port()), ":1");
        assert_ne!(closed, kubeconfig);
        std::fs::write(path("closed"), closed).unwrap();
        std::fs::write(path("empty"), "apiVersion: v1\nkind: Config\n").unwrap();
        let admin = cluster.admin_kubeconfig().display().to_string();
        let (pieces, result) = collect(vec![path("closed"), path("empty"), path("absent"), admin]);
        assert_eq!(result, Ok(()));

        let piece = |path: &str| pieces.iter().find(|piece| piece.item.path == path).unwrap();
        let text = |path: &str| {
            String::from_utf8(piece(path).content.clone().unwrap_or_else(|| panic!("{:?}", piece(path).item)))
                .unwrap()
        };
        assert!(text("resources/namespaces.json").contains("\"name\": \"kube-system\""));
        let maps = text("resources/configmaps.json");
        let maps: Value = serde_json::from_str(&maps).unwrap_or_else(|error| panic!("{error}: {maps}"));
        assert_eq!(maps["kind"], "ConfigMapList");
        assert!(maps.to_string().contains("kubeadm join --token ***<"), "{maps}");
        assert!(text("resources/secrets-names.txt").lines().any(|line| line == "default plums"));
        assert_eq!(text("resources/nodes.list"), "");
        assert_eq!(piece("resources/clusterversion.json").item.outcome, ItemOutcome::Absent);
        let all: Vec<u8> = pieces.iter().filter_map(|piece| piece.content.clone()).flatten().collect();
        for secret in ["0f1e2d3c4b5a6978", "Zimt-77", "WmltdC03Ny"] {
            assert!(memchr::memmem::find(&all, secret.as_bytes()).is_none(), "{secret}");
        }

        // A user without permissions gets a record of the refusal for each list.
        let stranger = cluster.kubeconfig_for("stranger", "nobody").unwrap().display().to_string();
        let (pieces, result) = collect(vec![stranger]);
        assert_eq!(result, Ok(()));
        let error = "the API server answered 403".to_owned();
        let nodes = pieces.iter().find(|piece| piece.item.path == "resources/nodes.json").unwrap();
        assert_eq!(nodes.item.outcome, ItemOutcome::Failed { error });

        // Credentials are not sent to a server that does not have to authenticate itself.
        let mut trusting: Value = serde_json::from_str(&kubeconfig).unwrap();
        trusting["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = true.into();
        std::fs::write(path("trusting"), trusting.to_string()).unwrap();
        let (_, result) = collect(vec![path("trusting")]);
        let Err(Trouble::Failed(why)) = result else { panic!("{result:?}") };
        assert!(why.ends_with("it does not specify a CA to verify the server"), "{why}");
    }

    #[test]
    fn node_of_this_machine_is_a_fact() {
        if !have(RealServer::NEEDS) {
            return;
        }
        let cluster = RealServer::start().unwrap();
        let host = Host::at(Path::new("/")).unwrap();
        let server = ApiServer::of(&cluster.admin_kubeconfig()).unwrap();
        let node = || own_node(&host, &server, Instant::now() + Duration::from_secs(60));
        assert_eq!(node(), None);
        let name = host.fact("/proc/sys/kernel/hostname").unwrap().to_lowercase();
        cluster.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})).unwrap();
        assert_eq!(node(), None, "it has no conditions yet");
        cluster.report_ready(&name, "0123").unwrap();
        assert_eq!(node(), Some(Fact::Node { node: name, ready: true }));
    }

    #[test]
    fn a_machine_without_a_kubeconfig_asks_nobody() {
        let (pieces, result) = collect(vec!["/nowhere/kubeconfig".to_owned()]);
        assert_eq!(result, Err(Trouble::Skipped("no kubeconfig on this machine")));
        assert!(pieces.is_empty());
    }
}
