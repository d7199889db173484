//! The names of ports and devices that this host has.

use crate::orders::effect::{covers, drain, stands_for};
use crate::orders::{OrderedRule, files};
use crate::output::printable;
use railweave_telemetry::Folder;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The most names that are kept: files may have any number.
const MOST: usize = 4096;

/// The most names that a sentence repeats.
const NAMED: usize = 8;

/// The names that this host has.
#[derive(Debug, Default)]
pub(super) struct Names {
    ports: BTreeSet<String>,
    devices: BTreeSet<String>,
}

impl Names {
    /// Reads the names of a run dir's files, if there is one, and those of this host's interfaces and adapters.
    pub(super) fn read(folder: Option<&Folder>) -> Self {
        let mut names = Self::default();
        names.add_host(Path::new("/sys/class"));
        if let Some(folder) = folder {
            // Without the folder's files, more names are unknown, which is only a warning.
            let _ = files::read(folder, |_, snapshot| {
                let state = &snapshot.state;
                let of_devices = state.devices.iter().flat_map(|device| device.ports.split(','));
                let of_rails = state.ports.iter().map(|port| &*port.name);
                for port in of_devices.chain(of_rails).filter(|port| !port.is_empty()) {
                    add(&mut names.ports, port);
                }
                for device in &state.devices {
                    add(&mut names.devices, &device.name);
                }
            });
        }
        names
    }

    /// Adds interfaces, adapters, and the ports of adapters.
    fn add_host(&mut self, class: &Path) {
        let list = |path: &Path| -> Vec<String> {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
        };
        for interface in list(&class.join("net")) {
            add(&mut self.ports, &interface);
        }
        for adapter in list(&class.join("infiniband")) {
            for port in list(&class.join("infiniband").join(&adapter).join("ports")) {
                add(&mut self.ports, &format!("{adapter}:{port}"));
            }
            add(&mut self.ports, &adapter);
        }
    }

    /// Returns a warning if nothing here has the name of a port.
    pub(super) fn warn_of_port(&self, port: &str) -> Option<String> {
        let rules = drain(port)?;
        if self.ports.iter().any(|name| covers(&rules, name) || stands_for(name, port)) {
            return None;
        }
        let known = few(&self.ports);
        Some(printable(&format!(
            "no rail, device or port of this host has the name {port}, and it is ordered all the same; known: {known}"
        )))
    }

    /// Returns warnings about the names of a rule that nothing here has.
    pub(super) fn warn_of_rule(&self, rule: &OrderedRule) -> Vec<String> {
        let values = |key: &str| -> Vec<String> {
            let words = rule.matchers.split_whitespace().filter_map(|word| word.strip_prefix(key));
            words.flat_map(|values| values.split(',')).map(str::to_owned).collect()
        };
        let fits = |pattern: &str, name: &String| match pattern.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == pattern,
        };
        let mut warnings = Vec::new();
        for (kind, key, known) in [("device", "device=", &self.devices), ("port", "rail=", &self.ports)] {
            for value in values(key) {
                let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
                // Names of interfaces stand for no addresses in a rule.
                let is_known = (kind == "port" && is_number) || known.iter().any(|name| fits(&value, name));
                if !is_known {
                    warnings.push(printable(&format!(
                        "no {kind} of this host, or of a process that runs here, has the name {value}, and the rule is \
                         ordered all the same; known: {}",
                        few(known)
                    )));
                }
            }
        }
        warnings
    }
}

fn add(names: &mut BTreeSet<String>, name: &str) {
    if names.len() < MOST {
        names.insert(name.to_owned());
    }
}

/// Returns some of the names as words.
fn few(names: &BTreeSet<String>) -> String {
    let named: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
    match names.len().saturating_sub(NAMED) {
        _ if named.is_empty() => "none".to_owned(),
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Names { ports: set(&["eth0", "eth1@10.0.1.1", "mlx5_0", "mlx5_0:1"]), devices: set(&["eth0+eth1"]) }
    }

    #[test]
    fn a_port_is_known_by_each_of_its_names() {
        for known in ["eth0", "eth0@10.0.0.1", "eth1", "eth1@10.0.1.1", "mlx5_0", "mlx5_0:1", "mlx5_0_dma"] {
            assert_eq!(names().warn_of_port(known), None, "{known}");
        }
        for unknown in ["eth2", "eth1@10.0.1.2", "mlx5_01", "mlx5"] {
            let warning = names().warn_of_port(unknown).unwrap();
            assert!(
                warning.contains(&format!("has the name {unknown}, ")) && warning.contains("known: eth0"),
                "{warning}"
            );
        }
    }

    #[test]
    fn the_names_of_a_rule_are_known_or_not() {
        let rule = |matchers: &str| OrderedRule { matchers: matchers.to_owned(), actions: String::new() };
        for known in ["any", "peer=nobody", "device=eth0* rail=1", "rail=eth1@*,7", "device=eth0+eth1"] {
            assert_eq!(names().warn_of_rule(&rule(known)), [""; 0], "{known}");
        }
        assert_eq!(names().warn_of_rule(&rule("device=eth0 rail=eth1,eth0")).len(), 2);
    }
}
