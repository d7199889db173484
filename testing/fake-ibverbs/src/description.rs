//! The machine that the stand-in pretends to be, read from text. The crate's documentation has the format.

use std::ffi::c_int;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use railweave_fabric_verbs::sys;

use crate::faults::Fault;
use crate::profile::{Habits, PLAIN, Profile};

/// The machine without a description: one device, one active RoCE port of 100 Gbit/s.
pub(crate) const DEFAULT: &str = "[device sim0]\n[port 1]\n";

/// The longest message of the InfiniBand specification, in bytes.
const LONGEST_MESSAGE: u32 = 1 << 31;

/// The most objects of one kind that a device may say that it has. What is really there is bounded by memory, and for
/// regions by [`crate::regions::SLOTS`].
const MOST: u32 = 1 << 24;

/// A machine.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) devices: Vec<DeviceFacts>,
    pub(crate) faults: Vec<Fault>,
}

/// A device, and what it can.
#[derive(Clone, Debug)]
pub(crate) struct DeviceFacts {
    pub(crate) name: String,
    pub(crate) guid: u64,
    pub(crate) system_guid: u64,
    pub(crate) ibdev_path: String,
    pub(crate) transport: c_int,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) max_qp: u32,
    pub(crate) max_qp_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    pub(crate) max_cq: u32,
    pub(crate) max_cqe: u32,
    pub(crate) max_mr: u32,
    pub(crate) max_mr_size: u64,
    pub(crate) max_pd: u32,
    pub(crate) max_srq: u32,
    pub(crate) max_srq_wr: u32,
    pub(crate) max_rd_atomic: u32,
    pub(crate) ece: Option<sys::Ece>,
    pub(crate) dma_buf: bool,
    pub(crate) byte_counts: bool,
    pub(crate) habits: Habits,
    /// What a port is like of which nothing is said.
    pub(crate) new_port: PortFacts,
    pub(crate) copy_on_fork: bool,
    /// Where its Data Direct engine is, below /sys.
    pub(crate) data_direct: Option<String>,
    pub(crate) ports: Vec<PortFacts>,
}

/// A port.
#[derive(Clone, Debug)]
pub(crate) struct PortFacts {
    pub(crate) state: c_int,
    pub(crate) link_layer: u8,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    /// As the header counts them: 5 is 4096 bytes.
    pub(crate) mtu: c_int,
    pub(crate) max_mtu: c_int,
    /// How many times as wide as the narrowest link.
    pub(crate) width: u8,
    pub(crate) speed: u8,
    /// What ibv_query_port_speed says.
    pub(crate) port_speed: PortSpeed,
    pub(crate) max_message: u32,
    pub(crate) grh_required: bool,
    /// What the GID table has room for, at least.
    pub(crate) gid_places: usize,
    pub(crate) gid_form: GidForm,
    pub(crate) gids: Vec<Option<GidFacts>>,
    pub(crate) pkeys: Vec<u16>,
    /// The cable is cut: what is sent waits.
    pub(crate) cut: bool,
}

/// What ibv_query_port_speed says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortSpeed {
    /// Width times speed.
    Nominal,
    /// This, in units of 100 Mbit/s.
    Said(u64),
    /// Nothing: an older kernel.
    Unsaid,
}

/// Which GIDs a RoCE port has of which none are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GidForm {
    /// A link-local one of RoCE v1, then a routable one of v2.
    OneOfEach,
    /// A link-local and a routable one, each of v1, then of v2.
    BothVersions,
    /// A link-local and a routable one, of v2.
    SecondVersion,
}

/// One place of a GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GidFacts {
    pub(crate) gid: sys::Gid,
    pub(crate) kind: u32,
    pub(crate) interface: u32,
}

/// A description that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, `{text}`: {reason}")]
pub(crate) struct DescriptionError {
    line: usize,
    text: String,
    reason: String,
}

impl FromStr for Machine {
    type Err = DescriptionError;

    fn from_str(text: &str) -> Result<Self, DescriptionError> {
        Self::described(text, PLAIN)
    }
}

