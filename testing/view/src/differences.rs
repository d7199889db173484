//! The differences between both sides, and those that are expected, each with its reason.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;

use crate::answer::{Answer, Device, FIELDS, REFUSED};
use crate::file::read;
use crate::fixture::{Fixture, line};
use crate::host::Sides;

/// The expected differences.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expected {
    /// The rules.
    pub(crate) differs: Vec<Rule>,
}

/// One expected difference.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// The field.
    pub(crate) field: String,
    /// The hosts; every host without it.
    pub(crate) hosts: Option<Vec<String>>,
    /// NCCL's value; any without it.
    nccl: Option<String>,
    /// Railweave's value; any without it.
    railweave: Option<String>,
    /// The reason.
    pub(crate) reason: String,
}

impl Expected {
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        toml::from_str(&read(path)?).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Returns the number of the rule that expects a difference.
    fn rule(&self, host: &str, difference: &Difference) -> Option<usize> {
        let is = |wanted: &Option<String>, value: &str| wanted.as_ref().is_none_or(|wanted| wanted == value);
        self.differs.iter().position(|rule| {
            rule.field == difference.field
                && rule.hosts.as_ref().is_none_or(|hosts| hosts.iter().any(|name| name == host))
                && is(&rule.nccl, &difference.nccl)
                && is(&rule.railweave, &difference.railweave)
        })
    }
}

/// One difference.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Difference {
    /// The setting, as a line.
    pub(crate) settings: String,
    /// The device, as a person would name it.
    pub(crate) device: String,
    /// The field; `devices` and `groups` for their numbers, `init` for its result.
    pub(crate) field: String,
    /// NCCL's value.
    pub(crate) nccl: String,
    /// Railweave's value.
    pub(crate) railweave: String,
}

/// A difference, with the number of the rule that expects it.
type Explained = (Difference, Option<usize>);

/// The differences of all hosts.
#[derive(Debug)]
pub(crate) struct Found {
    /// The host's name, and its differences.
    pub(crate) hosts: Vec<(String, Vec<Explained>)>,
}

/// Finds all differences.
pub(crate) fn find(fixtures: &[Fixture], sides: &Sides, expected: &Expected) -> Found {
    let of = |fixture: &Fixture| {
        let mut all = Vec::new();
        for settings in fixture.settings() {
            let settings = line(&settings);
            // A missing answer is an error of the page, which names it.
            if let (Ok(nccl), Ok(railweave)) =
                (sides.nccl.get(&fixture.name, &settings), sides.railweave.get(&fixture.name, &settings))
            {
                all.extend(between(&settings, nccl, railweave));
            }
        }
        let rules = all.into_iter().map(|difference| {
            let rule = expected.rule(&fixture.name, &difference);
            (difference, rule)
        });
        (fixture.name.clone(), rules.collect())
    };
    Found { hosts: fixtures.iter().map(of).collect() }
}

fn between(settings: &str, nccl: &Answer, railweave: &Answer) -> Vec<Difference> {
    let mut all = Vec::new();
    let mut differ = |device: &str, field: &str, nccl: &str, railweave: &str| {
        if nccl != railweave {
            let [settings, device, field] = [settings, device, field].map(str::to_owned);
            all.push(Difference { settings, device, field, nccl: nccl.to_owned(), railweave: railweave.to_owned() });
        }
    };
    let init = |answer: &Answer| answer.init.clone().unwrap_or_else(|| "ncclSuccess".to_owned());
    differ("all", "init", &init(nccl), &init(railweave));
    if nccl.init.is_some() || railweave.init.is_some() {
        return all;
    }
    let count = |answer: &Answer| answer.devices.len().to_string();
    differ("all", "devices", &count(nccl), &count(railweave));
    for (index, (theirs, ours)) in nccl.devices.iter().zip(&railweave.devices).enumerate() {
        for field in FIELDS {
            differ(&index.to_string(), field, value(theirs, field), value(ours, field));
        }
    }
    // Their members are compared below, as vProps.
    let groups = |answer: &Answer| answer.fused.len().to_string();
    differ("all", "groups", &groups(nccl), &groups(railweave));
    for (theirs, ours) in nccl.fused.iter().zip(&railweave.fused) {
        for field in FIELDS.into_iter().chain([REFUSED]) {
            differ(&theirs.of.join("+"), field, value(&theirs.device, field), value(&ours.device, field));
        }
    }
    all
}

/// Returns a value, `-` for one that is not there.
fn value<'a>(device: &'a Device, field: &str) -> &'a str {
    device.get(field).map_or("-", String::as_str)
}

