//! The orders that the API takes: drained ports and rules, given or only tried.

use super::answers::{Shares, failure};
use super::log;
use super::shared::Shared;
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use railweave_agent::{LONGEST_RULE, OperatorOrder, Steers};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// The bytes of the longest name of a port.
const LONGEST_NAME: usize = 64;

/// The bytes of the longest body of a request.
pub(super) const LONGEST_BODY: usize = 64 << 10;

/// The longest time for which an order waits for the look that carries it out.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// The actions of a rule, as the body of a request has them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Actions {
    actions: String,
}

/// The status of an order that is not taken, and a sentence.
type Refusal = (StatusCode, String);

/// The part of the path that names a port or matchers.
type Named = Result<Path<String>, PathRejection>;

fn wrong(reason: impl Into<String>) -> Refusal {
    (StatusCode::BAD_REQUEST, reason.into())
}

/// Returns the ports that are to be empty.
pub(super) async fn drains(State(shared): Shares) -> Json<Value> {
    let state = shared.state();
    let drained = state.ports.iter().filter(|port| port.drain.is_some());
    Json(json!(drained.map(|port| json!({ "port": port.port, "drain": port.drain })).collect::<Vec<_>>()))
}

pub(super) async fn drain(State(shared): Shares, port: Named, query: RawQuery) -> Response {
    answer(async { order(&shared, OperatorOrder::Drain(&port_of(port)?), &query).await }).await
}

pub(super) async fn give_back(State(shared): Shares, port: Named, query: RawQuery) -> Response {
    answer(async { order(&shared, OperatorOrder::GiveBack(&port_of(port)?), &query).await }).await
}

/// Returns the rules of an operator, the newest first.
pub(super) async fn rules(State(shared): Shares) -> Json<Value> {
    let agent = shared.agent();
    let rules = agent.operator_rules().map(
        |(rule, since)| json!({ "matchers": rule.matchers, "actions": rule.actions, "since": since.as_secs_f64() }),
    );
    Json(json!(rules.collect::<Vec<_>>()))
}

pub(super) async fn set(
    State(shared): Shares,
    matchers: Named,
    query: RawQuery,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    answer(async {
        let matchers = matchers_of(matchers)?;
        check_looked(&shared)?;
        let rule = format!("{matchers} -> {}", actions_of(body)?);
        order(&shared, OperatorOrder::Set(&rule), &query).await
    })
    .await
}

pub(super) async fn clear(State(shared): Shares, matchers: Named, query: RawQuery) -> Response {
    answer(async { order(&shared, OperatorOrder::Clear(&matchers_of(matchers)?), &query).await }).await
}

async fn answer(answer: impl Future<Output = Result<Response, Refusal>>) -> Response {
    answer.await.unwrap_or_else(|(status, reason)| failure(status, &reason))
}

/// Returns the port that an order names.
fn port_of(port: Named) -> Result<String, Refusal> {
    let Ok(Path(port)) = port else {
        return Err(wrong(
            "the name of the port is no text; allowed: UTF-8, with percent-encoding; try a name as GET /api/v1/ports \
             shows it",
        ));
    };
    if port.len() > LONGEST_NAME {
        return Err(wrong(format!(
            "the name of the port has {} bytes; allowed: up to {LONGEST_NAME}; try a name as GET /api/v1/ports shows \
             it",
            port.len()
        )));
    }
    Ok(port)
}

/// Returns the matchers that an order names.
fn matchers_of(matchers: Named) -> Result<String, Refusal> {
    let Ok(Path(matchers)) = matchers else {
        return Err(wrong(
            "the matchers are no text; allowed: UTF-8, with percent-encoding; try peer=node3, or matchers as GET \
             /api/v1/rules shows them",
        ));
    };
    if matchers.len() > LONGEST_RULE {
        return Err(wrong(format!(
            "the matchers have {} bytes; allowed: up to {LONGEST_RULE} with the actions; try a rule for each part",
            matchers.len()
        )));
    }
    Ok(matchers)
}

/// Returns the actions that the body of a request has.
fn actions_of(body: Result<Bytes, BytesRejection>) -> Result<String, Refusal> {
    const EXAMPLE: &str = "try {\"actions\": \"weights 80,20\"}";
    let body = body.map_err(|_| {
        wrong(format!("the body cannot be read, or is too long; allowed: up to {LONGEST_BODY} bytes; {EXAMPLE}"))
    })?;
    let Actions { actions } = serde_json::from_slice(&body)
        .map_err(|error| wrong(format!("the body: {error}; allowed: JSON with the actions of the rule; {EXAMPLE}")))?;
    Ok(actions)
}