impl Machine {
    /// The machine of this description, with that profile for the devices that name none.
    pub(crate) fn described(text: &str, profile: &str) -> Result<Self, DescriptionError> {
        let mut machine = Self { devices: Vec::new(), faults: Vec::new() };
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                machine.read(line, profile).map_err(|reason| DescriptionError {
                    line: index + 1,
                    text: line.to_owned(),
                    reason,
                })?;
            }
        }
        for (index, device) in machine.devices.iter_mut().enumerate() {
            for (number, port) in device.ports.iter_mut().enumerate() {
                port.complete(device.guid, index, number);
            }
        }
        Ok(machine)
    }

    fn read(&mut self, line: &str, profile: &str) -> Result<(), String> {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.strip_suffix(']').ok_or("a section ends in ]")?;
            return match section.split_once(' ') {
                Some(("device", name)) => self.add_device(name.trim(), profile),
                Some(("port", number)) => self.add_port(number.trim()),
                _ => Err("a section is [device NAME] or [port NUMBER]".to_owned()),
            };
        }
        let (key, value) = line.split_once('=').ok_or("neither a section nor KEY = VALUE")?;
        let (key, value) = (key.trim(), value.trim());
        if key == "fail" {
            self.faults.push(Fault::parse(value)?);
            return Ok(());
        }
        if key == "slow" {
            self.faults.push(Fault::parse_slow(value)?);
            return Ok(());
        }
        let device =
            self.devices.last_mut().ok_or("before the first [device NAME] only fail = ... and slow = ... may stand")?;
        match device.ports.last_mut() {
            Some(port) => port.set(key, value),
            None => device.set(key, value),
        }
    }

    fn add_device(&mut self, name: &str, profile: &str) -> Result<(), String> {
        let fits =
            !name.is_empty() && name.len() < sys::SYSFS_NAME_MAX && name.bytes().all(|byte| byte.is_ascii_graphic());
        if !fits {
            return Err("a device's name is 1 to 63 printable characters without a space".to_owned());
        }
        if self.devices.iter().any(|device| device.name == name) {
            return Err(format!("a second device {name}"));
        }
        self.devices.push(DeviceFacts::new(name, self.devices.len(), profile)?);
        Ok(())
    }

    fn add_port(&mut self, number: &str) -> Result<(), String> {
        let device = self.devices.last_mut().ok_or("a port belongs to a device: [device NAME] comes first")?;
        let expected = device.ports.len() + 1;
        if expected > 254 || number.parse() != Ok(expected) {
            return Err(format!("the next port of {} is number {expected}; it has 254 at most", device.name));
        }
        device.ports.push(device.new_port.clone());
        Ok(())
    }
}

impl DeviceFacts {
    /// A device of this kind without ports. What the profile says replaces the numbers.
    fn new(name: &str, index: usize, profile: &str) -> Result<Self, String> {
        let guid = 0x0002_c903_0000_0000 + 0x100 * (index as u64 + 1);
        let mut device = Self {
            name: name.to_owned(),
            guid,
            system_guid: guid,
            ibdev_path: format!("/sys/class/infiniband/{name}"),
            transport: sys::TRANSPORT_IB,
            vendor_id: 0,
            vendor_part_id: 0,
            max_qp: 0,
            max_qp_wr: 0,
            max_sge: 0,
            max_inline: 0,
            max_cq: 0,
            max_cqe: 0,
            max_mr: 0,
            max_mr_size: 0,
            max_pd: 0,
            max_srq: 0,
            max_srq_wr: 0,
            max_rd_atomic: 0,
            ece: None,
            dma_buf: false,
            byte_counts: false,
            habits: Habits::default(),
            new_port: PortFacts::new(),
            copy_on_fork: true,
            data_direct: None,
            ports: Vec::new(),
        };
        Profile::named(profile)?.apply(&mut device)?;
        Ok(device)
    }

