//! The API of `railweave agent`, held against docs/agent-api.json in both directions.

mod api;
mod ask;
mod document;
mod host;
mod http;
mod rules;
mod schema;

use api::Api;
use ask::{ask, document, drained, order, url};
use host::{Agent, Host, Job, TOKEN};
use railweave_patience::{in_time, until};
use std::collections::BTreeSet;
use std::fs;

#[test]
fn every_field_of_a_busy_host_is_as_the_file_says() {
    let document = document();
    let api = Api::new(&document);
    let host = Host::new("busy");
    let (dir, other) = (host.run_dir("run"), host.run_dir("other"));
    let mut job = Job::new(&dir, 1, |_| {});
    let _gone = Job::new(&dir, 2, |process| process.start_ticks = Some(1));
    let _elsewhere = Job::new(&other, 3, |process| {
        (process.pid_namespace, process.rank, process.job) = (Some(1), None, String::new());
    });
    fs::write(dir.file_of([4; 16]), "x".repeat(600)).unwrap();
    fs::write(other.policy_file(), "railweave-policy 1\nttl forever\nany -> policy speed\n").unwrap();
    host.set_port("mlx5_0", 0);
    host.set_port("mlx5_1", 0);
    let agent = host.start_ready(
        "drain = [\"eth9\"]\nfixed = [\"peer=node3 -> policy speed\"]\n\
         [avoid_congestion]\nmarks_per_s = 1.0\nenter_s = 1\nleave_s = 3600\n",
    );
    // One that cannot be written, so that its answer has every field too.
    fs::create_dir(host.path("run/policy.new")).unwrap();
    order(&api, &agent, "PUT", "mlx5_1");
    fs::remove_dir(host.path("run/policy.new")).unwrap();
    order(&api, &agent, "DELETE", "mlx5_1");
    rules::set(&api, &agent, "peer=node8", "policy speed");
    rules::clear(&api, &agent, "peer=node8");
    let mut notifications = 0;
    until("an answer with every field", || {
        job.go_on();
        notifications += 1000;
        host.set_port("mlx5_0", notifications);
        std::thread::sleep(std::time::Duration::from_millis(20));
        ask(&api, &agent, "GET", "/api/v1/state");
        let mut unseen = api.unseen();
        // These have paths of their own.
        unseen.retain(|field| {
            let own = ["DrainedPort.", "Ordered.", "Rule.", "Tried.", "UserRules.", "Told.", "Health.", "Error."];
            !own.iter().any(|it| field.starts_with(it))
        });
        unseen.is_empty().then_some(())
    });
    let state = ask(&api, &agent, "GET", "/api/v1/state").json();
    for part in ["jobs", "ports", "users", "findings"] {
        let answer = ask(&api, &agent, "GET", &format!("/api/v1/{part}")).json();
        assert_eq!(answer.as_array().map(Vec::len), state[part].as_array().map(Vec::len), "{part}");
    }
    assert_eq!(drained(&api, &agent), ["eth9"]);
    let metrics = ask(&api, &agent, "GET", "/metrics").body;
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
    assert_eq!(ask(&api, &agent, "GET", "/api/v1/openapi.json").json(), document);
    for probe in ["/healthz", "/readyz"] {
        ask(&api, &agent, "GET", probe);
    }
    ask(&api, &agent, "POST", "/api/v1/reload");
    order(&api, &agent, "DELETE", "mlx5_1");
    rules::try_all(&api, &agent, false);
    assert_eq!(api.unseen(), BTreeSet::new());
    assert_eq!(api.missing(&[200, 202]), BTreeSet::new());
    // The neighbour: an answer without one of its fields.
    for (part, field) in [("agent", "version"), ("ports", "weight"), ("findings", "severity")] {
        let mut state = state.clone();
        let holder = if state[part].is_array() { &mut state[part][0] } else { &mut state[part] };
        assert!(holder.as_object_mut().unwrap().remove(field).is_some(), "{part}.{field}");
        let schema = &document["components"]["schemas"]["State"];
        assert!(api.schemas.check(schema, &state, "State").unwrap_err().contains("\"required\""));
    }
}