/// Returns true if an order is only tried.
fn is_dry(RawQuery(query): &RawQuery) -> Result<bool, Refusal> {
    match query.as_deref() {
        None | Some("" | "dry_run=false") => Ok(false),
        Some("dry_run=true") => Ok(true),
        // One that is written wrong must not become an order.
        Some(query) => Err(wrong(format!(
            "the query \"{}\" is not known; allowed: dry_run=true or dry_run=false; try without any",
            query.chars().take(80).flat_map(char::escape_debug).collect::<String>()
        ))),
    }
}

/// Refuses orders before the first look: until then, the agent does not know those of an agent before it, nor the time.
/// Refuses them also from the last look on, because no other one would carry them out.
fn check_looked(shared: &Shared) -> Result<(), Refusal> {
    if shared.is_ending() {
        let reason = "the agent ends; try again once another one has started";
        return Err((StatusCode::SERVICE_UNAVAILABLE, reason.to_owned()));
    }
    let reason = "the agent has not looked yet; try again in a second";
    shared.look_age().map(|_| ()).ok_or_else(|| (StatusCode::SERVICE_UNAVAILABLE, reason.to_owned()))
}

/// An order that was given.
struct Given {
    /// The sentence for the log, without its end.
    said: String,
    /// The order for the history.
    order: String,
    answer: Value,
}

/// Gives an order, or only tries it.
async fn order(shared: &Shared, order: OperatorOrder<'_>, query: &RawQuery) -> Result<Response, Refusal> {
    check_looked(shared)?;
    if is_dry(query)? {
        let users = shared.agent().dry_run(order).map_err(wrong)?.ok_or_else(|| missing(order))?;
        return Ok(Json(json!({ "users": users })).into_response());
    }
    let Given { said, order, answer } = give(shared, order).map_err(wrong)?.ok_or_else(|| missing(order))?;
    shared.note("api", order);
    shared.change();
    log::say(&format!("{said}, as the API was told"));
    Ok(carried_out(shared, answer).await)
}

/// Answers once policy files and history have the order, so that it holds even if the agent is killed then.
async fn carried_out(shared: &Shared, mut answer: Value) -> Response {
    let is_late = !shared.next_look(LONGEST_WAIT).await;
    let (mut failed, mut not_steered, mut is_any) = (Vec::new(), Vec::new(), false);
    for (run_dir, says) in shared.agent().says() {
        let entry = |reason: &str| json!({ "run_dir": run_dir, "reason": reason });
        match says {
            Steers::Yes => is_any = true,
            Steers::Failing(reason) => failed.push(entry(reason)),
            Steers::No(reason) => not_steered.push(entry(reason)),
            Steers::Unknown => not_steered.push(entry("the agent has not looked there yet; try again in a second")),
        }
    }
    answer["carried_out"] = json!(!is_late && failed.is_empty() && is_any);
    answer["late"] = json!(is_late);
    (answer["failed"], answer["not_steered"]) = (json!(failed), json!(not_steered));
    (StatusCode::ACCEPTED, Json(answer)).into_response()
}

/// Gives an order. Returns `None` if there is nothing to take back.
fn give(shared: &Shared, order: OperatorOrder<'_>) -> Result<Option<Given>, String> {
    let (mut agent, now) = (shared.agent(), shared.now());
    Ok(match order {
        OperatorOrder::Drain(port) => {
            agent.drain(port)?;
            let said = format!("port {port} is to be empty");
            Some(Given { said, order: format!("drain {port}"), answer: json!({ "port": port }) })
        }
        OperatorOrder::GiveBack(port) => agent.give_back(port, now).then(|| {
            let said = format!("port {port} is given back");
            Given { said, order: format!("give back {port}"), answer: json!({ "port": port }) }
        }),
        OperatorOrder::Set(rule) => {
            let rule = agent.set_rule(rule, now)?.to_string();
            let said = format!("rule {rule} is set");
            Some(Given { said, order: format!("set {rule}"), answer: json!({ "rule": rule }) })
        }
        OperatorOrder::Clear(matchers) => agent.clear_rule(matchers, now).map(|rule| {
            let (said, order) = (format!("rule {rule} is cleared"), format!("clear {}", rule.matchers));
            Given { said, order, answer: json!({ "rule": rule.to_string() }) }
        }),
    })
}

/// Returns the refusal of an order for which there is nothing to take back.
fn missing(order: OperatorOrder<'_>) -> Refusal {
    let reason = match order {
        OperatorOrder::Clear(matchers) | OperatorOrder::Set(matchers) => format!(
            "no rule with the matchers {matchers:?} was set through the API; allowed: one that was; try GET \
             /api/v1/rules"
        ),
        OperatorOrder::Drain(port) | OperatorOrder::GiveBack(port) => format!(
            "port {port:?} was not drained through the API; allowed: one that was; try GET /api/v1/drains for the \
             reasons: the configuration may drain it"
        ),
    };
    (StatusCode::NOT_FOUND, reason)
}
