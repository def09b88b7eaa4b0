use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::PostParams;

use crate::{Cluster, Error, Kind, Place};

/// The API server's limit of a note.
const MAX_NOTE: usize = 1000;

/// An Event about a node, shown by `kubectl describe node`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent<'a> {
    pub node: &'a str,
    /// The reporting component.
    pub component: &'a str,
    pub instance: &'a str,
    /// The action, as one word.
    pub action: &'a str,
    pub reason: &'a str,
    pub note: &'a str,
    pub warning: bool,
}

/// An Event about an object in a namespace, shown by `kubectl describe`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectEvent<'a> {
    pub kind: &'a Kind,
    pub place: Place<'a>,
    pub uid: &'a str,
    /// The reporting component.
    pub component: &'a str,
    pub instance: &'a str,
    /// The action, as one word.
    pub action: &'a str,
    pub reason: &'a str,
    pub note: &'a str,
    pub warning: bool,
}

impl Cluster {
    pub async fn tell(&self, event: &NodeEvent<'_>) -> Result<(), Error> {
        // `kubectl describe node` selects Events by this UID, as in those of the kubelet.
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(event.node.to_owned()),
            uid: Some(event.node.to_owned()),
            ..ObjectReference::default()
        };
        let object = Event {
            metadata: ObjectMeta { generate_name: Some(format!("{}-", event.node)), ..ObjectMeta::default() },
            action: Some(event.action.to_owned()),
            reason: Some(event.reason.to_owned()),
            regarding: Some(regarding),
            reporting_controller: Some(event.component.to_owned()),
            reporting_instance: Some(event.instance.to_owned()),
            ..told(event.note, event.warning)
        };
        // Events of objects without a namespace belong to this one.
        self.write_event("default", &format!("node {}", event.node), &object).await
    }

    pub async fn tell_of(&self, event: &ObjectEvent<'_>) -> Result<(), Error> {
        let Place { namespace, name } = event.place;
        let regarding = ObjectReference {
            api_version: Some(event.kind.api_version()),
            kind: Some(event.kind.kind.to_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            uid: Some(event.uid.to_owned()),
            ..ObjectReference::default()
        };
        let object = Event {
            metadata: ObjectMeta { generate_name: Some(format!("{name}-")), ..ObjectMeta::default() },
            action: Some(event.action.to_owned()),
            reason: Some(event.reason.to_owned()),
            regarding: Some(regarding),
            reporting_controller: Some(event.component.to_owned()),
            reporting_instance: Some(event.instance.to_owned()),
            ..told(event.note, event.warning)
        };
        self.write_event(namespace, &format!("{} {namespace}/{name}", event.kind.kind), &object).await
    }

    async fn write_event(&self, namespace: &str, about: &str, event: &Event) -> Result<(), Error> {
        let events: Api<Event> = Api::namespaced(self.client(), namespace);
        let parameters = PostParams::default();
        let asked = || format!("write an Event about {about}");
        self.ask(asked, events.create(&parameters, event)).await.map(drop)
    }
}

fn told(note: &str, warning: bool) -> Event {
    Event {
        event_time: Some(MicroTime(Timestamp::now())),
        note: Some(note.chars().take(MAX_NOTE).collect()),
        type_: Some(if warning { "Warning" } else { "Normal" }.to_owned()),
        ..Event::default()
    }
}