impl Found {
    /// Returns a sentence for each difference that no rule expects, and for each rule that expects nothing.
    pub(crate) fn complaints(&self, expected: &Expected) -> Vec<String> {
        let mut all = Vec::new();
        let mut used = BTreeSet::new();
        for (host, differences) in &self.hosts {
            for (difference, rule) in differences {
                let Difference { settings, device, field, nccl, railweave } = difference;
                match rule {
                    Some(rule) => {
                        used.insert(*rule);
                    }
                    None => all.push(format!(
                        "{host}, {settings}, device {device}: {field} is {nccl} in NCCL and {railweave} in Railweave, \
                         which no rule expects"
                    )),
                }
            }
        }
        let unused = expected.differs.iter().enumerate().filter(|(number, _)| !used.contains(number));
        all.extend(unused.map(|(_, rule)| format!("the rule about {} expects a difference that is gone", rule.field)));
        all
    }

    /// Returns the numbers of the rules that a host's differences follow.
    pub(crate) fn rules(&self, host: &str) -> BTreeSet<usize> {
        let differences = self.hosts.iter().filter(|(name, _)| name == host).flat_map(|(_, differences)| differences);
        differences.filter_map(|(_, rule)| *rule).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Fused;

    fn device(name: &str, speed: &str) -> Device {
        [("name", name), ("speed", speed)].map(|(field, value)| (field.to_owned(), value.to_owned())).into()
    }

    fn answer(devices: &[(&str, &str)], fused: Option<Device>) -> Answer {
        let fused = fused.map(|device| Fused { of: vec!["a".to_owned(), "b".to_owned()], device });
        let devices = devices.iter().map(|(name, speed)| device(name, speed)).collect();
        Answer { init: None, devices, fused: fused.into_iter().collect() }
    }

    /// Returns the fields that differ, with both values.
    fn differ(nccl: &Answer, railweave: &Answer) -> Vec<(String, String, String)> {
        let all = between("no setting", nccl, railweave);
        all.into_iter().map(|it| (format!("{} {}", it.device, it.field), it.nccl, it.railweave)).collect()
    }

    #[test]
    fn every_kind_of_difference_is_found() {
        let same = answer(&[("a", "1"), ("b", "2")], Some(device("a+b", "3")));
        assert_eq!(differ(&same, &same), []);
        let found = |other: &Answer| -> Vec<String> {
            differ(&same, other).into_iter().map(|(what, nccl, ours)| format!("{what}: {nccl}, {ours}")).collect()
        };
        let all = Some(device("a+b", "3"));
        assert_eq!(found(&answer(&[("a", "1"), ("b", "4")], all.clone())), ["1 speed: 2, 4"]);
        assert_eq!(found(&answer(&[("b", "2"), ("a", "1")], all.clone())).len(), 4, "the order counts");
        assert_eq!(found(&answer(&[("a", "1")], all)), ["all devices: 2, 1"]);
        assert_eq!(found(&answer(&[("a", "1"), ("b", "2")], None)), ["all groups: 1, 0"]);
        let refused = Device::from([(REFUSED.to_owned(), "ncclInvalidUsage".to_owned())]);
        assert_eq!(
            found(&answer(&[("a", "1"), ("b", "2")], Some(refused))),
            ["a+b name: a+b, -", "a+b speed: 3, -", "a+b makeVDevice: -, ncclInvalidUsage"]
        );
        let broken = Answer { init: Some("ncclSystemError".to_owned()), ..Answer::default() };
        assert_eq!(found(&broken), ["all init: ncclSuccess, ncclSystemError"]);
    }

    #[test]
    fn only_what_a_rule_names_is_expected_and_a_rule_without_a_difference_is_a_complaint() {
        let expected = "[[differs]]\nfield = 'speed'\nhosts = ['one']\nnccl = '2'\nrailweave = '4'\nreason = 'it'\n";
        let expected: Expected = toml::from_str(expected).unwrap();
        let complaints = |host: &str, railweave: &[(&str, &str)]| {
            let differences = between("no setting", &answer(&[("a", "2")], None), &answer(railweave, None));
            let rules = differences.into_iter().map(|it| (it.clone(), expected.rule(host, &it))).collect();
            Found { hosts: vec![(host.to_owned(), rules)] }.complaints(&expected)
        };
        assert_eq!(complaints("one", &[("a", "4")]), [""; 0]);
        let gone = "the rule about speed expects a difference that is gone";
        assert_eq!(complaints("one", &[("a", "2")]), [gone]);
        for (host, railweave) in [("one", ("a", "5")), ("two", ("a", "4")), ("one", ("b", "2"))] {
            let said = complaints(host, &[railweave]);
            assert!(said.len() == 2 && said[0].contains("which no rule expects") && said[1] == gone, "{said:?}");
        }
    }
}
