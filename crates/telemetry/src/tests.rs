//! The tables of docs/telemetry.md are those of the code.

use std::path::Path;

use crate::header::{Entry, Preamble};
use crate::layout::Places;
use crate::{Connection, ConnectionState, Device, Direction, Event, EventKind, Policy, Port, Process, Rail, RailState};

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/telemetry.md");
    std::fs::read_to_string(path).expect("the page is in the repository")
}

/// Returns the place, the end, the name and the meaning of each row below a heading.
fn rows(page: &str, heading: &str) -> Vec<(usize, usize, String, String)> {
    let lines = page.lines().skip_while(|line| !line.starts_with(&format!("### {heading}"))).skip(1);
    let rows = lines.take_while(|line| !line.starts_with('#')).filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, place, bytes, name, meaning, _] = cells[..] else { return None };
        let place: usize = place.parse().ok()?;
        Some((place, place + bytes.parse::<usize>().ok()?, name.trim_matches('`').to_owned(), meaning.to_owned()))
    });
    rows.filter(|(_, _, name, _)| !name.is_empty()).collect()
}

fn check(heading: &str, places: &[&[(usize, usize, &str)]]) {
    let coded: Vec<_> = places.concat().into_iter().map(|(from, to, name)| (from, to, name.to_owned())).collect();
    let written: Vec<_> = rows(&page(), heading).into_iter().map(|(from, to, name, _)| (from, to, name)).collect();
    assert_eq!(written, coded, "{heading}");
    assert!(coded.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{heading}: places overlap");
}

#[test]
fn every_place_is_in_the_page() {
    check("Header", &[Preamble::PLACES, Process::PLACES]);
    check("Entry", &[Entry::PLACES]);
    check("Device", &[Device::PLACES]);
    let mut connection = Connection::PLACES.to_vec();
    connection.sort_unstable();
    check("Connection", &[&connection]);
    check("Rail", &[Rail::PLACES]);
    check("Event", &[Event::PLACES]);
    check("Port", &[Port::PLACES]);
}

#[test]
fn every_number_is_in_the_page() {
    let numbered = |words: Vec<String>| words.join(", ");
    let state: Vec<String> = RailState::ALL.iter().map(|state| format!("{} {}", *state as u8, state.word())).collect();
    let connection = ConnectionState::ALL.iter().map(|state| format!("{} {}", *state as u8, state.word())).collect();
    let direction = Direction::ALL.iter().map(|way| format!("{} {}", *way as u8, way.word())).collect();
    let policy = Policy::ALL.iter().map(|policy| format!("{} {}", *policy as u8, policy.word())).collect();
    let kinds = EventKind::ALL.iter().map(|(kind, word)| format!("{} {word}", kind.0)).collect();
    for (heading, name, words) in [
        ("Rail", "state", state),
        ("Connection", "state", connection),
        ("Connection", "direction", direction),
        ("Connection", "policy", policy),
    ] {
        let rows = rows(&page(), heading);
        let (.., meaning) = rows.iter().find(|(_, _, row, _)| row == name).expect("the row is there");
        assert_eq!(*meaning, numbered(words), "{heading}: {name}");
    }
    let words = page().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&format!("The kinds are {}.", numbered(kinds))), "the kinds of events");
}
