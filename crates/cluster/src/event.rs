use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as EventObject;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::PostParams;

use crate::{Cluster, Error, Kind, Place};

/// The API server's limit of a note.
const MAX_NOTE: usize = 1000;

/// An Event, shown by `kubectl describe`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    pub about: Subject<'a>,
    /// The reporting component.
    pub component: &'a str,
    pub instance: &'a str,
    /// The action, as one word.
    pub action: &'a str,
    pub reason: &'a str,
    pub note: &'a str,
    pub warning: bool,
}

/// The object of an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    Node { name: &'a str },
    Object { kind: &'a Kind, place: Place<'a>, uid: &'a str },
}

impl Cluster {
    pub async fn tell(&self, event: &Event<'_>) -> Result<(), Error> {
        let Event { about, component, instance, action, reason, note, warning } = event;
        let (namespace, name, regarding) = match about {
            // Events of objects without a namespace belong to this one. `kubectl describe node` selects Events by
            // this UID, as in those of the kubelet.
            Subject::Node { name } => ("default", name, reference("v1", "Node", name, name)),
            Subject::Object { kind, place: Place { namespace, name }, uid } => {
                let namespaced = Some((*namespace).to_owned());
                let reference = reference(&kind.api_version(), kind.kind, name, uid);
                (*namespace, name, ObjectReference { namespace: namespaced, ..reference })
            }
        };
        let object = EventObject {
            metadata: ObjectMeta { generate_name: Some(format!("{name}-")), ..ObjectMeta::default() },
            event_time: Some(MicroTime(Timestamp::now())),
            action: Some((*action).to_owned()),
            reason: Some((*reason).to_owned()),
            note: Some(note.chars().take(MAX_NOTE).collect()),
            type_: Some(if *warning { "Warning" } else { "Normal" }.to_owned()),
            regarding: Some(regarding),
            reporting_controller: Some((*component).to_owned()),
            reporting_instance: Some((*instance).to_owned()),
            ..EventObject::default()
        };
        let events: Api<EventObject> = Api::namespaced(self.client(), namespace);
        let parameters = PostParams::default();
        let asked = || match about {
            Subject::Node { name } => format!("write an Event about node {name}"),
            Subject::Object { kind, .. } => format!("write an Event about {} {namespace}/{name}", kind.kind),
        };
        self.ask(asked, events.create(&parameters, &object)).await.map(drop)
    }
}

fn reference(api_version: &str, kind: &str, name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}