#[test]
fn names_of_ports_are_taken_as_urls_have_them() {
    let document = document();
    let (api, host) = (Api::new(&document), Host::new("names"));
    let agent = host.start_ready("");
    let longest = "a".repeat(64);
    for (name, port) in [
        ("lo@127.0.0.1", "lo@127.0.0.1"),
        ("lo%40127.0.0.1", "lo@127.0.0.1"),
        ("mlx5_0:2", "mlx5_0:2"),
        ("mlx5_0%3a2", "mlx5_0:2"),
        ("eth%2F0", "eth/0"),
        ("%C3%A9th0", "éth0"),
        ("eth0?dry_run=false", "eth0"),
        (&longest, &longest),
    ] {
        let answer = order(&api, &agent, "PUT", name);
        assert_eq!((answer.status, answer.json()["port"].as_str()), (202, Some(port)));
        assert_eq!(drained(&api, &agent), [port]);
        ask(&api, &agent, "GET", "/api/v1/state");
        assert_eq!(order(&api, &agent, "DELETE", name).status, 202);
        let answer = order(&api, &agent, "DELETE", name);
        assert!(answer.status == 404 && answer.body.contains("was not drained through the API"), "{answer:?}");
    }
    let too_long = "a".repeat(65);
    let very_long = "%20".repeat(5000);
    for (name, words) in [
        ("7", "is not the name of a port"),
        ("a%20b", "is not the name of a port"),
        ("a%0Ab", "is not the name of a port"),
        ("%00", "is not the name of a port"),
        ("a,b", "is not the name of a port"),
        ("%FF", "is no text"),
        (&too_long, "has 65 bytes"),
        (&very_long, "has 5000 bytes"),
        ("eth0?dryrun=true", "dryrun=true\\\" is not known"),
        ("eth0?dry_run=yes", "is not known"),
    ] {
        let answer = order(&api, &agent, "PUT", name);
        assert!(answer.status == 400 && answer.body.contains(words) && answer.body.len() < 500, "{answer:?}");
        let status = order(&api, &agent, "DELETE", name).status;
        assert_eq!(status == 400, words != "is not the name of a port", "{name}: {status}");
    }
    assert_eq!(drained(&api, &agent), [""; 0]);
    let missing = api.missing(&[400, 404]);
    assert!(missing.iter().all(|(_, path, _)| path == "/api/v1/rules/{matchers}"), "{missing:?}");
}

#[test]
fn other_methods_and_paths_are_refused_with_a_sentence() {
    let document = document();
    let (api, host) = (Api::new(&document), Host::new("methods"));
    let agent = host.start_ready("");
    for path in api.paths() {
        let has: BTreeSet<String> =
            api.operations().into_iter().filter(|it| it.path == path).map(|it| it.method).collect();
        for method in ["GET", "PUT", "DELETE", "POST", "PATCH", "OPTIONS", "TRACE", "BREW"] {
            if has.contains(method) {
                continue;
            }
            let answer = in_time(agent.own(method, path), "an answer");
            api.check_error(405, &answer);
            let allowed = answer.header("allow").unwrap_or_default().split(',').map(|word| word.trim().to_owned());
            let allowed: BTreeSet<String> = allowed.filter(|method| method != "HEAD").collect();
            assert_eq!(allowed, has, "{method} {path}");
        }
        let head = in_time(agent.own("HEAD", path), "an answer");
        assert_eq!((head.status, &*head.body), (if has.contains("GET") { 200 } else { 405 }, ""), "{path}");
        for wrong in [format!("{path}/"), format!("/{path}")] {
            api.check_error(404, &in_time(agent.own("GET", &wrong), "an answer"));
        }
    }
    for path in ["/", "/api", "/api/v1", "/api/v2/state", "/api/v1/drains/", "/API/v1/state", "/api/v1/%73tate", "/%FF"]
    {
        api.check_error(404, &in_time(agent.own("GET", path), "an answer"));
    }
}

#[test]
fn over_tcp_a_token_is_needed_as_the_file_says() {
    let document = document();
    let (api, host) = (Api::new(&document), Host::new("token"));
    let agent = host.start_ready(&host.token());
    let header = |word: &str, token: &str| format!("Authorization: {word} {token}");
    let right = [header("Bearer", TOKEN), header("bearer", TOKEN)];
    let wrong =
        [header("Bearer", &TOKEN.replace('3', "4")), header("Basic", TOKEN), header("Bearer", ""), header("é", "é")];
    for operation in api.operations() {
        let (method, path) = (&*operation.method, operation.path);
        let url = url(path);
        let is_free = operation.content["security"].as_array().is_some_and(Vec::is_empty);
        let tcp = |headers: &[&str]| {
            let answer = in_time(agent.tcp(method, &url, headers), "an answer");
            assert_eq!(api.check(method, path, &answer), Ok(()));
            answer.status
        };
        assert_eq!(tcp(&["Host: localhost"]) != 401, is_free, "{path}");
        for header in &wrong {
            assert_eq!(tcp(&["Host: localhost", header]) != 401, is_free, "{path}: {header}");
        }
        for header in &right {
            let status = tcp(&["Host: localhost", header]);
            // It has no body.
            let is_wrong = method == "PUT" && path == "/api/v1/rules/{matchers}";
            assert!(if is_wrong { status == 400 } else { [200, 202, 404].contains(&status) }, "{path}: {header}");
        }
        assert_eq!(tcp(&["Host: railweave.example:80", &right[0]]) != 403, is_free, "{path}");
    }
    assert_eq!(api.missing(&[401, 403]), BTreeSet::new());
}

