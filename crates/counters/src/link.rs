//! The link's rate and the adapter's place on PCIe, from the kernel's texts.

use std::path::{Path, PathBuf};

use crate::file::Reader;

/// The fastest rate of a link that is believed, in Gbit/s. XDR with 12 lanes has 2400.
const MAX_GIGABITS: f64 = 1e6;
/// The most lanes of a PCIe link.
const MAX_PCIE_WIDTH: u32 = 32;

/// An adapter's link on PCIe, from the files of its PCI device (Documentation/ABI/testing/sysfs-bus-pci). A link below
/// its best, by training or to save power, is a common reason for half the rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pcie {
    /// The speed of a lane now, in millions of transfers per second: 16000 for `16.0 GT/s PCIe`. From
    /// `current_link_speed`; `None` if unknown.
    pub speed: Option<u32>,
    /// The greatest speed of a lane that the adapter offers, in the same unit. From `max_link_speed`.
    pub max_speed: Option<u32>,
    /// The number of lanes now, 1 to 32. From `current_link_width`; `None` if unknown.
    pub width: Option<u32>,
    /// The greatest number of lanes that the adapter offers, 1 to 32. From `max_link_width`.
    pub max_width: Option<u32>,
}

/// The files of a PCI device's link.
#[derive(Debug)]
pub(crate) struct PcieFiles {
    speed: PathBuf,
    max_speed: PathBuf,
    width: PathBuf,
    max_width: PathBuf,
}

impl PcieFiles {
    /// Names the files below the directory of a device, of any bus.
    pub(crate) fn new(device: &Path) -> Self {
        Self {
            speed: device.join("current_link_speed"),
            max_speed: device.join("max_link_speed"),
            width: device.join("current_link_width"),
            max_width: device.join("max_link_width"),
        }
    }

    /// Returns the link; `None` if nothing of it is known, as for a virtual device.
    pub(crate) fn read(&self, reader: &mut Reader) -> Option<Pcie> {
        let pcie = Pcie {
            speed: reader.text(&self.speed).and_then(mega_transfers),
            max_speed: reader.text(&self.max_speed).and_then(mega_transfers),
            width: reader.text(&self.width).and_then(pcie_width),
            max_width: reader.text(&self.max_width).and_then(pcie_width),
        };
        Some(pcie).filter(|pcie| *pcie != Pcie::default())
    }
}

/// Returns the bytes per second and the lanes of a text like `100 Gb/sec (4X EDR)`.
pub(crate) fn rate_and_width(text: &str) -> (Option<u64>, Option<u32>) {
    let mut words = text.split_whitespace();
    let number = words.next().and_then(|number| number.parse::<f64>().ok());
    let is_gigabits = words.next() == Some("Gb/sec");
    let rate = number.filter(|gigabits| is_gigabits && *gigabits > 0.0 && *gigabits <= MAX_GIGABITS);
    let width = words.next().and_then(|word| word.strip_prefix('(')?.strip_suffix('X')?.parse().ok());
    (rate.map(|gigabits| (gigabits * 125e6) as u64), width.filter(|width| *width > 0))
}

/// Returns the bytes per second of an interface's speed in Mbit/s; `None` for the numbers that mean unknown, which are
/// -1, and 4294967295 on older kernels.
pub(crate) fn rate_of_speed(text: &str) -> Option<u64> {
    let speed: u32 = text.parse().ok()?;
    (speed > 0 && speed != u32::MAX).then(|| u64::from(speed) * 125_000)
}

/// Returns the millions of transfers per second of a text like `16.0 GT/s PCIe`, or `16 GT/s` on older kernels.
fn mega_transfers(text: &str) -> Option<u32> {
    let (number, unit) = text.split_once(' ')?;
    let giga: f64 = number.parse().ok().filter(|giga| *giga > 0.0 && *giga < 1000.0 && unit.starts_with("GT/s"))?;
    Some((giga * 1000.0) as u32)
}

/// Returns the lanes of a text like `16`; `None` for 0 and 255, which mean unknown.
fn pcie_width(text: &str) -> Option<u32> {
    text.parse().ok().filter(|width| (1..=MAX_PCIE_WIDTH).contains(width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_bytes_per_second() {
        for (text, rate, width) in [
            ("100 Gb/sec (4X EDR)", 12_500_000_000, 4),
            ("2.5 Gb/sec (1X SDR)", 312_500_000, 1),
            ("200 Gb/sec (4X HDR)", 25_000_000_000, 4),
            ("2400 Gb/sec (12X XDR)", 300_000_000_000, 12),
            ("40 Gb/sec (4X)", 5_000_000_000, 4),
        ] {
            let width = Some(width).filter(|_| !text.ends_with("X)"));
            assert_eq!(rate_and_width(text), (Some(rate), width), "{text}");
        }
        for text in [
            "",
            "fast",
            "100",
            "100 Mb/sec (4X EDR",
            "-1 Gb/sec",
            "0 Gb/sec",
            "nan Gb/sec",
            "1e300 Gb/sec",
            "inf Gb/sec",
        ] {
            assert_eq!(rate_and_width(text).0, None, "{text}");
        }
        assert_eq!(rate_and_width("100 Gb/sec (0X EDR)"), (Some(12_500_000_000), None));
        assert_eq!(rate_and_width("100 Gb/sec (X EDR)"), (Some(12_500_000_000), None));
    }

    #[test]
    fn an_unknown_speed_is_no_rate() {
        assert_eq!(rate_of_speed("100000"), Some(12_500_000_000));
        for text in ["-1", "4294967295", "0", "", "10 Gb/s", "99999999999"] {
            assert_eq!(rate_of_speed(text), None, "{text}");
        }
    }

    #[test]
    fn pcie_is_known_or_it_is_not() {
        for (text, speed) in
            [("16.0 GT/s PCIe", 16_000), ("2.5 GT/s", 2_500), ("32.0 GT/s PCIe", 32_000), ("8 GT/s", 8_000)]
        {
            assert_eq!(mega_transfers(text), Some(speed), "{text}");
        }
        for text in ["Unknown", "Unknown speed", "16.0", "16.0 Gb/s", "-8 GT/s", "inf GT/s", "NaN GT/s", ""] {
            assert_eq!(mega_transfers(text), None, "{text}");
        }
        assert_eq!([pcie_width("16"), pcie_width("1"), pcie_width("32")], [Some(16), Some(1), Some(32)]);
        for text in ["0", "255", "-1", "x16", ""] {
            assert_eq!(pcie_width(text), None, "{text}");
        }
        assert_eq!(PcieFiles::new(Path::new("/nowhere")).read(&mut Reader::default()), None);
    }
}
