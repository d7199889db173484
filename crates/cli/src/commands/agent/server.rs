//! Metrics and API: docs/agent-api.json describes each path.

use super::access::{self, Gate};
use super::answers::{Shares, failure};
use super::orders;
use super::shared::Shared;
use super::sockets::{Limited, Tcp};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router, middleware};
use railweave_agent::State as Whole;
use serde::Serialize;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

/// The description of the API.
const API: &str = include_str!("../../../../../docs/agent-api.json");

/// The type of the text of OpenMetrics 1.0.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The time without a look after which the agent counts as stuck, unless its looks are rarer.
const STUCK: Duration = Duration::from_secs(60);

/// Serves at a TCP address.
pub(super) fn start(shared: &Arc<Shared>, tcp: Tcp, listen: SocketAddr) -> JoinHandle<()> {
    let gate = Gate { shared: Arc::clone(shared), listen };
    let router = router(Arc::clone(shared)).layer(middleware::from_fn_with_state(gate, access::check));
    tokio::spawn(async move {
        let listener = Limited::new(tcp.ready().await);
        // It only ends with the process.
        let _ = axum::serve(listener, router).await;
    })
}

/// Serves at the socket of this user's run dir, which nobody else can reach.
pub(super) async fn serve_own(shared: Arc<Shared>, listener: Limited<UnixListener>) {
    let _ = axum::serve(listener, router(shared)).await;
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .route("/readyz", get(readiness))
        .route("/api/v1/openapi.json", get(|| async { ([(CONTENT_TYPE, "application/json")], API) }))
        .route("/api/v1/state", get(|shared: Shares| part(shared, "state", |all| all)))
        .route("/api/v1/jobs", get(|shared: Shares| part(shared, "jobs", |all| &all.jobs)))
        .route("/api/v1/ports", get(|shared: Shares| part(shared, "ports", |all| &all.ports)))
        .route("/api/v1/users", get(|shared: Shares| part(shared, "users", |all| &all.users)))
        .route("/api/v1/findings", get(|shared: Shares| part(shared, "findings", |all| &all.findings)))
        .route("/api/v1/drains", get(orders::drains))
        .route("/api/v1/drains/{port}", put(orders::drain).delete(orders::give_back))
        .route("/api/v1/rules", get(orders::rules))
        .route("/api/v1/rules/{matchers}", put(orders::set).delete(orders::clear))
        .route("/api/v1/reload", post(reload))
        .fallback(|| async { failure(StatusCode::NOT_FOUND, "there is no such path; try /api/v1/openapi.json") })
        .method_not_allowed_fallback(|| async {
            let reason = "this path takes other methods; allowed: those in the header Allow; try \
                          /api/v1/openapi.json for their meaning";
            failure(StatusCode::METHOD_NOT_ALLOWED, reason)
        })
        .layer(DefaultBodyLimit::max(orders::LONGEST_BODY))
        .with_state(shared)
}

async fn metrics(State(shared): Shares) -> Response {
    ([(CONTENT_TYPE, OPEN_METRICS)], shared.metrics()).into_response()
}

/// The agent is alive unless its looks hang.
async fn health(State(shared): Shares) -> Response {
    let (age, most) = shared.look_age().unwrap_or((shared.age(), STUCK));
    if age > STUCK.max(most) {
        return failure(
            StatusCode::SERVICE_UNAVAILABLE,
            "the last look is long ago, so it hangs; try restarting the agent",
        );
    }
    Json(json!({ "status": "alive" })).into_response()
}

/// The agent is ready once it has looked, and while it goes on looking.
async fn readiness(State(shared): Shares) -> Response {
    match shared.look_age() {
        Some((age, most)) if age <= most => Json(json!({ "status": "ready" })).into_response(),
        Some(_) => failure(StatusCode::SERVICE_UNAVAILABLE, "the last look was too long ago"),
        None => failure(StatusCode::SERVICE_UNAVAILABLE, "the agent has not looked yet"),
    }
}

/// Returns a part of the state, or all of it.
async fn part<T: Serialize>(State(shared): Shares, name: &'static str, part: fn(&Whole) -> &T) -> Response {
    ([(CONTENT_TYPE, "application/json")], shared.json(name, part)).into_response()
}

async fn reload(State(shared): Shares) -> Response {
    shared.reload();
    (
        StatusCode::ACCEPTED,
        Json(json!({ "status": "the configuration is read again; log and findings have the result" })),
    )
        .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::agent::shared::tests::aged;

    #[tokio::test]
    async fn an_agent_is_ready_while_it_looks_and_alive_until_its_looks_hang() {
        for (every_ms, began, looked, expected) in [
            (1000, 59, None, [200, 503]),
            (1000, 61, None, [503, 503]),
            (1000, 100, Some(7), [200, 200]),
            (1000, 100, Some(9), [200, 503]),
            (1000, 100, Some(61), [503, 503]),
            (60_000, 1000, Some(184), [200, 200]),
            (60_000, 1000, Some(186), [503, 503]),
        ] {
            let seconds = Duration::from_secs;
            let shared = aged(every_ms, seconds(began), looked.map(seconds));
            let answers = [health(State(Arc::clone(&shared))).await, readiness(State(shared)).await];
            assert_eq!(answers.map(|answer| answer.status().as_u16()), expected, "{every_ms} {began} {looked:?}");
        }
    }
}
