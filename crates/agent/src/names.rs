//! The names of ports: those that rails have, and those for which the name of an interface or adapter stands.

/// Returns the names that stand for a port, its own first: an interface (`eth0`) for its addresses (`eth0@10.0.0.1`),
/// an adapter (`mlx5_0`) for its ports (`mlx5_0:2`), and each also for its Data Direct engine (`mlx5_0_dma`). A drain
/// of any of them is one of the port.
pub(crate) fn covering(port: &str) -> Vec<String> {
    let name = port.split('@').next().unwrap_or(port);
    let (device, number) = numbered(name).map_or((name, None), |(device, number)| (device, Some(number)));
    let engine_of = if name == port { device.strip_suffix("_dma") } else { None };
    let mut names = vec![port.to_owned(), name.to_owned()];
    if let Some(number) = number {
        names.extend(engine_of.map(|device| format!("{device}:{number}")));
        names.push(device.to_owned());
    }
    names.extend(engine_of.map(str::to_owned));
    names.dedup();
    names
}

/// Returns the values of `rail=` that fit all ports for which a name stands, and no others. They do not depend on the
/// names that rails have now, so that a job leaves the port from its first message on.
pub(crate) fn patterns(port: &str) -> Vec<String> {
    if port.contains('@') {
        return vec![port.to_owned()];
    }
    let mut patterns = vec![port.to_owned(), format!("{port}@*")];
    match numbered(port) {
        Some((device, _)) if device.ends_with("_dma") => {}
        Some((device, number)) => patterns.push(format!("{device}_dma:{number}")),
        None => {
            patterns.push(format!("{port}:*"));
            if !port.ends_with("_dma") {
                patterns.extend([format!("{port}_dma"), format!("{port}_dma:*")]);
            }
        }
    }
    patterns
}

/// Returns the name under which a port has counters: addresses of one interface share them, and so do a port and its
/// Data Direct engine.
pub(crate) fn counted_name(port: &str) -> String {
    let name = port.split('@').next().unwrap_or(port);
    match name.split_once(':') {
        Some((device, number)) => format!("{}:{number}", device.strip_suffix("_dma").unwrap_or(device)),
        None => name.strip_suffix("_dma").unwrap_or(name).to_owned(),
    }
}

/// Returns the adapter and the number of a port of several.
fn numbered(name: &str) -> Option<(&str, &str)> {
    name.split_once(':')
        .filter(|(_, number)| !number.is_empty() && number.bytes().all(|letter| letter.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use railweave_telemetry::{Rules, Subject};

    #[test]
    fn ports_of_one_adapter_or_interface_share_counters() {
        let names = ["mlx5_0", "mlx5_0_dma", "mlx5_0_dma:2", "mlx5_1:2", "eth0@10.0.0.1", "eth0"];
        let counted = ["mlx5_0", "mlx5_0", "mlx5_0:2", "mlx5_1:2", "eth0", "eth0"];
        assert_eq!(names.map(counted_name), counted);
    }

    #[test]
    fn a_rule_fits_the_ports_that_a_name_stands_for_and_no_others() {
        const NAMES: [&str; 16] = [
            "mlx5_0",
            "mlx5_0:1",
            "mlx5_0:2",
            "mlx5_0:12",
            "mlx5_0_dma",
            "mlx5_0_dma:1",
            "mlx5_01",
            "mlx5_0_dmax",
            "mlx5_1",
            "eth0",
            "eth0@10.0.0.1",
            "eth0@fe80::1",
            "eth01",
            "eth0.7",
            "eth0:1@10.0.0.2",
            "eth0:1",
        ];
        let mut pairs = 0;
        for drained in NAMES {
            let rule = format!("rail={} -> drain", patterns(drained).join(","));
            let rules = Rules::parse(&format!("railweave-policy 1\nttl forever\n{rule}\n")).unwrap();
            for port in NAMES {
                let rails = [port, "other"];
                let order = rules.decide(&Subject { rails: &rails, ..Subject::default() });
                let is_drained = order.is_some_and(|order| order.drained == 1);
                assert_eq!(is_drained, covering(port).iter().any(|name| name == drained), "{drained}: {port}");
                pairs += u32::from(is_drained && port != drained);
            }
        }
        assert_eq!(pairs, 12, "names that stand for others");
    }
}
