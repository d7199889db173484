//! The file itself: a description in OpenAPI 3.1 of all that the server has.

use crate::api::{Api, TEXT, object};
use railweave_counters::{Counter, Unit};
use serde_json::Value;
use std::collections::BTreeSet;

/// The server's routes are lines of it.
const SERVER: &str = include_str!("../../src/commands/agent/server.rs");

const METHODS: [&str; 5] = ["get", "put", "delete", "post", "patch"];

fn document() -> Value {
    serde_json::from_str(TEXT).unwrap()
}

/// Calls `see` for each object in a value.
fn walk<'a>(value: &'a Value, see: &mut impl FnMut(&'a Value)) {
    match value {
        Value::Object(fields) => {
            see(value);
            fields.values().for_each(|value| walk(value, see));
        }
        Value::Array(items) => items.iter().for_each(|value| walk(value, see)),
        _ => {}
    }
}

fn sentence<'a>(value: &'a Value, key: &str) -> &'a str {
    let text = value[key].as_str().unwrap_or_else(|| panic!("no {key} in {value}"));
    assert!(!text.trim().is_empty(), "{value}");
    text
}

#[test]
fn the_file_has_the_parts_of_openapi() {
    let document = document();
    let api = Api::new(&document);
    assert_eq!(document["openapi"], "3.1.0");
    assert!(!sentence(&document["info"], "title").is_empty() && !sentence(&document["info"], "version").is_empty());
    let mut ids = BTreeSet::new();
    for operation in api.operations() {
        let (path, content) = (operation.path, operation.content);
        assert!(METHODS.contains(&&*operation.method.to_ascii_lowercase()), "{path}: {}", operation.method);
        assert!(path.starts_with('/'), "{path}");
        let id = sentence(content, "operationId");
        assert!(ids.insert(id), "{id} is there twice");
        sentence(content, "summary");
        sentence(content, "description");
        for requirement in content["security"].as_array().unwrap() {
            let schemes = object(&document["components"]["securitySchemes"]);
            assert!(object(requirement).keys().all(|name| schemes.contains_key(name)), "{path}: {requirement}");
        }
        let declared = content.get("parameters").and_then(Value::as_array).into_iter().flatten();
        let declared: BTreeSet<&str> = declared
            .map(|parameter| {
                let parameter = api.schemas.resolve(parameter).unwrap();
                let is_in_path = parameter["in"] == "path";
                assert!(is_in_path || parameter["in"] == "query", "{path}");
                assert_eq!(parameter["required"], is_in_path, "{path}");
                sentence(parameter, "description");
                (sentence(parameter, "name"), is_in_path)
            })
            .filter_map(|(name, is_in_path)| is_in_path.then_some(name))
            .collect();
        if let Some(body) = content.get("requestBody") {
            sentence(body, "description");
            assert!(body["content"]["application/json"]["schema"].is_object(), "{path}");
        }
        let named = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        assert_eq!(declared, named.collect(), "{path}");
        assert!(object(&content["responses"]).keys().any(|status| status.starts_with('2')), "{path}");
        for (status, response) in object(&content["responses"]) {
            assert!(status.parse::<u16>().is_ok_and(|status| (200..600).contains(&status)), "{path}: {status}");
            let response = api.schemas.resolve(response).unwrap();
            sentence(response, "description");
            assert!(object(&response["content"]).values().all(|content| content["schema"].is_object()), "{path}");
        }
    }
}

#[test]
fn every_reference_leads_somewhere_and_every_component_is_used() {
    let document = document();
    let api = Api::new(&document);
    let mut used = BTreeSet::new();
    walk(&document, &mut |value| {
        api.schemas.resolve(value).unwrap();
        used.extend(value.get("$ref").and_then(Value::as_str).map(str::to_owned));
    });
    for kind in ["parameters", "responses", "schemas"] {
        for name in object(&document["components"][kind]).keys() {
            assert!(used.contains(&format!("#/components/{kind}/{name}")), "{name} is not used");
        }
    }
}

#[test]
fn every_field_has_its_meaning_and_nothing_else_is_allowed() {
    let document = document();
    for (name, schema) in object(&document["components"]["schemas"]) {
        sentence(schema, "description");
        walk(schema, &mut |schema| {
            let Some(properties) = schema.get("properties") else { return };
            assert_eq!(schema["additionalProperties"], false, "{name}");
            for (property, field) in object(properties) {
                assert!(field.get("$ref").is_some() || field["description"].is_string(), "{name}.{property}");
            }
        });
    }
}

#[test]
fn examples_fit_their_schemas() {
    let document = document();
    let api = Api::new(&document);
    let mut count = 0;
    walk(&document, &mut |value| {
        if let Some((example, schema)) = value.get("example").zip(value.get("schema")) {
            assert_eq!(api.schemas.check(schema, example, "example"), Ok(()));
            count += 1;
        }
    });
    assert!(count >= 10, "{count}");
}

#[test]
fn every_counter_is_in_the_file() {
    let document = document();
    let properties = object(&document["components"]["schemas"]["Counters"]["properties"]);
    for counter in Counter::ALL {
        let (name, unit) = match counter.unit() {
            Unit::Bytes => (counter.name().to_owned(), "in bytes"),
            Unit::Packets => (counter.name().to_owned(), "in packets"),
            Unit::Events => (counter.name().to_owned(), "a number"),
            Unit::Ticks => (counter.name().to_owned(), "in ticks of the adapter's own clock"),
            Unit::Microseconds => (counter.name().replace("_seconds", "_microseconds"), "in microseconds"),
        };
        let expected = format!("{}; {unit}.", counter.help().trim_end_matches('.'));
        assert_eq!(properties.get(&name).map(|field| &field["description"]), Some(&expected.into()), "{name}");
    }
    assert_eq!(properties.len(), Counter::ALL.len());
}

#[test]
fn every_kind_of_finding_is_in_the_file() {
    let document = document();
    let kind = &document["components"]["schemas"]["Finding"]["properties"]["kind"];
    let kinds: Vec<Value> = railweave_agent::KINDS.iter().map(|(kind, _)| Value::from(*kind)).collect();
    assert_eq!(kind["enum"], Value::Array(kinds));
    for (kind_word, meaning) in railweave_agent::KINDS {
        assert!(sentence(kind, "description").contains(&format!("{kind_word}: {meaning}.")), "{kind_word}");
    }
}

#[test]
fn the_server_has_the_paths_and_methods_of_the_file() {
    let document = document();
    let mut routes = BTreeSet::new();
    for line in SERVER.lines().filter_map(|line| line.trim().strip_prefix(".route(\"")) {
        let (path, handlers) = line.split_once('"').unwrap();
        for method in METHODS.iter().filter(|method| {
            let at_begin = handlers.starts_with(&format!(", {method}("));
            at_begin || handlers.contains(&format!(").{method}("))
        }) {
            routes.insert((method.to_ascii_uppercase(), path));
        }
    }
    let described: BTreeSet<_> =
        Api::new(&document).operations().into_iter().map(|operation| (operation.method, operation.path)).collect();
    assert_eq!(described, routes.iter().map(|(method, path)| (method.clone(), *path)).collect());
    assert_eq!(SERVER.matches(".route(").count(), SERVER.matches(".route(\"").count(), "a route on more lines");
}