    /// Sets what this key says.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "profile" => Profile::named(value)?.apply(self)?,
            "guid" => {
                self.guid = number(value, 1, u64::MAX)?;
                self.system_guid = self.guid;
            }
            "system_guid" => self.system_guid = number(value, 1, u64::MAX)?,
            "ibdev_path" => {
                if value.len() >= sys::SYSFS_PATH_MAX {
                    return Err("a path has at most 255 characters".to_owned());
                }
                value.clone_into(&mut self.ibdev_path);
            }
            "transport" => {
                self.transport = one_of(value, &[("ib", sys::TRANSPORT_IB), ("iwarp", 1), ("unspecified", 5)])?;
            }
            "vendor_id" => self.vendor_id = number(value, 0, 0xff_ffff)?,
            "vendor_part_id" => self.vendor_part_id = number(value, 0, u32::MAX)?,
            "max_qp" => self.max_qp = number(value, 0, MOST)?,
            "max_qp_wr" => self.max_qp_wr = number(value, 1, 1 << 20)?,
            "max_sge" => self.max_sge = number(value, 1, crate::wire::MAX_SGES as u32)?,
            "max_inline" => self.max_inline = number(value, 0, 4096)?,
            "max_cq" => self.max_cq = number(value, 0, MOST)?,
            "max_cqe" => self.max_cqe = number(value, 1, 1 << 24)?,
            "max_mr" => self.max_mr = number(value, 0, MOST)?,
            "max_mr_size" => self.max_mr_size = number(value, 1, u64::MAX)?,
            "max_pd" => self.max_pd = number(value, 0, MOST)?,
            "max_srq" => self.max_srq = number(value, 0, MOST)?,
            "max_srq_wr" => self.max_srq_wr = number(value, 1, 1 << 20)?,
            "max_rd_atomic" => self.max_rd_atomic = number(value, 0, 255)?,
            "ece" => self.ece = ece(value)?,
            "dma_buf" => self.dma_buf = flag(value)?,
            "byte_counts" => self.byte_counts = flag(value)?,
            "copy_on_fork" => self.copy_on_fork = flag(value)?,
            "data_direct" => self.data_direct = Some(value).filter(|path| *path != "none").map(str::to_owned),
            _ => return Err(format!("a device has no {key}")),
        }
        Ok(())
    }
}

impl PortFacts {
    /// An active RoCE port. What a profile says replaces the numbers.
    pub(crate) fn new() -> Self {
        Self {
            state: sys::PORT_ACTIVE,
            link_layer: sys::LINK_LAYER_ETHERNET,
            lid: 0,
            sm_lid: 0,
            mtu: 5,
            max_mtu: 5,
            width: 4,
            speed: 32,
            port_speed: PortSpeed::Nominal,
            max_message: 1 << 30,
            grh_required: false,
            gid_places: 0,
            gid_form: GidForm::OneOfEach,
            gids: Vec::new(),
            pkeys: vec![0xffff],
            cut: false,
        }
    }

