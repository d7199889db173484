//! The parts that all answers of the server share.

use super::shared::Shared;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::sync::Arc;

pub(super) type Shares = State<Arc<Shared>>;

/// Returns an answer that says in a sentence why there is no other.
pub(super) fn failure(status: StatusCode, reason: &str) -> Response {
    (status, Json(json!({ "error": reason }))).into_response()
}
