//! CloudEvents forwarded from a queue, a topic or a broker.
//!
//! The signed report is in the event or in the configured object store; it is never fetched from anywhere else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use landfall_model::envelope::ReportId;
use landfall_net::serve::Permit;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Bearer;
use crate::access::Caller;
use crate::hub::{Hub, Receipt};
use crate::name::NodeName;
use crate::problem::Problem;
use crate::receive::MAX_REPORT;

/// Type of the events that agents send.
const TYPE: &str = "dev.landfall.report.v1";
const STRUCTURED: &str = "application/cloudevents+json";

/// The relevant parts of an event, in either content mode.
#[derive(Clone, Debug, PartialEq)]
pub struct CloudEvent {
    pub id: ReportId,
    /// Reference to the report, as the sender wrote it.
    pub reference: Option<String>,
    /// The node named by the event, if any.
    node: Option<NodeName>,
    /// The signed report, if the event contains it.
    envelope: Option<Vec<u8>>,
}

/// An event in structured mode. All values stay unparsed: 1 MB of brackets needs many times that memory once parsed.
#[derive(Deserialize)]
struct Structured<'a> {
    #[serde(borrow)]
    specversion: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    source: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    dataref: Option<&'a RawValue>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    data_base64: Option<&'a RawValue>,
}

/// The relevant parts of the data.
#[derive(Default, Deserialize)]
struct Data<'a> {
    #[serde(borrow)]
    node: Option<&'a RawValue>,
    #[serde(borrow)]
    envelope: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Named {
    hostname: String,
}

#[derive(Debug, thiserror::Error)]
pub enum EventError {
    #[error("not JSON")]
    Json(#[source] serde_json::Error),
    #[error("not a CloudEvent: must be an object with text in `specversion`, `id`, `source` and `type`")]
    NotAnEvent,
    #[error("it is not of CloudEvents 1.0")]
    Version,
    #[error("its type is not `{TYPE}`")]
    Type,
    #[error("invalid CloudEvent `id`: must be a report UUID")]
    Id,
    #[error("its data cannot be read: JSON, or JSON in base64 under `data_base64`")]
    Data,
}

// === impl CloudEvent ===

impl CloudEvent {
    /// Parses an event. In `structured` mode, the body contains the complete event. In `binary` mode, the attributes
    /// are in headers and the data is in the body. Pure.
    pub fn read(
        kind: &str,
        header: impl Fn(&str) -> Option<String>,
        body: &[u8],
    ) -> Result<Self, EventError> {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if kind.eq_ignore_ascii_case(STRUCTURED) {
            let event: Structured<'_> = serde_json::from_slice(body).map_err(EventError::Json)?;
            let decoded = event.data_base64.map(decoded).transpose()?;
            let data = match (event.data, &decoded) {
                (Some(data), None) => data.get().as_bytes(),
                (None, Some(data)) => data,
                (None, None) => &[],
                (Some(_), Some(_)) => return Err(EventError::Data),
            };
            return Self::of(|name| event.attribute(name), data);
        }
        let attribute = |name: &str| header(&format!("ce-{name}"));
        // A request that is not an event is rejected before its body is parsed.
        attribute("specversion").ok_or(EventError::NotAnEvent)?;
        Self::of(attribute, body)
    }

    fn of(attribute: impl Fn(&str) -> Option<String>, data: &[u8]) -> Result<Self, EventError> {
        let needed = |name: &str| attribute(name).ok_or(EventError::NotAnEvent);
        let (version, kind, id) = (needed("specversion")?, needed("type")?, needed("id")?);
        needed("source")?;
        if version != "1.0" {
            return Err(EventError::Version);
        }
        if kind != TYPE {
            return Err(EventError::Type);
        }
        let id = id.parse().map_err(|_| EventError::Id)?;
        let data: &RawValue = match data {
            [] => RawValue::NULL,
            data => serde_json::from_slice(data).map_err(EventError::Json)?,
        };
        // Data of another shape contains no report.
        let Data { node, envelope } = serde_json::from_str(data.get()).unwrap_or_default();
        let node = node.and_then(|node| serde_json::from_str::<Named>(node.get()).ok());
        Ok(Self {
            id,
            reference: attribute("dataref"),
            node: node.and_then(|node| NodeName::new(node.hostname).ok()),
            envelope: envelope.map(|envelope| envelope.get().as_bytes().to_vec()),
        })
    }

    /// Returns the key of this report in the bucket, below the bucket's prefix.
    fn key(&self) -> Option<String> {
        let name = self.node.as_ref()?.as_str().trim_matches('.');
        Some(format!("reports/{name}/{}.json", self.id))
    }
}

// === impl Structured ===

impl Structured<'_> {
    fn attribute(&self, name: &str) -> Option<String> {
        let written = match name {
            "specversion" => self.specversion,
            "id" => self.id,
            "source" => self.source,
            "type" => self.kind,
            "dataref" => self.dataref,
            _ => None,
        };
        serde_json::from_str(written?.get()).ok()
    }
}

fn decoded(text: &RawValue) -> Result<Vec<u8>, EventError> {
    let text: String = serde_json::from_str(text.get()).map_err(|_| EventError::Data)?;
    BASE64.decode(text).map_err(|_| EventError::Data)
}