    /// Sets what this key says.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "state" => {
                self.state = one_of(
                    value,
                    &[
                        ("down", sys::PORT_DOWN),
                        ("init", sys::PORT_INIT),
                        ("armed", sys::PORT_ARMED),
                        ("active", sys::PORT_ACTIVE),
                    ],
                )?;
            }
            "link_layer" => {
                self.link_layer = one_of(
                    value,
                    &[
                        ("ethernet", sys::LINK_LAYER_ETHERNET),
                        ("infiniband", sys::LINK_LAYER_INFINIBAND),
                        ("unspecified", sys::LINK_LAYER_UNSPECIFIED),
                    ],
                )?;
            }
            "lid" => self.lid = number(value, 0, 0xbfff)?,
            "sm_lid" => self.sm_lid = number(value, 0, 0xbfff)?,
            "mtu" => self.mtu = mtu(value)?,
            "max_mtu" => self.max_mtu = mtu(value)?,
            "width" => self.width = one_of(value, &[("1", 1), ("2", 2), ("4", 4), ("8", 8), ("12", 12)])?,
            "speed" => {
                self.speed = one_of(
                    value,
                    &[
                        ("sdr", 1),
                        ("ddr", 2),
                        ("qdr", 4),
                        ("fdr10", 8),
                        ("fdr", 16),
                        ("edr", 32),
                        ("hdr", 64),
                        ("ndr", 128),
                    ],
                )?;
            }
            "port_speed" => {
                self.port_speed = match value {
                    "none" => PortSpeed::Unsaid,
                    value => PortSpeed::Said(number(value, 1, u64::from(u32::MAX))?),
                };
            }
            "max_message" => self.max_message = number(value, 0, LONGEST_MESSAGE)?,
            "grh_required" => self.grh_required = flag(value)?,
            "gid" => self.add_gid(value)?,
            "gid_places" => self.gid_places = number::<u16>(value, 0, 4096)?.into(),
            "gid_form" => {
                self.gid_form = one_of(
                    value,
                    &[
                        ("one-of-each", GidForm::OneOfEach),
                        ("roce1-and-roce2", GidForm::BothVersions),
                        ("roce2", GidForm::SecondVersion),
                    ],
                )?;
            }
            "pkeys" => {
                self.pkeys = value.split_whitespace().map(|key| number(key, 0, u16::MAX)).collect::<Result<_, _>>()?;
            }
            _ => return Err(format!("a port has no {key}")),
        }
        Ok(())
    }

    /// In units of 100 Mbit/s; none: nobody says.
    pub(crate) fn stated_speed(&self) -> Option<u64> {
        let single = match self.speed {
            1 => 25,
            2 => 50,
            4 => 100,
            8 => 103,
            16 => 140,
            32 => 250,
            64 => 500,
            _ => 1000,
        };
        match self.port_speed {
            PortSpeed::Nominal => Some(single * u64::from(self.width)),
            PortSpeed::Said(speed) => Some(speed),
            PortSpeed::Unsaid => None,
        }
    }

    fn add_gid(&mut self, value: &str) -> Result<(), String> {
        let form = "a GID is INDEX ADDRESS TYPE INTERFACE, such as 1 10.0.0.1 roce2 2";
        let parts: Vec<&str> = value.split_whitespace().collect();
        let [index, address, kind, interface] = parts[..] else { return Err(form.to_owned()) };
        let index = usize::from(number::<u16>(index, 0, 4095)?);
        let kinds = [("ib", sys::GID_TYPE_IB), ("roce1", sys::GID_TYPE_ROCE_V1), ("roce2", sys::GID_TYPE_ROCE_V2)];
        let facts =
            GidFacts { gid: gid(address)?, kind: one_of(kind, &kinds)?, interface: number(interface, 0, u32::MAX)? };
        if self.gids.len() <= index {
            self.gids.resize(index + 1, None);
        }
        self.gids[index] = Some(facts);
        Ok(())
    }

    /// Gives a port without GIDs those that its link layer brings, and an InfiniBand port a LID.
    fn complete(&mut self, guid: u64, device: usize, index: usize) {
        let infiniband = self.link_layer == sys::LINK_LAYER_INFINIBAND;
        if infiniband && self.lid == 0 {
            self.lid = (16 * (device + 1) + index) as u16;
        }
        if self.gids.is_empty() {
            let local = u128::from(0xfe80_u16) << 112 | u128::from(guid.wrapping_add(index as u64));
            let gid = sys::Gid(local.to_be_bytes());
            if infiniband {
                self.gids.push(Some(GidFacts { gid, kind: sys::GID_TYPE_IB, interface: 0 }));
            } else {
                let address = Ipv4Addr::new(10, device as u8, index as u8, 1);
                let routable = sys::Gid(address.to_ipv6_mapped().octets());
                let (first, second) = (sys::GID_TYPE_ROCE_V1, sys::GID_TYPE_ROCE_V2);
                let table: &[(sys::Gid, u32)] = match self.gid_form {
                    GidForm::OneOfEach => &[(gid, first), (routable, second)],
                    GidForm::BothVersions => &[(gid, first), (gid, second), (routable, first), (routable, second)],
                    GidForm::SecondVersion => &[(gid, second), (routable, second)],
                };
                self.gids = table.iter().map(|&(gid, kind)| Some(GidFacts { gid, kind, interface: 1 })).collect();
            }
        }
        if self.gids.len() < self.gid_places {
            self.gids.resize(self.gid_places, None);
        }
    }

    /// The longest message that it carries, in bytes.
    pub(crate) fn longest_message(&self) -> u64 {
        // A port that does not say it (0) still has one: that of the specification.
        u64::from(if self.max_message == 0 { LONGEST_MESSAGE } else { self.max_message })
    }
}

