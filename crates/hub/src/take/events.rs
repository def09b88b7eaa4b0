//! CloudEvents that somebody passes on: from a queue, a topic, a broker. The signed report is in the event, or in the object
//! store the hub was told of; no other place is ever asked for it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use landfall_model::envelope::ReportId;
use serde_json::Value;

use super::Bearer;
use crate::access::Caller;
use crate::hub::{Hub, Receipt};
use crate::name::NodeName;
use crate::problem::Problem;
use crate::receive::MAX_REPORT;

/// The kind of event agents send.
const TYPE: &str = "dev.landfall.report.v1";
const STRUCTURED: &str = "application/cloudevents+json";

/// What counts of an event, whichever way it is written.
#[derive(Clone, Debug, PartialEq)]
pub struct CloudEvent {
    pub id: ReportId,
    /// Where the report is, in the sender's words.
    pub reference: Option<String>,
    pub data: Value,
}

#[derive(Debug, thiserror::Error)]
pub enum EventError {
    #[error("it is no JSON")]
    Json(#[source] serde_json::Error),
    #[error("it is no CloudEvent: an object with text in `specversion`, `id`, `source` and `type`")]
    NotAnEvent,
    #[error("it is not of CloudEvents 1.0")]
    Version,
    #[error("its type is not `{TYPE}`")]
    Type,
    #[error("its id is no report's")]
    Id,
    #[error("its data cannot be read: JSON, or JSON in base64 under `data_base64`")]
    Data,
}

// === impl CloudEvent ===

impl CloudEvent {
    /// Reads an event: all of it in the body (`structured`), or its attributes in headers and its data in the body (`binary`).
    /// Pure.
    pub fn read(
        kind: &str,
        header: impl Fn(&str) -> Option<String>,
        body: &[u8],
    ) -> Result<Self, EventError> {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if kind.eq_ignore_ascii_case(STRUCTURED) {
            let event: Value = serde_json::from_slice(body).map_err(EventError::Json)?;
            let attribute = |name: &str| event[name].as_str().map(str::to_owned);
            let data = match (event.get("data"), event.get("data_base64")) {
                (Some(data), None) => data.clone(),
                (None, Some(text)) => decoded(text)?,
                (None, None) => Value::Null,
                (Some(_), Some(_)) => return Err(EventError::Data),
            };
            return Self::of(attribute, data);
        }
        let attribute = |name: &str| header(&format!("ce-{name}"));
        // Who speaks of no event at all is told so before the body is looked at.
        attribute("specversion").ok_or(EventError::NotAnEvent)?;
        let data = if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(body).map_err(EventError::Json)?
        };
        Self::of(attribute, data)
    }

    fn of(attribute: impl Fn(&str) -> Option<String>, data: Value) -> Result<Self, EventError> {
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
        Ok(Self { id, reference: attribute("dataref"), data })
    }

    /// Where agents put this report, below the bucket's prefix.
    fn key(&self) -> Option<String> {
        let name = NodeName::new(self.data["node"]["hostname"].as_str()?).ok()?;
        Some(format!("reports/{}/{}.json", name.as_str().trim_matches('.'), self.id))
    }
}

fn decoded(text: &Value) -> Result<Value, EventError> {
    let bytes = text.as_str().and_then(|text| BASE64.decode(text).ok()).ok_or(EventError::Data)?;
    serde_json::from_slice(&bytes).map_err(|_| EventError::Data)
}

// === impl Hub ===

impl Hub {
    /// Takes in the report of an event.
    pub(crate) async fn event(&self, caller: &Caller, event: &CloudEvent) -> Result<Receipt, Problem> {
        let inside = event.data.get("envelope").filter(|envelope| !envelope.is_null());
        let envelope = match (inside, &event.reference) {
            (Some(envelope), _) => envelope.to_string().into_bytes(),
            (None, Some(reference)) => self.referred(event, reference).await?,
            (None, None) => {
                let detail = "it holds no signed report and refers to none: have agents send events with `--objects`, or \
                              without it";
                return Err(Problem::new(422, "Not a report", detail));
            }
        };
        let named = serde_json::from_slice::<Value>(&envelope).ok();
        if named.is_none_or(|named| named["id"].as_str() != Some(&event.id.to_string())) {
            return Err(Problem::new(422, "Not a report", "the event's id is not the report's"));
        }
        self.taken(Bearer::Caller(caller), &envelope).await
    }

    /// The report in the object store. The address is made here and compared, never followed.
    async fn referred(&self, event: &CloudEvent, reference: &str) -> Result<Vec<u8>, Problem> {
        let refused = |detail: &str| Problem::new(422, "Not a report", detail);
        let bucket = self.bucket.get();
        let bucket =
            bucket.ok_or_else(|| refused("it is elsewhere, and this hub was not told of an object store"))?;
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
    use serde_json::json;

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
}