// === impl Hub ===

impl Hub {
    /// Ingests the report of an event.
    pub(crate) async fn event(
        &self,
        permit: Permit,
        caller: &Caller,
        event: CloudEvent,
    ) -> Result<Receipt, Problem> {
        // Authorizes the caller before the report is fetched or parsed.
        if let Some(node) = &event.node {
            self.standing_of_passed_on(caller, node)?;
        }
        let envelope = match (&event.envelope, &event.reference) {
            (Some(envelope), _) => envelope,
            (None, Some(reference)) => &self.referred(&event, reference).await?,
            (None, None) => {
                let detail = "it contains no signed report and refers to none: have agents send events with `--objects`, or \
                              without it";
                return Err(Problem::new(422, "Not a report", detail));
            }
        };
        let arrival = self.signed(Bearer::Caller(caller), envelope)?;
        if arrival.id != event.id {
            return Err(Problem::new(422, "Not a report", "the event's id is not the report's"));
        }
        // The permit is released before the store: many reports that wait together are stored in one transaction.
        drop((event, permit));
        self.stored(arrival).await
    }

    /// Fetches the report from the object store. The hub builds the address itself and compares it with the
    /// reference; it never follows the reference.
    async fn referred(&self, event: &CloudEvent, reference: &str) -> Result<Vec<u8>, Problem> {
        let refused = |detail: &str| Problem::new(422, "Not a report", detail);
        let bucket = self.bucket.get();
        let bucket =
            bucket.ok_or_else(|| refused("it is stored elsewhere, and this hub has no object store"))?;
        let key = event.key().filter(|key| bucket.url(key) == reference);
        let key =
            key.ok_or_else(|| refused("it is not where agents put reports in this hub's object store"))?;
        let found = bucket.get(&key, MAX_REPORT as u64).await.map_err(|error| {
            tracing::warn!(error = %landfall_model::chain(&error), "A report was not read from the object store.");
            Problem::new(503, "Try again later", "the object store cannot be read now")
        })?;
        found.ok_or_else(|| {
            Problem::new(503, "Try again later", "the object store does not have the report yet")
        })
    }
}

impl From<EventError> for Problem {
    fn from(error: EventError) -> Self {
        Self::new(422, "Not an event", landfall_model::chain(&error).to_string())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

    fn event() -> Value {
        json!({
            "specversion": "1.0", "type": TYPE, "source": "/landfall/nodes/n1", "id": ID,
            "dataref": "https://bucket/x", "data": {"node": {"hostname": "n1"}},
        })
    }

    #[test]
    fn the_same_event_is_read_in_both_modes() {
        let none = |_: &str| None;
        let kind = "application/CloudEvents+json; charset=utf-8";
        let structured = CloudEvent::read(kind, none, event().to_string().as_bytes()).unwrap();
        let header = |name: &str| event()[name.strip_prefix("ce-")?].as_str().map(str::to_owned);
        let binary =
            CloudEvent::read("application/json", header, event()["data"].to_string().as_bytes()).unwrap();
        assert_eq!(structured, binary);
        assert_eq!(structured.key().unwrap(), format!("reports/n1/{ID}.json"));
        let mut encoded = event();
        let data = encoded.as_object_mut().unwrap().remove("data").unwrap();
        encoded["data_base64"] = BASE64.encode(data.to_string()).into();
        assert_eq!(CloudEvent::read(kind, none, encoded.to_string().as_bytes()).unwrap(), structured);
    }

    #[test]
    fn what_is_no_event_of_ours_is_refused() {
        let none = |_: &str| None;
        for (name, value) in [
            ("specversion", json!("0.3")),
            ("type", json!("com.example.other")),
            ("id", json!("1")),
            ("source", json!(null)),
            ("data_base64", json!("e30=")),
        ] {
            let mut event = event();
            event[name] = value;
            assert!(CloudEvent::read(STRUCTURED, none, event.to_string().as_bytes()).is_err(), "{name}");
        }
        assert!(CloudEvent::read("application/json", none, event().to_string().as_bytes()).is_err());
        for name in ["../n2", "", "a/b"] {
            let mut event = event();
            event["data"]["node"]["hostname"] = name.into();
            let event = CloudEvent::read(STRUCTURED, none, event.to_string().as_bytes()).unwrap();
            assert_eq!(event.key(), None, "{name}");
        }
    }

    #[test]
    fn data_of_any_shape_is_an_event_without_a_report() {
        let read = |data: &str| {
            let event = event().to_string().replace(r#"{"node":{"hostname":"n1"}}"#, data);
            CloudEvent::read(STRUCTURED, |_: &str| None, event.as_bytes())
        };
        for data in ["[]", "7", "null", r#""text""#, r#"{"node": 7, "envelope": null}"#] {
            let event = read(data).unwrap();
            assert!(event.envelope.is_none() && event.node.is_none(), "{data}");
        }
        let inside = read(r#"{"envelope": {"id":  [1]}}"#).unwrap();
        assert_eq!(inside.envelope.as_deref(), Some(&br#"{"id":  [1]}"#[..]), "as it is written");
        assert!(read("{").is_err());
    }
}
