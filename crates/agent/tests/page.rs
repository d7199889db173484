//! The tables of docs/agent.md are those of the code.

use railweave_agent::{Agent, Config, KINDS, Now};
use std::collections::BTreeSet;

const PAGE: &str = include_str!("../../../docs/agent.md");

/// Returns the first and the last cell of each row of the table under a heading, without the rows of its head.
fn rows(heading: &str) -> Vec<(String, String)> {
    let lines = PAGE.lines().skip_while(|line| *line != heading).skip(1).take_while(|line| !line.starts_with("## "));
    let cells = lines.filter(|line| line.starts_with("| `")).map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        (cells[0].trim_matches('`').to_owned(), cells[cells.len() - 1].to_owned())
    });
    cells.collect()
}

#[test]
fn every_finding_is_in_the_page() {
    let kinds: Vec<_> = KINDS.iter().map(|(kind, meaning)| ((*kind).to_owned(), (*meaning).to_owned())).collect();
    assert_eq!(rows("## Findings"), kinds);
}

#[test]
fn every_metric_is_in_the_page() {
    let mut agent = Agent::new(Config::default(), "0", "host", 1);
    agent.end_look(Vec::new(), Now::default());
    let text = agent.metrics();
    let mut counters = 0;
    let mut families: BTreeSet<String> = BTreeSet::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        if name.starts_with("railweave_port_") && kind == "counter" {
            counters += 1;
        } else {
            families.insert(if kind == "counter" { format!("{name}_total") } else { name.to_owned() });
        }
    }
    assert!(counters > 50, "{counters} counters of ports");
    let listed: BTreeSet<String> = rows("## Metrics").into_iter().map(|(name, _)| name).collect();
    families.insert("railweave_port_…_total".to_owned());
    assert_eq!(listed, families);
}

#[test]
fn every_key_of_the_configuration_is_in_the_page() {
    let keys: Vec<String> = rows("## Configuration").into_iter().map(|(key, _)| key).collect();
    let lines = keys.iter().map(|key| match &**key {
        "[script]" => "[script]\nprogram = [\"x\"]".to_owned(),
        table if table.starts_with('[') => table.to_owned(),
        "listen" => "listen = \"127.0.0.1:1\"".to_owned(),
        "token_file" => "token_file = \"x\"".to_owned(),
        "run_dirs" | "drain" | "fixed" => format!("{key} = []"),
        number => format!("{number} = {}", if number == "every_ms" { 1000 } else { 30 }),
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    let config = Config::parse(&text).unwrap_or_else(|error| panic!("{error}:\n{text}"));
    assert!(config.balance.is_some() && config.avoid_congestion.is_some() && config.avoid_sick.is_some());
    // Does not compile once there is another key: then it is due in the page, and here.
    let Config {
        listen: _,
        token_file: _,
        run_dirs: _,
        every_ms: _,
        ttl_s: _,
        series: _,
        drain: _,
        fixed: _,
        balance: _,
        avoid_congestion: _,
        avoid_sick: _,
        script: _,
    } = config;
    assert_eq!(keys.len(), 12, "{keys:?}");
}
