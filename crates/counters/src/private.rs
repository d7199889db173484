//! The private statistics of an interface: those that its driver keeps, and that `ethtool -S` prints.

use std::path::{Path, PathBuf};

use crate::counter::Counter;
use crate::ethtool::Ethtool;
use crate::file::Reader;
use crate::values::Values;

/// The place that private statistics come from.
#[derive(Debug)]
pub(crate) enum Private {
    /// The kernel; `None` if it gives no socket.
    Kernel(Option<Ethtool>),
    /// A directory with a text of `ethtool -S` for each interface, below a root that is not `/`.
    Texts(PathBuf),
}

/// The places of an interface's statistics that are counters here.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// The number of all its statistics. mlx5 makes and removes some with its channels, and names change with it.
    count: usize,
    places: Vec<(Counter, usize)>,
}

impl Private {
    /// Returns the place for the interfaces below `root`.
    pub(crate) fn new(root: &Path) -> Self {
        if root == Path::new("/") { Self::Kernel(Ethtool::new().ok()) } else { Self::Texts(root.join("ethtool")) }
    }

    /// Adds an interface's private statistics to `values`. `places` is kept for it between readings; once it is `None`,
    /// the names are read again.
    pub(crate) fn read(
        &mut self,
        interface: &str,
        places: &mut Option<Places>,
        reader: &mut Reader,
        values: &mut Values,
    ) {
        match self {
            Self::Kernel(Some(ethtool)) => {
                // The kernel is not asked each time about an interface that has nothing to say.
                if places.as_ref().is_none_or(|places| !places.places.is_empty()) {
                    ask(ethtool, interface, places, counter, values);
                }
            }
            Self::Kernel(None) => {}
            Self::Texts(directory) => {
                let text = reader.long_text(&directory.join(interface)).unwrap_or_default();
                for (name, value) in text.lines().filter_map(|line| line.rsplit_once(':')) {
                    if let (Some(counter), Ok(value)) = (counter(name.trim()), value.trim().parse()) {
                        values.add(counter, value);
                    }
                }
            }
        }
    }
}

/// Asks the kernel for an interface's statistics that are counters according to `counter`.
fn ask(
    ethtool: &mut Ethtool,
    interface: &str,
    places: &mut Option<Places>,
    counter: impl Fn(&str) -> Option<Counter>,
    values: &mut Values,
) {
    let count = ethtool.count(interface).unwrap_or_default();
    let known = places.get_or_insert_default();
    if known.count != count {
        *known = Places { count, places: Vec::new() };
        let see = |place, name: &str| known.places.extend(counter(name).map(|counter| (counter, place)));
        if ethtool.names(interface, count, see).is_none() {
            // There are others by now.
            *places = None;
            return;
        }
    }
    if known.places.is_empty() {
        return;
    }
    let Some(value) = ethtool.values(interface, count) else { return };
    for (counter, place) in &known.places {
        if let Some(value) = value(*place) {
            values.add(*counter, value);
        }
    }
}

/// Returns the counter that a private statistic belongs to.
fn counter(name: &str) -> Option<Counter> {
    Counter::find(|origin| origin.is_ethtool(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_drivers_are_counters_or_nothing() {
        for (name, expected) in [
            ("rx_prio3_pause", Counter::RxPrioPause),
            ("rx_global_pause", Counter::RxPrioPause),
            ("rx_prio0_pause_duration", Counter::RxPrioPauseDuration),
            ("rx_prio0_pause_transition", Counter::RxPrioPauseTransitions),
            ("tx_prio7_pause", Counter::TxPrioPause),
            ("rx_prio1_buf_discard", Counter::RxPrioBufDiscard),
            ("rx_prio2_cong_discard", Counter::RxPrioCongDiscard),
            ("rx_prio5_marked", Counter::RxPrioMarked),
            ("tx_pause_storm_warning_events", Counter::TxPauseStormWarnings),
            ("rx_crc_errors_phy", Counter::RxCrcErrorsPhy),
        ] {
            assert_eq!(counter(name), Some(expected), "{name}");
        }
        for name in ["rx_bytes", "port_rcv_data", "rx_prio3_bytes", "rx0_packets", "NIC statistics", ""] {
            assert_eq!(counter(name), None, "{name}");
        }
    }

    #[test]
    fn an_interface_with_nothing_to_say_is_not_asked_again() {
        let (mut private, mut values) = (Private::new(Path::new("/")), Values::new());
        let mut places = None;
        private.read("no-such-if", &mut places, &mut Reader::default(), &mut values);
        assert_eq!(values.to_vec(), []);
        // As long as there are places, even if there are none in them, the kernel is not asked for the names.
        assert!(places.is_some_and(|places| places.count == 0 && places.places.is_empty()));
    }

    #[test]
    fn names_are_read_again_once_their_number_is_another() {
        let mut ethtool = Ethtool::new().unwrap();
        for entry in std::fs::read_dir("/sys/class/net").unwrap().flatten() {
            let interface = entry.file_name().into_string().unwrap();
            let Some(count) = ethtool.count(&interface) else { continue };
            let (mut places, mut values) = (None, Values::new());
            ask(&mut ethtool, &interface, &mut places, |_| Some(Counter::RxPrioPause), &mut values);
            assert!(matches!(values.to_vec()[..], [(Counter::RxPrioPause, _)]), "{interface}");
            let mut known = places.unwrap();
            assert_eq!((known.count, known.places.len()), (count, count), "{interface}");
            known.places.truncate(1);
            let mut places = Some(known);
            ask(&mut ethtool, &interface, &mut places, |_| panic!("the names are known"), &mut values);
            places.as_mut().unwrap().count += 1;
            ask(&mut ethtool, &interface, &mut places, |_| None, &mut values);
            assert!(places.is_some_and(|places| places.count == count && places.places.is_empty()), "{interface}");
        }
    }
}
