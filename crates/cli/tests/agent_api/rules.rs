//! Rules of an operator, orders that are only tried, and the history of orders.

use crate::api::Api;
use crate::ask::{ask, document, order};
use crate::host::{Agent, Host};
use crate::http::Answer;
use railweave_patience::{in_time, until};
use railweave_telemetry::{Folder, HistoryEntry};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

const PATH: &str = "/api/v1/rules/{matchers}";

/// Gives an order about a rule, and checks the answer. `matchers` are as the URL has them.
fn about(api: &Api<'_>, agent: &Agent, method: &str, matchers: &str, body: &str) -> Answer {
    let answer = in_time(agent.own_with(method, &PATH.replace("{matchers}", matchers), body), "an answer");
    assert_eq!(api.check(method, PATH, &answer), Ok(()), "{matchers}: {body}");
    answer
}

/// Sets a rule, as docs/agent-api.json says.
pub(crate) fn set(api: &Api<'_>, agent: &Agent, matchers: &str, actions: &str) -> Answer {
    let body = json!({ "actions": actions });
    let schema = api.schemas.follow(&Value::from("#/components/schemas/Actions")).unwrap();
    assert_eq!(api.schemas.check(schema, &body, "Actions"), Ok(()));
    about(api, agent, "PUT", matchers, &body.to_string())
}

pub(crate) fn clear(api: &Api<'_>, agent: &Agent, matchers: &str) -> Answer {
    about(api, agent, "DELETE", matchers, "")
}

/// Returns the rules of the operator.
fn rules(api: &Api<'_>, agent: &Agent) -> Vec<String> {
    let rules = ask(api, agent, "GET", "/api/v1/rules").json();
    let text =
        |rule: &Value| format!("{} -> {}", rule["matchers"].as_str().unwrap(), rule["actions"].as_str().unwrap());
    rules.as_array().unwrap().iter().map(text).collect()
}

/// Returns the rules of each user's policy file: the present ones, or those of an order that was tried.
fn users(answer: &Answer) -> Vec<(u64, Value)> {
    let state = answer.json();
    let users = state["users"].as_array().unwrap().iter();
    users.map(|user| (user["user"].as_u64().unwrap(), user["rules"].clone())).collect()
}

/// Tries each order first, then gives it. On a host that is quiet, nothing but orders changes the rules.
pub(crate) fn try_all(api: &Api<'_>, agent: &Agent, is_quiet: bool) {
    let body = r#"{"actions":"weights 80,20"}"#;
    let rules_of = |answer: &Answer| answer.json()["users"].as_array().map(Vec::len);
    for (method, drains) in [("PUT", true), ("PUT", false), ("DELETE", true), ("DELETE", false)] {
        let give = |query: &str| match drains {
            true => order(api, agent, method, &format!("mlx5_1{query}")),
            false => about(api, agent, method, &format!("peer=node3%20job=1{query}"), body),
        };
        let present = ask(api, agent, "GET", "/api/v1/state");
        let tried = give("?dry_run=true");
        assert_eq!((tried.status, rules_of(&tried)), (200, Some(1)), "{tried:?}");
        let still = ask(api, agent, "GET", "/api/v1/state");
        assert_eq!(give("").status, 202);
        let after = ask(api, agent, "GET", "/api/v1/state");
        if is_quiet {
            assert_ne!(users(&tried), users(&present), "{method}");
            let before = tried.json()["users"][0]["before"].clone();
            assert_eq!(before, users(&present)[0].1, "{method}");
            assert_eq!(users(&still), users(&present), "nothing was ordered");
            assert_eq!(users(&after), users(&tried), "{method}");
        }
        ask(api, agent, "GET", "/api/v1/rules");
        ask(api, agent, "GET", "/api/v1/drains");
    }
    for answer in
        [order(api, agent, "DELETE", "mlx5_1?dry_run=true"), about(api, agent, "DELETE", "any?dry_run=true", "")]
    {
        assert_eq!(answer.status, 404, "there is nothing to take back");
    }
}

#[test]
fn an_order_that_is_tried_gives_the_rules_of_the_order() {
    let document = document();
    let (api, host) = (Api::new(&document), Host::new("tried"));
    let agent = host.start_ready("drain = [\"mlx5_0\"]\nfixed = [\"any -> policy static\"]\n");
    try_all(&api, &agent, true);
}

