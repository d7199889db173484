//! The rules hold in every small configuration, and each mutation is refuted by its property.

use railweave_recovery_model::config::Config;
use railweave_recovery_model::configurations;
use railweave_recovery_model::mutation::Mutation;
use railweave_recovery_model::property::Property;
use railweave_recovery_model::recovery::{Recovery, tell};
use railweave_recovery_model::refutations::refutations;
use railweave_recovery_model::search::search;
use std::collections::HashSet;

/// More than any configuration of the tests has.
const LIMIT: usize = 3_000_000;

fn holds(config: Config) -> usize {
    let name = config.name;
    let model = Recovery { config };
    let report = search(&model, LIMIT);
    assert!(report.is_complete, "{name}: more than {LIMIT} states");
    if let Some((property, steps)) = report.violation {
        panic!("{name}: does not hold: {property}\n{}", tell(&model, &steps).join("\n"));
    }
    report.states
}

#[test]
fn every_property_holds_in_every_small_configuration() {
    for config in configurations::small() {
        let name = config.name;
        let states = holds(Config { is_reduced: true, ..config });
        assert!(states > 500, "{name}: only {states} states, so it hardly plays anything");
    }
}

#[test]
fn each_mutation_is_refuted_by_its_property() {
    let mut sound = HashSet::new();
    for (mutation, property, config) in refutations() {
        let without = Config { name: "without a mutation", mutation: None, is_reduced: true, ..config.clone() };
        if sound.insert(format!("{without:?}")) {
            holds(without);
        }
        let model = Recovery { config };
        let Some((found, steps)) = search(&model, LIMIT).violation else { panic!("{mutation}: nothing refutes it") };
        assert_eq!(found, property, "{mutation}:\n{}", tell(&model, &steps).join("\n"));
    }
}

#[test]
fn names_are_unique() {
    let names: Vec<&str> = configurations::small().iter().chain(&configurations::large()).map(|c| c.name).collect();
    let unique: HashSet<&str> = names.iter().copied().collect();
    assert_eq!(unique.len(), names.len(), "{names:?}");
}

#[test]
fn every_mutation_and_every_property_is_in_the_table() {
    let rows = refutations();
    let mutations: Vec<Mutation> = rows.iter().map(|row| row.0).collect();
    assert_eq!(mutations, Mutation::ALL);
    let refuting: HashSet<Property> = rows.iter().map(|row| row.1).collect();
    let idle: Vec<String> = Property::ALL.iter().filter(|p| !refuting.contains(p)).map(Property::to_string).collect();
    assert_eq!(idle, Vec::<String>::new(), "properties that refute no mutation");
}

#[test]
fn the_page_has_the_large_configurations_the_properties_and_what_refutes_each_mutation() {
    let page = include_str!("../../../docs/recovery-model.md");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).collect();
    for property in Property::ALL {
        let row = format!("| {property:?} | {property} |");
        assert!(rows.contains(&row.as_str()), "no row {row}");
    }
    let large: Vec<String> = configurations::large().iter().map(Config::outline).collect();
    let missing: Vec<&String> = large.iter().filter(|row| !rows.iter().any(|r| r.starts_with(row.as_str()))).collect();
    assert!(missing.is_empty(), "no rows {missing:#?}");
    for (mutation, property, _) in refutations() {
        let (begin, end) = (format!("| {mutation} | "), format!(" | {property:?} |"));
        assert!(rows.iter().any(|row| row.starts_with(&begin) && row.ends_with(&end)), "no row {begin}...{end}");
    }
}
