//! The OpenAPI document, generated from the table of routes and the types of the API.

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::http::{BatchAnswer, FoundList, Groups, History, LogFiles, Method, ROUTES, RoleList, TokenWish};
use crate::{bundles, hub, problem, progress, store};

/// Returns the document stored as `docs/reference/hub.openapi.json`.
pub fn document() -> Value {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator();
    register(&mut generator);
    let mut paths = Map::new();
    for route in ROUTES {
        let methods: Map<String, Value> = route
            .methods
            .iter()
            .map(|method| (method.name.to_owned(), operation(route.path, method)))
            .collect();
        paths.insert(route.path.to_owned(), Value::Object(methods));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Landfall hub",
            "version": "1",
            "description": "Reports and bundles in, the fleet out. Fields are added, never changed. A report is sent again \
                with the same id until it is answered; an answer of 200 means that it is on the disk.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer", "description": "`landfall hub token`" },
                "certificate": { "type": "mutualTLS", "description": "A node's certificate, or one of `landfall:operators` or `landfall:viewers`" },
            },
        },
        "security": [{ "token": [] }, { "certificate": [] }, {}],
    })
}

fn register(generator: &mut SchemaGenerator) {
    generator.subschema_for::<landfall_model::envelope::Envelope>();
    generator.subschema_for::<landfall_model::report::Report>();
    generator.subschema_for::<hub::Receipt>();
    generator.subschema_for::<hub::NodeView>();
    generator.subschema_for::<hub::CauseTrend>();
    generator.subschema_for::<hub::NewToken>();
    generator.subschema_for::<store::Fleet>();
    generator.subschema_for::<store::NodePage>();
    generator.subschema_for::<store::BundleRecord>();
    generator.subschema_for::<bundles::LogPage>();
    generator.subschema_for::<problem::Problem>();
    generator.subschema_for::<landfall_model::in_place::Progress>();
    generator.subschema_for::<progress::NodeProgress>();
    generator.subschema_for::<progress::ProgressLines>();
    generator.subschema_for::<progress::ProgressReceipt>();
    generator.subschema_for::<BatchAnswer>();
    generator.subschema_for::<FoundList>();
    generator.subschema_for::<Groups>();
    generator.subschema_for::<History>();
    generator.subschema_for::<LogFiles>();
    generator.subschema_for::<RoleList>();
    generator.subschema_for::<TokenWish>();
}

fn operation(path: &str, method: &Method) -> Value {
    let reference = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let in_path = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> = in_path
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
        .collect();
    parameters.extend(method.parameters.iter().map(|parameter| {
        json!({
            "name": parameter.name,
            "in": "query",
            "description": parameter.about,
            "schema": { "type": parameter.kind },
        })
    }));
    let (status, schema) = method.answer;
    let content = match schema {
        Some("Receipt") => {
            json!({ "application/json": { "schema": { "oneOf": [reference("Receipt"), reference("BatchAnswer")] } } })
        }
        Some(name) => json!({ "application/json": { "schema": reference(name) } }),
        None => json!({}),
    };
    let mut operation = json!({
        "summary": method.summary,
        "description": format!("Permitted callers: {}", method.caller),
        "parameters": parameters,
        "responses": {
            status.to_string(): { "description": "Done", "content": content },
            "default": {
                "description": "Failed, with the reason; `retry` shows whether the same request can succeed later",
                "content": { "application/problem+json": { "schema": reference("Problem") } },
            },
        },
    });
    if let Some((kind, schema)) = method.request {
        let mut content = match schema {
            "binary" => json!({ kind: {}, "application/zstd": {} }),
            "any" => json!({ kind: {} }),
            name => json!({ kind: { "schema": reference(name) } }),
        };
        if schema == "Envelope" {
            content["application/x-ndjson"] =
                json!({ "schema": { "type": "string", "description": "One `Envelope` per line" } });
        }
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    operation
}