#[test]
fn rules_are_set_replaced_and_cleared() {
    let document = document();
    let (api, host) = (Api::new(&document), Host::new("rules"));
    let agent = host.start_ready("fixed = [\"any -> policy static\"]\n");
    let answer = set(&api, &agent, "peer=node3%20job=*", "weights  80,20");
    let mut ordered = json!({ "carried_out": true, "late": false, "failed": [], "not_steered": [] });
    ordered["rule"] = json!("peer=node3 job=* -> weights 80,20");
    assert_eq!((answer.status, answer.json()), (202, ordered));
    assert_eq!(set(&api, &agent, "any", "policy speed").status, 202);
    assert_eq!(set(&api, &agent, "job=*%20peer=node3", "weights 70,30").status, 202);
    assert_eq!(rules(&api, &agent), ["job=* peer=node3 -> weights 70,30", "any -> policy speed"]);
    let since = ask(&api, &agent, "GET", "/api/v1/rules").json()[0]["since"].as_f64();
    assert!(since.is_some_and(|since| since > 1e9), "{since:?}");
    let state = ask(&api, &agent, "GET", "/api/v1/state").json();
    assert_eq!(state["agent"]["policies"], json!(["operator", "fixed"]));
    let policy = || fs::read_to_string(host.path("run/policy")).unwrap_or_default();
    let ordered = "job=* peer=node3 -> weights 70,30\nany -> policy speed\nany -> policy static\n";
    until("the policy file", || policy().ends_with(ordered).then_some(()));
    assert!(policy().contains("\n# ordered job=* peer=node3 -> weights 70,30\n# ordered any -> policy speed\n"));
    assert_eq!(clear(&api, &agent, "peer=node3%20job=*").json()["rule"], "job=* peer=node3 -> weights 70,30");
    let answer = clear(&api, &agent, "peer=node3%20job=*");
    assert!(answer.status == 404 && answer.body.contains("was set through the API"), "{answer:?}");
    assert_eq!(rules(&api, &agent), ["any -> policy speed"]);
    let log = agent.log();
    for line in ["rule any -> policy speed is set, as the API was told", "-> weights 70,30 is cleared, as the API was"]
    {
        assert!(log.contains(line), "{log}");
    }
}

