//! The part of JSON Schema 2020-12 that docs/agent-api.json uses. A keyword that is not known here is an error.
//!
//! The crate `jsonschema` would bring 36 crates that nothing else needs, and build for a minute of processor time.

use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// The schemas of a document, and the properties that values have had so far.
pub(crate) struct Schemas<'a> {
    document: &'a Value,
    /// Properties that were there and not null, as `Schema.property`.
    seen: RefCell<BTreeSet<String>>,
}

impl<'a> Schemas<'a> {
    pub(crate) fn new(document: &'a Value) -> Self {
        Self { document, seen: RefCell::default() }
    }

    pub(crate) fn seen(&self) -> BTreeSet<String> {
        self.seen.borrow().clone()
    }

    /// Returns the part of the document to which `value` refers, or `value` itself if it is no reference.
    pub(crate) fn resolve(&self, value: &'a Value) -> Result<&'a Value, String> {
        value.get("$ref").map_or(Ok(value), |reference| self.follow(reference))
    }

    /// Checks a value against a schema. `name` is that of the schema, for [`Self::seen`] and for errors.
    ///
    /// # Errors
    /// If the value does not fit: a sentence.
    pub(crate) fn check(&self, schema: &'a Value, value: &Value, name: &str) -> Result<(), String> {
        let schema = schema.as_object().ok_or_else(|| format!("{name}: the schema is no object"))?;
        for (keyword, rule) in schema {
            let fits = match keyword.as_str() {
                "description" | "example" | "examples" => true,
                "$ref" => {
                    let name = rule.as_str().and_then(|text| text.rsplit('/').next()).unwrap_or(name);
                    self.check(self.follow(rule)?, value, name)?;
                    true
                }
                "anyOf" => list(rule, name)?.iter().any(|one| self.check(one, value, name).is_ok()),
                "type" => match rule {
                    Value::Array(types) => types.iter().any(|one| is_of_type(one, value)),
                    one => is_of_type(one, value),
                },
                "enum" => list(rule, name)?.contains(value),
                "minimum" => value.as_f64().is_none_or(|it| rule.as_f64().is_some_and(|bound| it >= bound)),
                "maximum" => value.as_f64().is_none_or(|it| rule.as_f64().is_some_and(|bound| it <= bound)),
                "minLength" => length(value).is_none_or(|it| rule.as_u64().is_some_and(|bound| it >= bound)),
                "maxLength" => length(value).is_none_or(|it| rule.as_u64().is_some_and(|bound| it <= bound)),
                "items" => {
                    for item in value.as_array().into_iter().flatten() {
                        self.check(rule, item, name)?;
                    }
                    true
                }
                "required" => {
                    let is_there = |key: &Value| key.as_str().is_some_and(|key| value.get(key).is_some());
                    !value.is_object() || list(rule, name)?.iter().all(is_there)
                }
                "propertyNames" => {
                    for key in value.as_object().into_iter().flat_map(Map::keys) {
                        self.check(rule, &Value::String(key.clone()), name)?;
                    }
                    true
                }
                "properties" | "additionalProperties" => {
                    self.check_properties(schema, value, name)?;
                    true
                }
                other => return Err(format!("{name}: the keyword \"{other}\" is not known to this test")),
            };
            if !fits {
                return Err(format!("{name}: {value} does not fit \"{keyword}\": {rule}"));
            }
        }
        Ok(())
    }

    /// Returns the part of the document with this reference.
    pub(crate) fn follow(&self, reference: &Value) -> Result<&'a Value, String> {
        let pointer = reference.as_str().and_then(|text| text.strip_prefix('#'));
        let found = pointer.and_then(|pointer| self.document.pointer(pointer));
        found.ok_or_else(|| format!("{reference} leads nowhere"))
    }

    fn check_properties(&self, schema: &'a Map<String, Value>, value: &Value, name: &str) -> Result<(), String> {
        for (key, value) in value.as_object().into_iter().flatten() {
            let path = format!("{name}.{key}");
            match (schema.get("properties").and_then(|it| it.get(key)), schema.get("additionalProperties")) {
                (Some(rule), _) => {
                    self.check(rule, value, &path)?;
                    if !value.is_null() {
                        self.seen.borrow_mut().insert(path);
                    }
                }
                (None, Some(Value::Bool(false))) => return Err(format!("{path} is not in the file")),
                (None, None | Some(Value::Bool(true))) => {}
                (None, Some(rule)) => self.check(rule, value, &path)?,
            }
        }
        Ok(())
    }
}

fn list<'a>(rule: &'a Value, name: &str) -> Result<&'a Vec<Value>, String> {
    rule.as_array().ok_or_else(|| format!("{name}: {rule} is no list"))
}

fn length(value: &Value) -> Option<u64> {
    Some(value.as_str()?.chars().count() as u64)
}

fn is_of_type(name: &Value, value: &Value) -> bool {
    match name.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => false,
    }
}

#[test]
fn values_that_do_not_fit_are_refused() {
    let document = serde_json::json!({"components": {"schemas": {"Rail": {
        "type": "object", "required": ["number"], "additionalProperties": false,
        "properties": {
            "number": {"type": "integer", "minimum": 0, "maximum": 255},
            "up": {"type": ["boolean", "null"]},
        },
    }}}});
    let rail = serde_json::json!({"$ref": "#/components/schemas/Rail"});
    let cases = [
        (r#"{"type": "array", "items": {"type": "number"}}"#, "[1, 1.5]", r#"["1"]"#),
        (r#"{"type": ["string", "null"], "minLength": 2, "maxLength": 3}"#, "null", "\"1234\""),
        (r#"{"enum": ["up", "down"]}"#, "\"up\"", "\"left\""),
        (r#"{"anyOf": [{"type": "string"}, {"type": "null"}]}"#, "null", "1"),
        (
            r#"{"propertyNames": {"maxLength": 1}, "additionalProperties": {"type": "number"}}"#,
            r#"{"1": 1}"#,
            r#"{"12": 1}"#,
        ),
        (r#"{"additionalProperties": {"type": "number"}}"#, r#"{"1": 1}"#, r#"{"1": true}"#),
        (r#"{"type": "integer"}"#, "18446744073709551615", "1.0"),
        (r#"{"type": "number"}"#, "0.5", "null"),
    ];
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    for (schema, good, bad) in cases {
        let schema = parse(schema);
        let schemas = Schemas::new(&document);
        assert_eq!(schemas.check(&schema, &parse(good), "it"), Ok(()));
        assert!(schemas.check(&schema, &parse(bad), "it").is_err(), "{schema} and {bad}");
    }
    let schemas = Schemas::new(&document);
    for (value, words) in [
        ("{}", "required"),
        (r#"{"number": 256}"#, "Rail.number: 256 does not fit \"maximum\""),
        (r#"{"number": 1, "name": ""}"#, "Rail.name is not in the file"),
        (r#"{"number": 1, "up": 0}"#, "type"),
        ("[]", "type"),
    ] {
        let error = schemas.check(&rail, &parse(value), "it").unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(schemas.check(&rail, &parse(r#"{"number": 1, "up": null}"#), "it"), Ok(()));
    assert_eq!(schemas.seen(), ["Rail.number".to_owned()].into());
    for schema in [r#"{"oneOf": []}"#, r##"{"$ref": "#/components/schemas/Lane"}"##, "true"] {
        assert!(schemas.check(&parse(schema), &Value::Null, "it").is_err(), "{schema}");
    }
}