fn gid(text: &str) -> Result<sys::Gid, String> {
    let address = match text.parse::<Ipv4Addr>() {
        Ok(address) => address.to_ipv6_mapped(),
        Err(_) => text.parse::<Ipv6Addr>().map_err(|_| "an address is IPv4 (10.0.0.1) or IPv6 (fe80::1)")?,
    };
    Ok(sys::Gid(address.octets()))
}

fn mtu(text: &str) -> Result<c_int, String> {
    one_of(text, &[("256", 1), ("512", 2), ("1024", 3), ("2048", 4), ("4096", 5)])
}

fn ece(text: &str) -> Result<Option<sys::Ece>, String> {
    if text == "none" {
        return Ok(None);
    }
    let (vendor, options) = text.split_once(' ').ok_or("ece is VENDOR OPTIONS, such as 0x15b3 0x30000002, or none")?;
    let vendor_id = number(vendor, 1, u32::MAX)?;
    Ok(Some(sys::Ece { vendor_id, options: number(options.trim(), 0, u32::MAX)?, comp_mask: 0 }))
}

fn flag(text: &str) -> Result<bool, String> {
    one_of(text, &[("yes", true), ("no", false)])
}

fn one_of<T: Copy>(text: &str, table: &[(&str, T)]) -> Result<T, String> {
    table.iter().find(|(name, _)| *name == text).map(|&(_, value)| value).ok_or_else(|| {
        let names: Vec<&str> = table.iter().map(|&(name, _)| name).collect();
        format!("{text} is none of {}", names.join(", "))
    })
}

