use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::PostParams;

use crate::{Cluster, Error};

/// What the API server takes in a note.
const MAX_NOTE: usize = 1000;

/// Something that happened to a node, for `kubectl describe node`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent<'a> {
    pub node: &'a str,
    /// Who tells.
    pub component: &'a str,
    pub instance: &'a str,
    /// What was done, in one word.
    pub action: &'a str,
    pub reason: &'a str,
    pub note: &'a str,
    pub warning: bool,
}

impl Cluster {
    pub async fn tell(&self, event: &NodeEvent<'_>) -> Result<(), Error> {
        // Events of what has no namespace are in this one.
        let events: Api<Event> = Api::namespaced(self.client(), "default");
        let note: String = event.note.chars().take(MAX_NOTE).collect();
        let object = Event {
            metadata: ObjectMeta { generate_name: Some(format!("{}-", event.node)), ..ObjectMeta::default() },
            action: Some(event.action.to_owned()),
            event_time: Some(MicroTime(Timestamp::now())),
            note: Some(note),
            reason: Some(event.reason.to_owned()),
            // By this uid `kubectl describe node` finds it, as it does those of the kubelet.
            regarding: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(event.node.to_owned()),
                uid: Some(event.node.to_owned()),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(event.component.to_owned()),
            reporting_instance: Some(event.instance.to_owned()),
            type_: Some(if event.warning { "Warning" } else { "Normal" }.to_owned()),
            ..Event::default()
        };
        let parameters = PostParams::default();
        let asked = || format!("write an Event about node {}", event.node);
        self.ask(asked, events.create(&parameters, &object)).await.map(drop)
    }
}