#[test]
fn a_rule_that_is_wrong_changes_nothing_tried_or_given() {
    let document = document();
    let (api, host) = (Api::new(&document), Host::new("wrong-rules"));
    let agent = host.start_ready("");
    set(&api, &agent, "any", "policy speed");
    let (long, large) = ("p".repeat(1020), " ".repeat(70_000));
    let actions = |actions: &str| json!({ "actions": actions }).to_string();
    let good = actions("policy static");
    for (matchers, body, words) in [
        ("any", "", "the body: EOF"),
        ("any", "nonsense", "the body: expected"),
        ("any", "{}", "missing field `actions`"),
        ("any", r#"{"actions":"drain","more":1}"#, "unknown field `more`"),
        ("any", r#"{"actions":1}"#, "invalid type"),
        ("any", &large, "the body cannot be read, or is too long; allowed: up to 65536 bytes"),
        ("any", &actions("fly"), "action: \\\"fly\\\" is not known"),
        ("any", &actions("policy speed\nany -> policy static"), "is not a rule"),
        ("any", &actions("drain"), "does not say which rail"),
        ("peer", &good, "has no ="),
        ("%20", &good, "fits nothing"),
        ("any%20-%3E", &good, "action: \\\"->\\\" is not known"),
        ("peer=%1b%5B2J", &good, "has control characters"),
        ("%FF", &good, "are no text"),
        (&format!("peer={long}"), &good, "have 1025 bytes; allowed: up to 1024"),
        (&format!("job={}", &long[..1010]), &good, "bytes; allowed: up to 1024"),
        ("any?dry-run=true", &good, "the query"),
    ] {
        let mut wanted = vec![matchers.to_owned()];
        if !matchers.contains('?') {
            wanted.push(format!("{matchers}?dry_run=true"));
        }
        for matchers in wanted {
            let answer = about(&api, &agent, "PUT", &matchers, body);
            let is_right = answer.status == 400 && answer.body.contains(words) && answer.body.len() < 3000;
            assert!(is_right, "{matchers} {body:.80}: {answer:?}");
        }
    }
    for (matchers, status) in [("%FF", 400), (&*"p".repeat(1025), 400), ("any?x", 400), ("peer=x", 404), ("%20", 404)] {
        assert_eq!(clear(&api, &agent, matchers).status, status, "{matchers}");
    }
    assert_eq!(rules(&api, &agent), ["any -> policy speed"]);
    for number in 0..249 {
        assert_eq!(set(&api, &agent, &format!("peer=n{number}"), "policy speed").status, 202);
    }
    for query in ["", "?dry_run=true"] {
        let answer = set(&api, &agent, &format!("peer=x{query}"), "policy speed");
        assert!(answer.status == 400 && answer.body.contains("one too many; allowed: 250"), "{answer:?}");
    }
    let missing = api.missing(&[400, 404]);
    assert!(missing.iter().all(|(_, path, _)| path != PATH), "{missing:?}");
}

/// Returns the orders of the history, each with the one who gave it.
fn history(host: &Host) -> Vec<String> {
    let entries = Folder::open(&host.path("run")).map(|folder| folder.history().unwrap_or_default());
    let text = |entry: HistoryEntry| format!("{}: {}", entry.who, entry.order);
    entries.map(|entries| entries.into_iter().map(text).collect()).unwrap_or_default()
}

#[test]
fn orders_outlive_the_agent_and_are_in_the_history() {
    let document = document();
    let (api, host) = (Api::new(&document), Host::new("restart"));
    let agent = host.start_ready("drain = [\"eth9\"]\n");
    set(&api, &agent, "peer=node3", "policy speed");
    set(&api, &agent, "peer=node4", "policy speed");
    clear(&api, &agent, "peer=node4");
    order(&api, &agent, "PUT", "eth1");
    set(&api, &agent, "peer=node5?dry_run=true", "policy speed");
    order(&api, &agent, "DELETE", "eth1");
    agent.end();
    let expected = [
        "configuration: drain eth9",
        "api: set peer=node3 -> policy speed",
        "api: set peer=node4 -> policy speed",
        "api: clear peer=node4",
        "api: drain eth1",
        "api: give back eth1",
    ];
    assert_eq!(history(&host), expected);
    assert_eq!(fs::metadata(host.path("run/history")).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!host.path("other/history").exists());
    let agent = host.start_ready("");
    assert_eq!(rules(&api, &agent), ["peer=node3 -> policy speed"]);
    assert!(agent.log().contains("rule peer=node3 -> policy speed goes on, as an agent before this one was told"));
    fs::write(host.path("agent.toml"), "every_ms = 100\ndrain = [\"eth9\"]\n").unwrap();
    ask(&api, &agent, "POST", "/api/v1/reload");
    until("a drain", || (history(&host).len() == 7).then_some(()));
    fs::write(host.path("agent.toml"), "every_ms = 100\n").unwrap();
    ask(&api, &agent, "POST", "/api/v1/reload");
    until("its end", || (history(&host).len() == 8).then_some(()));
    assert_eq!(history(&host)[6..], ["configuration: drain eth9", "configuration: give back eth9"]);
}

#[test]
fn a_history_that_cannot_be_written_is_said_once_and_orders_are_taken_all_the_same() {
    let document = document();
    let (api, host) = (Api::new(&document), Host::new("history-link"));
    host.run_dir("run");
    fs::write(host.path("elsewhere"), "untouched").unwrap();
    symlink(host.path("elsewhere"), host.path("run/history")).unwrap();
    let agent = host.start_ready("");
    assert_eq!(order(&api, &agent, "PUT", "eth1").status, 202);
    until("a sentence", || agent.log().contains("an order is missing in the history").then_some(()));
    assert!(agent.log().contains("run/history\" is a symbolic link; allowed: a regular file"), "{}", agent.log());
    assert_eq!(order(&api, &agent, "PUT", "eth2").status, 202);
    until("the policy file", || {
        fs::read_to_string(host.path("run/policy")).is_ok_and(|text| text.contains("# drained eth2")).then_some(())
    });
    fs::remove_file(host.path("run/history")).unwrap();
    order(&api, &agent, "DELETE", "eth2");
    until("the history", || (history(&host) == ["api: give back eth2"]).then_some(()));
    assert_eq!(agent.log().matches("an order is missing").count(), 1, "{}", agent.log());
    assert_eq!(fs::read_to_string(host.path("elsewhere")).unwrap(), "untouched");
}

#[test]
fn an_order_that_cannot_be_written_is_taken_and_the_answer_says_so() {
    let document = document();
    let (api, host) = (Api::new(&document), Host::new("unwritten"));
    fs::write(host.run_dir("other").policy_file(), "railweave-policy 1\nttl forever\nany -> policy speed\n").unwrap();
    let agent = host.start_ready("");
    let only_other = |answer: &Value| {
        let folders = answer["not_steered"].as_array().unwrap();
        assert!(folders.len() == 1 && folders[0]["run_dir"].as_str() == host.path("other").to_str(), "{answer}");
    };
    fs::create_dir(host.path("run/policy.new")).unwrap();
    let answer = order(&api, &agent, "PUT", "eth1");
    let failed = &answer.json()["failed"];
    assert_eq!((answer.status, &answer.json()["carried_out"]), (202, &json!(false)), "{answer:?}");
    assert_eq!(failed[0]["run_dir"].as_str(), host.path("run").to_str(), "{failed}");
    only_other(&answer.json());
    let run_dirs = ask(&api, &agent, "GET", "/api/v1/users").json()[0]["run_dirs"].clone();
    let run_dir = run_dirs.as_array().unwrap().iter().find(|it| it["run_dir"] == failed[0]["run_dir"]).unwrap();
    assert_eq!((&run_dir["steers"], &run_dir["write_failed"]), (&json!(false), &json!(true)), "{run_dirs}");
    assert_eq!(run_dir["reason"], failed[0]["reason"]);
    fs::remove_dir(host.path("run/policy.new")).unwrap();
    let answer = order(&api, &agent, "PUT", "eth2").json();
    assert_eq!((&answer["carried_out"], &answer["failed"]), (&json!(true), &json!([])), "{answer}");
    only_other(&answer);
    let policy = fs::read_to_string(host.path("run/policy")).unwrap();
    assert!(policy.contains("# drained eth1\n") && policy.contains("# drained eth2\n"), "{policy}");
    assert_eq!(history(&host), ["api: drain eth1", "api: drain eth2"], "they are there before the answer");
}