#[test]
fn over_tcp_without_a_token_this_host_may_read_and_not_order() {
    let document = document();
    let (api, host) = (Api::new(&document), Host::new("without"));
    let agent = host.start_ready("");
    for operation in api.operations() {
        let (method, path) = (&*operation.method, operation.path);
        for address in ["127.0.0.1:9470", "[::1]:9470", "LOCALHOST"] {
            let answer = agent.tcp(method, &url(path), &[&format!("Host: {address}")]);
            let answer = in_time(answer, "an answer");
            assert_eq!(api.check(method, path, &answer), Ok(()));
            assert_eq!(answer.status, if method == "GET" { 200 } else { 403 }, "{path}");
        }
    }
}

#[test]
fn the_file_has_no_answers_that_no_test_asks_for() {
    let document = document();
    let api = Api::new(&document);
    assert_eq!(api.missing(&[200, 202, 400, 401, 403, 404, 503]), api.missing(&Vec::from_iter(200..600)));
}

/// Each look at an empty file waits twice for its writer, so the first look takes long.
#[test]
fn before_its_first_look_the_agent_takes_no_orders() {
    let document = document();
    let (api, host) = (Api::new(&document), Host::new("first"));
    let dir = host.run_dir("run");
    for number in 0..1000_u16 {
        let [high, low] = number.to_be_bytes();
        let mut id = [9; 16];
        (id[0], id[1]) = (high, low);
        fs::write(dir.file_of(id), "").unwrap();
    }
    let config = host.token();
    let header = format!("Authorization: Bearer {TOKEN}");
    until("answers before the first look", || {
        let agent = host.start(&config);
        let tcp = |method: &str, path: &str| agent.tcp(method, &url(path), &["Host: localhost", &header]);
        // Until then, nobody listens.
        let mut first = None;
        while first.is_none() {
            first = tcp("GET", "/readyz").ok();
        }
        let answers = [
            ("GET", "/readyz"),
            ("PUT", "/api/v1/drains/{port}"),
            ("DELETE", "/api/v1/drains/{port}"),
            ("PUT", "/api/v1/rules/{matchers}"),
            ("DELETE", "/api/v1/rules/{matchers}"),
        ];
        let statuses = answers.map(|(method, path)| {
            let answer = in_time(tcp(method, path), "an answer");
            assert_eq!(api.check(method, path, &answer), Ok(()));
            answer.status
        });
        let state = in_time(tcp("GET", "/api/v1/state"), "an answer");
        assert_eq!(api.check("GET", "/api/v1/state", &state), Ok(()));
        (statuses == [503; 5]).then_some(())
    });
    // It would take a look that hangs for a minute.
    assert_eq!(api.missing(&[503]), [("GET".to_owned(), "/healthz".to_owned(), 503)].into());
}

/// Returns the sum of the retransmissions that the agent has counted.
fn retransmitted(agent: &Agent) -> f64 {
    let text = in_time(agent.own("GET", "/metrics"), "an answer").body;
    let lines = text.lines().filter(|line| line.starts_with("railweave_rail_retransmitted_parts_total"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[test]
fn a_file_that_was_torn_at_the_first_look_is_older_than_the_agent() {
    let host = Host::new("torn");
    let dir = host.run_dir("run");
    let mut job = Job::new(&dir, 1, |_| {});
    job.go_on();
    let path = dir.file_of([1; 16]);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..600]).unwrap();
    let agent = host.start_ready("");
    fs::write(&path, &whole).unwrap();
    until("the job", || agent.own("GET", "/api/v1/jobs").ok().filter(|answer| answer.body.contains("4711")));
    assert_eq!(retransmitted(&agent), 0.0, "they were counted before the agent began");
    job.go_on();
    until("more retransmissions", || (retransmitted(&agent) >= 2.0).then_some(()));
}

#[test]
fn a_folder_with_too_many_entries_is_a_finding() {
    let host = Host::new("crowd");
    let dir = host.run_dir("run");
    for number in 0..8200 {
        fs::write(dir.path().join(format!("other-{number}")), "").unwrap();
    }
    let agent = host.start_ready("");
    let has_finding = || {
        let answer = in_time(agent.own("GET", "/api/v1/findings"), "an answer");
        answer.body.contains("has more than 8192 entries")
    };
    until("a finding", || has_finding().then_some(()));
    (0..100).for_each(|number| fs::remove_file(dir.path().join(format!("other-{number}"))).unwrap());
    until("no finding", || (!has_finding()).then_some(()));
}