fn number<T: TryFrom<u64> + Into<u64> + Copy + fmt::Display>(text: &str, from: u64, to: T) -> Result<T, String> {
    let value = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    value
        .filter(|value| (from..=to.into()).contains(value))
        .and_then(|value| T::try_from(value).ok())
        .ok_or_else(|| format!("{text} is no number from {from} to {to}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Machine {
        text.parse().expect("the description is well-formed")
    }

    #[test]
    fn without_a_word_there_is_one_roce_port() {
        let machine = read(DEFAULT);
        assert_eq!(machine.devices.len(), 1);
        let device = &machine.devices[0];
        assert_eq!((device.name.as_str(), device.ports.len()), ("sim0", 1));
        let port = &device.ports[0];
        let second = port.gids[1].expect("a routable GID");
        assert_eq!((port.state, port.link_layer), (sys::PORT_ACTIVE, sys::LINK_LAYER_ETHERNET));
        assert_eq!(port.stated_speed(), Some(1000), "100 Gbit/s");
        assert_eq!((second.kind, second.gid.0[10..].to_vec()), (sys::GID_TYPE_ROCE_V2, vec![0xff, 0xff, 10, 0, 0, 1]));
        assert_eq!((port.gids.len(), port.gids[2]), (16, None));
    }

    #[test]
    fn every_key_is_read() {
        let machine = read(
            "fail = create_qp:2:ENOMEM # the second\n\
             [device mlx5_0]\nguid = 0x1234\nsystem_guid = 0x99\nibdev_path = /elsewhere\ntransport = iwarp\nvendor_id = 0x15b3\n\
             vendor_part_id = 1\nmax_qp = 3\nmax_qp_wr = 64\nmax_sge = 2\nmax_inline = 0\nmax_cq = 4\nmax_cqe = 100\n\
             max_mr = 5\nmax_mr_size = 4096\nmax_pd = 6\nmax_srq = 0\nmax_srq_wr = 7\nmax_rd_atomic = 1\n\
             ece = 0x15b3 0x30000002\ndma_buf = no\nbyte_counts = no\ncopy_on_fork = no\ndata_direct = /devices/x\n\
             [port 1]\nstate = down\nlink_layer = infiniband\nlid = 9\nsm_lid = 1\nmtu = 1024\nmax_mtu = 2048\nwidth = 2\n\
             speed = ndr\nport_speed = 2000\nmax_message = 0x100000\ngrh_required = yes\npkeys = 0xffff 0x8001\n\
             gid = 0 fe80::1 ib 0\ngid = 20 10.1.2.3 roce2 4\n\
             [port 2]\nlink_layer = infiniband\n[device b]\n",
        );
        assert_eq!(machine.faults.len(), 1);
        let device = &machine.devices[0];
        assert_eq!((device.guid, device.system_guid, device.transport), (0x1234, 0x99, 1));
        assert_eq!((device.max_qp, device.max_qp_wr, device.max_sge, device.max_inline), (3, 64, 2, 0));
        assert_eq!((device.max_cq, device.max_cqe, device.max_mr, device.max_mr_size), (4, 100, 5, 4096));
        assert_eq!((device.max_pd, device.max_srq, device.max_srq_wr, device.max_rd_atomic), (6, 0, 7, 1));
        assert_eq!(device.ece, Some(sys::Ece { vendor_id: 0x15b3, options: 0x3000_0002, comp_mask: 0 }));
        assert!(!device.dma_buf && !device.byte_counts && !device.copy_on_fork);
        assert_eq!(device.data_direct.as_deref(), Some("/devices/x"));
        assert_eq!((device.ibdev_path.as_str(), device.vendor_id, device.vendor_part_id), ("/elsewhere", 0x15b3, 1));
        let port = &device.ports[0];
        assert_eq!((port.state, port.link_layer, port.lid, port.sm_lid), (1, 1, 9, 1));
        assert_eq!((port.mtu, port.max_mtu, port.width, port.speed), (3, 4, 2, 128));
        assert_eq!((port.port_speed, port.max_message, port.grh_required), (PortSpeed::Said(2000), 0x10_0000, true));
        assert_eq!((port.pkeys.clone(), port.gids.len()), (vec![0xffff, 0x8001], 21));
        assert_eq!((device.ports[1].lid, device.ports[1].gids[0].map(|gid| gid.kind)), (17, Some(sys::GID_TYPE_IB)));
        assert_eq!(machine.devices[1].ports.len(), 0);
    }

    #[test]
    fn what_cannot_be_read_is_named_with_what_may_stand_there() {
        for (text, line, part) in [
            ("max_qp = 1", 1, "[device NAME]"),
            ("[device a]\n[device a]", 2, "second"),
            ("[device a]\n\n[port 2]", 3, "number 1"),
            ("[port 1]", 1, "comes first"),
            ("[plug 1]", 1, "[port NUMBER]"),
            ("[device a", 1, "ends in ]"),
            ("[device a b]", 1, "without a space"),
            ("[device a]\nspeed = ndr", 2, "no speed"),
            ("[device a]\n[port 1]\nguid = 1", 3, "no guid"),
            ("[device a]\n[port 1]\nstate = up", 3, "down, init, armed, active"),
            ("[device a]\n[port 1]\ngid = 1 10.0.0.1", 3, "INDEX ADDRESS TYPE INTERFACE"),
            ("[device a]\n[port 1]\ngid = 1 10.0.0.300 roce2 1", 3, "IPv4"),
            ("[device a]\n[port 1]\nlid = 70000", 3, "from 0 to 49151"),
            ("[device a]\n[port 1]\nmtu = 1500", 3, "1024"),
            ("[device a]\ndma_buf = maybe", 2, "yes, no"),
            ("[device a]\nprofile = abacus", 2, "no profile abacus; one of plain, connectx-5"),
            ("[device a]\nece = 5", 2, "VENDOR OPTIONS"),
            ("[device a]\nhello", 2, "KEY = VALUE"),
            ("fail = nothing", 1, "FUNCTION:NUMBER:ERROR"),
        ] {
            let error = text.parse::<Machine>().expect_err(text);
            assert_eq!(error.line, line, "{text}");
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
    }
}
