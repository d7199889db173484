//! The requests that the agent answers: by the way they came, and the token that they show.

use super::shared::Shared;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The state of the check: what is shared, and the address at which the agent listens.
#[derive(Clone)]
pub(super) struct Gate {
    pub(super) shared: Arc<Shared>,
    pub(super) listen: SocketAddr,
}

/// Lets a request over TCP pass if it may.
///
/// Probes of health need nothing. If there is a token, everything else needs it. Without one, this host may read; but
/// orders need a token in any case, because every user of a host can reach its loopback address, and a page in a
/// browser can make it send requests there.
pub(super) async fn check(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    match refusal(&gate, request.method(), request.uri().path(), request.headers()) {
        Some((status, reason)) => refuse(status, reason),
        None => next.run(request).await,
    }
}

fn refuse(status: StatusCode, reason: &str) -> Response {
    let mut response = (status, axum::Json(serde_json::json!({ "error": reason }))).into_response();
    if status == StatusCode::UNAUTHORIZED {
        // RFC 9110, section 11.6.1.
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

fn refusal(gate: &Gate, method: &Method, path: &str, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
    if matches!(path, "/healthz" | "/readyz") {
        return None;
    }
    if gate.listen.ip().is_loopback() && !names_this_host(headers) {
        return Some((
            StatusCode::FORBIDDEN,
            "the header Host names another host; allowed: localhost or an address; try 127.0.0.1 in its place",
        ));
    }
    let orders = !matches!(*method, Method::GET | Method::HEAD);
    match gate.shared.token() {
        None if orders => Some((
            StatusCode::FORBIDDEN,
            "orders over TCP need a token, and the agent has none; try the socket agent.sock in its run dir, or \
             token_file",
        )),
        None => None,
        Some(token) if shows(headers, &token) => None,
        Some(_) => Some((
            StatusCode::UNAUTHORIZED,
            "the token is missing or wrong; allowed: `Authorization: Bearer TOKEN` with the token of token_file",
        )),
    }
}

/// Returns true if the request is for an address or for localhost. A page of the web whose name was made to lead here
/// sends its own name.
fn names_this_host(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Returns true if the request shows the token. Takes as long for each wrong one of its length.
fn shows(headers: &HeaderMap, token: &str) -> bool {
    let Some((scheme, shown)) = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().split_at_checked(7))
    else {
        return false;
    };
    // The name of a scheme has no case (RFC 9110, section 11.1).
    if !scheme.eq_ignore_ascii_case(b"Bearer ") || shown.len() != token.len() {
        return false;
    }
    shown.iter().zip(token.bytes()).fold(0, |difference, (one, other)| difference | (one ^ other)) == 0
}
