//! A reader of metrics that believes nothing: OpenMetrics 1.0, as much of it as the agent writes.

use std::collections::{BTreeMap, BTreeSet};

/// The samples of a text, by name and labels.
pub(crate) type Samples = BTreeMap<(String, Vec<(String, String)>), f64>;

/// Reads metrics, which have to be well-formed.
pub(crate) fn read(text: &str) -> Samples {
    let body = text.strip_suffix("# EOF\n").expect("the end");
    let (mut families, mut samples) = (BTreeSet::new(), Samples::new());
    let mut family = (String::new(), String::new());
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            assert!(families.insert(name.to_owned()), "{name} twice");
            family = (name.to_owned(), kind.to_owned());
        } else if !line.starts_with("# HELP ") {
            let (key, value) = sample(line);
            let suffix = key.0.strip_prefix(&family.0).unwrap_or_else(|| panic!("{line}: not of {}", family.0));
            let is_right = match family.1.as_str() {
                "counter" => suffix == "_total",
                "gauge" => suffix.is_empty(),
                "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
                other => panic!("{other}"),
            };
            assert!(is_right, "{line}");
            assert!(!value.is_nan() && value >= 0.0, "{line}");
            assert!(samples.insert(key, value).is_none(), "{line} twice");
        }
    }
    samples
}

fn sample(line: &str) -> ((String, Vec<(String, String)>), f64) {
    let end = line.find(['{', ' ']).expect(line);
    let (name, mut rest) = line.split_at(end);
    assert!(name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_')), "{line}");
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").expect(line);
            let label = label.trim_start_matches(',');
            let mut value = String::new();
            let mut letters = after.char_indices();
            let end = loop {
                match letters.next().expect(line) {
                    (at, '"') => break at,
                    (_, '\\') => value.push(match letters.next().expect(line).1 {
                        'n' => '\n',
                        letter @ ('"' | '\\') => letter,
                        other => panic!("\\{other}: {line}"),
                    }),
                    (_, letter) => value.push(letter),
                }
            };
            labels.push((label.to_owned(), value));
            rest = &after[end + 1..];
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').expect(line);
    ((name.to_owned(), labels), value.parse().expect(line))
}

/// Returns the sum of the samples with this name and these labels.
pub(crate) fn sum(samples: &Samples, name: &str, labels: &[(&str, &str)]) -> f64 {
    let fits = |all: &[(String, String)]| {
        labels.iter().all(|(name, value)| all.iter().any(|(other, it)| other == name && it == value))
    };
    samples.iter().filter(|((other, all), _)| other == name && fits(all)).map(|(_, value)| value).sum()
}

/// Returns the number of samples with this name.
pub(crate) fn count(samples: &Samples, name: &str) -> usize {
    samples.keys().filter(|(other, _)| other == name).count()
}

/// Checks that no counter has gone back.
pub(crate) fn check_growth(before: &Samples, after: &Samples) {
    for ((name, labels), value) in after.iter().filter(|((name, _), _)| name.ends_with("_total")) {
        let then = before.get(&(name.clone(), labels.clone())).copied().unwrap_or(0.0);
        assert!(*value >= then, "{name} {labels:?}: {then} -> {value}");
    }
}
