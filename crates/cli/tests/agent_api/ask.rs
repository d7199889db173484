//! Requests at the agent's socket whose answers are held against docs/agent-api.json.

use crate::api::{Api, TEXT};
use crate::host::Agent;
use crate::http::Answer;
use railweave_patience::in_time;
use serde_json::Value;

pub(crate) fn document() -> Value {
    serde_json::from_str(TEXT).unwrap()
}

/// Asks over the agent's socket, and checks the answer.
pub(crate) fn ask(api: &Api<'_>, agent: &Agent, method: &str, path: &str) -> Answer {
    let answer = in_time(agent.own(method, path), "an answer");
    assert_eq!(api.check(method, path, &answer), Ok(()));
    answer
}

/// Gives an order about a port, and checks the answer. `name` is as the URL has it.
pub(crate) fn order(api: &Api<'_>, agent: &Agent, method: &str, name: &str) -> Answer {
    let answer = in_time(agent.own(method, &format!("/api/v1/drains/{name}")), "an answer");
    assert_eq!(api.check(method, "/api/v1/drains/{port}", &answer), Ok(()), "{name}");
    answer
}

/// Returns a path as a URL has it.
pub(crate) fn url(path: &str) -> String {
    path.replace("{port}", "eth0").replace("{matchers}", "peer=node3")
}

/// Returns the names of the ports that are to be empty.
pub(crate) fn drained(api: &Api<'_>, agent: &Agent) -> Vec<String> {
    let drains = ask(api, agent, "GET", "/api/v1/drains").json();
    drains.as_array().unwrap().iter().map(|drain| drain["port"].as_str().unwrap().to_owned()).collect()
}
