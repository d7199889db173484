//! Plays a part of the exhaustive runs. The long form is `cargo xtask sim --exhaustive`.

use std::collections::BTreeSet;

use railweave_sim::exhaustive::Exhaustive;
use railweave_sim::{Checker, Sabotage};

/// Every run of this many is played. Each series of runs that differ only in the event is longer than that.
const EVERY: u64 = 101;

/// The faults that no call must notice.
const HARMLESS: [&str; 5] = [
    "an end gives up a rail that works",
    "a rail's rate drops to nearly nothing",
    "acknowledgements are lost for a while",
    "an application is silent beyond all graces",
    "writes are lost for a while",
];

/// Returns the variant, the fabric, the fault and its victim of a run, without the event.
fn series(all: &Exhaustive, number: u64) -> String {
    let words = all.describe(number).expect("there is such a run");
    let start = words.find('(').expect("the details are in parentheses");
    let end = words.find(" before event").or(words.find(" after call")).unwrap_or(words.len());
    words[start..end].to_owned()
}

#[test]
fn a_part_of_the_runs_is_clean_and_has_every_fault_in_every_variant() {
    let all = Exhaustive::new();
    assert!(all.runs() > 50_000, "{} runs", all.runs());
    let report = all.play(EVERY, 2, || ());
    let failures: Vec<String> = report
        .failures
        .iter()
        .map(|(number, outcome)| format!("{:?}: {:?}", all.describe(*number), outcome.violation))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(report.played, all.runs().div_ceil(EVERY));
    for (fault, tally) in report.tallies.iter().filter(|(fault, _)| **fault != "no fault") {
        assert!(tally.struck > 0, "never struck: {fault}");
        assert_eq!(tally.errors == 0, HARMLESS.contains(fault), "{fault}: {} errors", tally.errors);
    }
    let played: BTreeSet<String> = (0..all.runs()).step_by(EVERY as usize).map(|number| series(&all, number)).collect();
    let left_out: Vec<String> = (0..all.runs())
        .map(|number| series(&all, number))
        .filter(|series| !played.contains(series) && !series.contains("no fault"))
        .collect();
    assert!(left_out.is_empty(), "the part lacks {left_out:?}");
}

#[test]
fn the_same_run_has_the_same_history_and_another_event_another() {
    let (all, again) = (Exhaustive::new(), Exhaustive::new());
    assert_eq!(all.runs(), again.runs());
    for number in (150..all.runs()).step_by(7919) {
        let [first, second] = [&all, &again].map(|runs| runs.run(number, false, None).unwrap());
        assert_eq!((first.hash, first.events), (second.hash, second.events), "{:?}", all.describe(number));
    }
    assert!(
        all.run(all.runs(), false, None).is_none() && all.describe(all.runs()).is_none(),
        "the last run has passed"
    );
    // Two processes die one event apart, in the middle.
    let dies = |number: &u64| all.describe(*number).is_some_and(|words| words.contains("Process(0) before event 100)"));
    let number = (0..all.runs()).find(dies).unwrap();
    assert_ne!(all.run(number, false, None).unwrap().hash, all.run(number + 1, false, None).unwrap().hash);
}

/// Returns the checker of the first run that finds a sabotage, out of all that have no fault or out of a part of those
/// that have one.
fn checker(all: &Exhaustive, sabotage: Sabotage, has_fault: bool) -> Option<Checker> {
    let is_without = |number: &u64| all.describe(*number).is_some_and(|words| words.contains("no fault"));
    let mut numbers: Vec<u64> = (0..all.runs()).step_by(67).collect();
    if !has_fault {
        numbers = (0..all.runs()).filter(is_without).collect();
    }
    numbers.into_iter().find_map(|number| Some(all.run(number, false, Some(sabotage))?.violation?.checker))
}

#[test]
fn sabotage_is_found_and_some_of_it_only_by_the_fault() {
    let all = Exhaustive::new();
    for (sabotage, by) in [
        (Sabotage::WrongPlace, Checker::Window),
        (Sabotage::FlushOneRail, Checker::Flush),
        (Sabotage::RecordFirst, Checker::Delivery),
        (Sabotage::GroupSizesSwapped, Checker::Size),
        (Sabotage::LastWriteDropped, Checker::Delivery),
        (Sabotage::ByteSumTrusted, Checker::Wire),
        (Sabotage::ByeForgotten, Checker::Leaks),
    ] {
        assert_eq!(checker(&all, sabotage, false), Some(by), "{sabotage:?}");
    }
    for (sabotage, by) in [(Sabotage::LossIgnored, Checker::Death), (Sabotage::LossEndsFlush, Checker::Blame)] {
        assert_eq!(checker(&all, sabotage, false), None, "{sabotage:?}, without a fault");
        assert_eq!(checker(&all, sabotage, true), Some(by), "{sabotage:?}");
    }
}
