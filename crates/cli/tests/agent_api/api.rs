//! docs/agent-api.json: its operations, and the answers that it allows.

use crate::http::Answer;
use crate::schema::Schemas;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// The file.
pub(crate) const TEXT: &str = include_str!("../../../../docs/agent-api.json");

/// An operation of the file.
pub(crate) struct Operation<'a> {
    /// As HTTP writes it.
    pub(crate) method: String,
    pub(crate) path: &'a str,
    pub(crate) content: &'a Value,
}

/// The file, with everything that was asked so far.
pub(crate) struct Api<'a> {
    document: &'a Value,
    pub(crate) schemas: Schemas<'a>,
    /// The answers that came: method, path and status.
    answered: RefCell<BTreeSet<(String, String, u16)>>,
}

impl<'a> Api<'a> {
    pub(crate) fn new(document: &'a Value) -> Self {
        Self { document, schemas: Schemas::new(document), answered: RefCell::default() }
    }

    pub(crate) fn operations(&self) -> Vec<Operation<'a>> {
        let mut operations = Vec::new();
        for (path, item) in object(&self.document["paths"]) {
            for (method, content) in object(item) {
                operations.push(Operation { method: method.to_ascii_uppercase(), path, content });
            }
        }
        operations
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &'a str> {
        object(&self.document["paths"]).keys().map(String::as_str)
    }

    /// Checks the answer to a request for a path of the file.
    ///
    /// # Errors
    /// If the file does not allow it: a sentence.
    pub(crate) fn check(&self, method: &str, path: &str, answer: &Answer) -> Result<(), String> {
        let operations = self.operations();
        let operation = operations.iter().find(|it| it.method == method && it.path == path);
        let operation = operation.ok_or_else(|| format!("{method} {path} is not in the file"))?;
        let status = answer.status;
        let response = operation.content["responses"].get(status.to_string());
        let response = response.ok_or_else(|| format!("{method} {path} must not answer {status}: {}", answer.body))?;
        let response = self.schemas.resolve(response)?;
        let kind = answer.header("content-type").unwrap_or_default();
        let content = response["content"].get(kind);
        let content = content.ok_or_else(|| format!("{method} {path}: \"{kind}\" is not a type in the file"))?;
        for (name, header) in response.get("headers").map(object).into_iter().flatten() {
            let value = answer.header(name).map_or(Value::Null, Value::from);
            self.schemas.check(&header["schema"], &value, name)?;
        }
        let body = if kind == "application/json" { answer.json() } else { Value::from(&*answer.body) };
        self.schemas.check(&content["schema"], &body, path)?;
        self.answered.borrow_mut().insert((method.to_owned(), path.to_owned(), status));
        Ok(())
    }

    /// Checks the answer to a request that no operation of the file is for.
    #[track_caller]
    pub(crate) fn check_error(&self, status: u16, answer: &Answer) {
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"), "{answer:?}");
        let schema = &self.document["components"]["schemas"]["Error"];
        assert_eq!(self.schemas.check(schema, &answer.json(), "Error"), Ok(()));
    }

    /// Returns the answers of the file with these statuses that have not come yet.
    pub(crate) fn missing(&self, statuses: &[u16]) -> BTreeSet<(String, String, u16)> {
        let mut missing = BTreeSet::new();
        for operation in self.operations() {
            for status in object(&operation.content["responses"]).keys() {
                missing.insert((operation.method.clone(), operation.path.to_owned(), status.parse().unwrap()));
            }
        }
        missing.retain(|answer| statuses.contains(&answer.2) && !self.answered.borrow().contains(answer));
        missing
    }

    /// Returns the required properties of the file that no answer has had, or only as null.
    pub(crate) fn unseen(&self) -> BTreeSet<String> {
        let mut unseen = BTreeSet::new();
        for (name, schema) in object(&self.document["components"]["schemas"]) {
            let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
            unseen.extend(required.map(|property| format!("{name}.{}", property.as_str().unwrap())));
        }
        &unseen - &self.schemas.seen()
    }
}

pub(crate) fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap_or_else(|| panic!("no object: {value}"))
}
