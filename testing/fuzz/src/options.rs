//! The environment: any names and values.

use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt;

use railweave_options::{Entry, Options, RailFilter, Source, TABLE};

use crate::input::Input;

const MOST_VARIABLES: usize = 12;

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    if input.u8().is_multiple_of(2) {
        return filter(input.rest());
    }
    let names: Vec<&str> = TABLE.iter().flat_map(Entry::all_variables).collect();
    let mut variables = Vec::new();
    while !input.is_empty() && variables.len() < MOST_VARIABLES {
        // One of the known variables by its number, or a name in full.
        let name = match usize::from(input.u8()) {
            which @ 128.. => OsString::from(names[(which - 128) % names.len()]),
            length => OsString::from_vec(input.take(length).to_vec()),
        };
        let length = usize::from(input.u8());
        variables.push((name, OsString::from_vec(input.take(length).to_vec())));
    }
    match Options::from_variables(variables) {
        Err(errors) => {
            assert_ne!(errors.iter().count(), 0);
            for error in &errors {
                one_line(&error.to_string());
            }
        }
        Ok((options, warnings)) => {
            warnings.iter().for_each(|warning| one_line(&warning.to_string()));
            shown_is_read_alike(&options);
        }
    }
}

/// Checks that a shown value, given to the setting's own variable, is read as the same value.
fn shown_is_read_alike(options: &Options) {
    for row in options.rows().into_iter().filter(|row| row.source != Source::Default) {
        let again = match Options::from_variables([(row.entry.variable(), row.value.as_str())]) {
            Ok((again, _)) => again,
            Err(errors) => panic!("{} shows {:?}, which it does not read: {errors}", row.entry.name, row.value),
        };
        let same = again.rows().into_iter().find(|other| other.entry == row.entry).map(|other| other.value);
        assert_eq!(same.as_ref(), Some(&row.value), "{}", row.entry.name);
    }
}

/// Parses a list of rails and queries it.
fn filter(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let filter = match RailFilter::parse(&text) {
        Ok(filter) => filter,
        Err(reason) => return one_line(&format!("the list {reason}")),
    };
    let shown = filter.to_string();
    assert_eq!(RailFilter::parse(&shown).as_ref(), Ok(&filter), "{shown:?} is what {text:?} is shown as");
    let addresses = [None, Some(IpAddr::from([10, 1, 2, 3])), Some(IpAddr::from([0xfd; 16]))];
    for name in ["", "eth0", "mlx5_1", text.as_ref()] {
        for address in addresses {
            for port in [None, Some(1)] {
                let found = filter.matches(name, address, port);
                assert!(found.and_then(|found| found.item).is_none_or(|item| item < filter.items.len()));
            }
        }
    }
}

fn one_line(text: &str) {
    assert!(text.contains(' ') && !text.contains(char::is_control), "a sentence in one line: {text:?}");
}
