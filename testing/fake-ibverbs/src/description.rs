//! The machine that the library imitates, read from TOML. The crate's documentation describes the format.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::net::Ipv4Addr;

use railweave_fabric_verbs::sys;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use toml::{Table, Value};

use crate::faults::Fault;
use crate::gids::{self, GidFacts};
use crate::profile::{Habits, Profile};
use crate::values::{list, number, value, within, word};

/// The default machine: one device with one active RoCE port of 100 Gbit/s.
pub(crate) const DEFAULT: &str = "[[device]]\nname = 'sim0'\n[[device.port]]\n";

/// The longest message that the InfiniBand specification allows, in bytes.
const LONGEST_MESSAGE: u32 = 1 << 31;

/// The maximum number of objects of one kind that a device may report. Memory bounds those that really exist, and
/// [`crate::regions::SLOTS`] the regions.
const MOST: u64 = 1 << 24;

/// The maximum number of ports. `phys_port_cnt` of `struct ibv_device_attr` has 8 bits (verbs.h).
const MOST_PORTS: usize = 254;

/// A machine. `Device` is [`Table`] while profiles still have to be merged.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, bound = "Device: Deserialize<'de>")]
pub(crate) struct Machine<Device = DeviceFacts> {
    #[serde(default, deserialize_with = "faults")]
    pub(crate) faults: Vec<Fault>,
    #[serde(default = "Vec::new", rename = "device", deserialize_with = "devices")]
    pub(crate) devices: Vec<Device>,
}

/// The facts about a device. Most of them come from its profile.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a device, headed [[device]]")]
pub(crate) struct DeviceFacts {
    #[serde(deserialize_with = "name")]
    pub(crate) name: String,
    #[serde(deserialize_with = "profile")]
    profile: Option<&'static Profile>,
    /// 0 until [`Self::complete`] if none is given.
    #[serde(deserialize_with = "guid")]
    pub(crate) guid: u64,
    /// `None` until [`Self::complete`] if none is given; some drivers report 0.
    #[serde(deserialize_with = "system_guid")]
    pub(crate) system_guid: Option<u64>,
    #[serde(deserialize_with = "transport")]
    pub(crate) transport: c_int,
    /// The vendor's IEEE number, which has 24 bits (ibv_query_device(3)).
    #[serde(deserialize_with = "within::<_, _, 0, 0xff_ffff>")]
    pub(crate) vendor_id: u32,
    #[serde(deserialize_with = "within::<_, _, 0, 0xffff_ffff>")]
    pub(crate) vendor_part_id: u32,
    #[serde(deserialize_with = "within::<_, _, 0, MOST>")]
    pub(crate) max_qp: u32,
    #[serde(deserialize_with = "within::<_, _, 1, 0x10_0000>")]
    pub(crate) max_qp_wr: u32,
    #[serde(deserialize_with = "within::<_, _, 1, { crate::wire::MAX_SGES as u64 }>")]
    pub(crate) max_sge: u32,
    #[serde(deserialize_with = "within::<_, _, 0, 4096>")]
    pub(crate) max_inline: u32,
    #[serde(deserialize_with = "within::<_, _, 0, MOST>")]
    pub(crate) max_cq: u32,
    #[serde(deserialize_with = "within::<_, _, 1, 0x100_0000>")]
    pub(crate) max_cqe: u32,
    #[serde(deserialize_with = "within::<_, _, 0, MOST>")]
    pub(crate) max_mr: u32,
    #[serde(deserialize_with = "within::<_, _, 0, MOST>")]
    pub(crate) max_pd: u32,
    #[serde(deserialize_with = "within::<_, _, 0, MOST>")]
    pub(crate) max_srq: u32,
    #[serde(deserialize_with = "within::<_, _, 1, 0x10_0000>")]
    pub(crate) max_srq_wr: u32,
    #[serde(deserialize_with = "within::<_, _, 0, 255>")]
    pub(crate) max_rd_atomic: u32,
    #[serde(deserialize_with = "ece")]
    ece: [u32; 2],
    pub(crate) dma_buf: bool,
    pub(crate) byte_counts: bool,
    /// True if forked children lack the pages that were registered after ibv_fork_init.
    pub(crate) withholds_pages: bool,
    /// The path of its Data Direct engine, below /sys.
    pub(crate) data_direct: Option<String>,
    #[serde(rename = "port", deserialize_with = "ports")]
    pub(crate) ports: Vec<PortFacts>,
    #[serde(skip)]
    pub(crate) habits: Habits,
}

/// The facts about a port.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a port, headed [[device.port]]")]
pub(crate) struct PortFacts {
    #[serde(deserialize_with = "state")]
    pub(crate) state: c_int,
    #[serde(deserialize_with = "link_layer")]
    pub(crate) link_layer: u8,
    #[serde(deserialize_with = "within::<_, _, 0, 0xbfff>")]
    pub(crate) lid: u16,
    /// The code of `enum ibv_mtu` (verbs.h): 5 is 4096 bytes.
    #[serde(deserialize_with = "mtu")]
    pub(crate) mtu: c_int,
    #[serde(deserialize_with = "mtu")]
    pub(crate) max_mtu: c_int,
    /// The width of the link: 1, 2 or 4.
    #[serde(deserialize_with = "width")]
    pub(crate) width: u8,
    #[serde(deserialize_with = "speed")]
    pub(crate) speed: Speed,
    /// The result of ibv_query_port_speed, in units of 100 Mbit/s; `None` for width times speed, 0 for EOPNOTSUPP, as
    /// with older kernels.
    #[serde(deserialize_with = "port_speed")]
    port_speed: Option<u64>,
    #[serde(deserialize_with = "within::<_, _, 0, { LONGEST_MESSAGE as u64 }>")]
    pub(crate) max_message: u32,
    pub(crate) grh_required: bool,
    /// The minimum size of the GID table.
    #[serde(deserialize_with = "within::<_, _, 0, 4096>")]
    gid_places: u16,
    #[serde(deserialize_with = "gid_form")]
    gid_form: GidForm,
    #[serde(rename = "gid", deserialize_with = "gids::table")]
    pub(crate) gids: Vec<Option<GidFacts>>,
    #[serde(deserialize_with = "pkeys")]
    pub(crate) pkeys: Vec<u16>,
    /// True while the cable is cut: work waits.
    #[serde(skip)]
    pub(crate) cut: bool,
}

/// The speed of a link of width 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Speed {
    /// The code in `active_speed` of `struct ibv_port_attr`.
    pub(crate) code: u8,
    /// In units of 100 Mbit/s.
    single: u64,
}

/// The GIDs of a RoCE port whose description names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GidForm {
    /// A link-local GID of RoCE v1, then a routable one of v2.
    OneOfEach,
    /// A link-local GID of v1 and of v2, then a routable one of v1 and of v2.
    BothVersions,
    /// A link-local and a routable GID, both of v2.
    SecondVersion,
}

impl Machine {
    /// Reads a description; `profile` is for the devices that name none.
    pub(crate) fn described(text: &str, profile: &str) -> Result<Self, String> {
        let usual = Profile::named(profile)?;
        // The text is read twice: first by itself, because only then does an error know its line, and then on top of
        // the profiles.
        let checked: Self = read(text)?;
        let tables: Machine<Table> = read(text)?;
        let mut names = BTreeSet::new();
        let mut devices = Vec::new();
        for (index, (checked, own)) in checked.devices.into_iter().zip(tables.devices).enumerate() {
            let device = DeviceFacts::on_top(checked.profile.unwrap_or(usual), own)?.complete(index);
            if !names.insert(device.name.clone()) || device.name.is_empty() {
                return Err(format!("device {} has the name `{}`; each needs its own name", index + 1, device.name));
            }
            if device.ports.len() > MOST_PORTS {
                let (name, count) = (device.name, device.ports.len());
                return Err(format!("device {name} has {count} ports; {MOST_PORTS} are the most"));
            }
            devices.push(device);
        }
        Ok(Self { faults: checked.faults, devices })
    }
}

/// Parses a description; the error is a sentence that names the line and the place in it.
fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or_default();
        let number = text.get(..span.start).unwrap_or(text).matches('\n').count();
        let line = text.lines().nth(number).unwrap_or_default().trim();
        let place = text.get(span).and_then(|place| place.lines().next()).unwrap_or_default().trim();
        let place = if [line, ""].contains(&place) { String::new() } else { format!(", at `{place}`") };
        format!("line {}, `{line}`{place}: {}", number + 1, error.message().replace('\n', ", "))
    })
}

impl DeviceFacts {
    /// Makes a device of this profile; the keys of `own` override those of the profile.
    pub(crate) fn on_top(profile: &Profile, own: Table) -> Result<Self, String> {
        let mut table = profile.device.clone();
        table.extend(own);
        if let Some(Value::Array(ports)) = table.get_mut("port") {
            for port in ports.iter_mut().filter_map(Value::as_table_mut) {
                let own = std::mem::replace(port, profile.port.clone());
                port.extend(own);
            }
        }
        let device: Self = table.try_into().map_err(|error: toml::de::Error| error.message().to_owned())?;
        Ok(Self { habits: profile.habits.clone(), ..device })
    }

    /// Adds the defaults of the GUIDs and of the ports.
    fn complete(mut self, index: usize) -> Self {
        if self.guid == 0 {
            self.guid = 0x0002_c903_0000_0000 + 0x100 * (index as u64 + 1);
        }
        self.system_guid.get_or_insert(self.guid);
        for (number, port) in self.ports.iter_mut().enumerate() {
            port.complete(self.guid, index, number);
        }
        self
    }

    /// Returns the ECE options that it offers; `None` if ECE is not supported.
    pub(crate) fn ece(&self) -> Option<sys::Ece> {
        let [vendor_id, options] = self.ece;
        (vendor_id != 0).then_some(sys::Ece { vendor_id, options, comp_mask: 0 })
    }
}

impl Default for PortFacts {
    /// Returns an active RoCE port. Profiles override most of the numbers.
    fn default() -> Self {
        Self {
            state: sys::PORT_ACTIVE,
            link_layer: sys::LINK_LAYER_ETHERNET,
            lid: 0,
            mtu: 5,
            max_mtu: 5,
            width: 4,
            speed: Speed { code: 32, single: 250 },
            port_speed: None,
            max_message: 1 << 30,
            grh_required: false,
            gid_places: 0,
            gid_form: GidForm::OneOfEach,
            gids: Vec::new(),
            pkeys: vec![0xffff],
            cut: false,
        }
    }
}

impl PortFacts {
    /// Returns the speed, in units of 100 Mbit/s; `None` if ibv_query_port_speed is not supported.
    pub(crate) fn stated_speed(&self) -> Option<u64> {
        Some(self.port_speed.unwrap_or(self.speed.single * u64::from(self.width))).filter(|speed| *speed > 0)
    }

    /// Returns the length of the longest message that it carries, in bytes.
    pub(crate) fn longest_message(&self) -> u64 {
        // A port that reports no limit (0) has the specification's.
        u64::from(if self.max_message == 0 { LONGEST_MESSAGE } else { self.max_message })
    }

    /// Adds the default GIDs of the link layer, and the default LID of an InfiniBand port.
    fn complete(&mut self, guid: u64, device: usize, index: usize) {
        let infiniband = self.link_layer == sys::LINK_LAYER_INFINIBAND;
        if infiniband && self.lid == 0 {
            self.lid = (16 * (device + 1) + index) as u16;
        }
        if self.gids.is_empty() {
            let local = u128::from(0xfe80_u16) << 112 | u128::from(guid.wrapping_add(index as u64));
            let gid = sys::Gid(local.to_be_bytes());
            let address = Ipv4Addr::new(10, device as u8, index as u8, 1);
            let routable = sys::Gid(address.to_ipv6_mapped().octets());
            let (first, second) = (sys::GID_TYPE_ROCE_V1, sys::GID_TYPE_ROCE_V2);
            let table: &[(sys::Gid, u32)] = match self.gid_form {
                _ if infiniband => &[(gid, sys::GID_TYPE_IB)],
                GidForm::OneOfEach => &[(gid, first), (routable, second)],
                GidForm::BothVersions => &[(gid, first), (gid, second), (routable, first), (routable, second)],
                GidForm::SecondVersion => &[(gid, second), (routable, second)],
            };
            let interface = u32::from(!infiniband);
            self.gids = table.iter().map(|&(gid, kind)| Some(GidFacts { gid, kind, interface })).collect();
        }
        if self.gids.len() < self.gid_places.into() {
            self.gids.resize(self.gid_places.into(), None);
        }
    }
}

fn faults<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Fault>, D::Error> {
    list(deserializer, "a list of strings, such as ['create_qp:2:ENOMEM']")
}

fn devices<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    list(deserializer, "a list of devices, each headed [[device]] in two pairs of brackets")
}

fn ports<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PortFacts>, D::Error> {
    list(deserializer, "a list of ports, each headed [[device.port]] in two pairs of brackets")
}

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    value(deserializer, "a name of 1 to 63 printable characters without a space", |value| {
        let name = value.as_str().filter(|name| (1..sys::SYSFS_NAME_MAX).contains(&name.len()))?;
        name.bytes().all(|byte| byte.is_ascii_graphic()).then(|| name.to_owned())
    })
}

fn profile<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'static Profile>, D::Error> {
    let name: String = value(deserializer, "the name of a profile", |value| value.as_str().map(str::to_owned))?;
    Profile::named(&name).map(Some).map_err(D::Error::custom)
}

fn guid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    guid_from(deserializer, 1)
}

fn system_guid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    guid_from(deserializer, 0).map(Some)
}

/// Reads a GUID of at least `least`. TOML's integers end at 2^63, and the GUIDs of many adapters lie above.
fn guid_from<'de, D: Deserializer<'de>>(deserializer: D, least: u64) -> Result<u64, D::Error> {
    let most = i64::MAX as u64;
    let allowed =
        format!("a number from {least} to {most:#x}, or a larger one as a string, such as '0xb8599f0300a1b2c4'");
    value(deserializer, allowed, |value| match value.as_str() {
        Some(text) => u64::from_str_radix(text.strip_prefix("0x")?, 16).ok().filter(|guid| *guid >= least),
        None => number(value, least, most),
    })
}

fn transport<'de, D: Deserializer<'de>>(deserializer: D) -> Result<c_int, D::Error> {
    word(deserializer, &[("ib", sys::TRANSPORT_IB), ("iwarp", 1)])
}

fn ece<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u32; 2], D::Error> {
    let allowed = "vendor and options, two numbers up to 4294967295 such as [0x15b3, 0x30000002], or [0, 0] for none";
    value(deserializer, allowed, |value| {
        let [vendor, options] = &value.as_array()?[..] else { return None };
        let most = u32::MAX.into();
        let ece = [number(vendor, 0, most)?, number(options, 0, most)?];
        Some(ece).filter(|[vendor, options]| *vendor > 0 || *options == 0)
    })
}

fn state<'de, D: Deserializer<'de>>(deserializer: D) -> Result<c_int, D::Error> {
    let states = [("down", sys::PORT_DOWN), ("init", sys::PORT_INIT), ("armed", sys::PORT_ARMED)];
    word(deserializer, &[&states[..], &[("active", sys::PORT_ACTIVE)]].concat())
}

fn link_layer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    let (ethernet, infiniband) = (sys::LINK_LAYER_ETHERNET, sys::LINK_LAYER_INFINIBAND);
    let layers = [("ethernet", ethernet), ("infiniband", infiniband), ("unspecified", sys::LINK_LAYER_UNSPECIFIED)];
    word(deserializer, &layers)
}

fn speed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Speed, D::Error> {
    let speeds = [("sdr", 1, 25), ("edr", 32, 250), ("hdr", 64, 500), ("ndr", 128, 1000)];
    word(deserializer, &speeds.map(|(name, code, single)| (name, Speed { code, single })))
}

fn port_speed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    within::<_, _, 0, 0xffff_ffff>(deserializer).map(Some)
}

fn mtu<'de, D: Deserializer<'de>>(deserializer: D) -> Result<c_int, D::Error> {
    value(deserializer, "one of 256, 512, 1024, 2048, 4096", |value| {
        let bytes: u32 = number(value, 256, 4096)?;
        (1..=5).find(|code| 128 << code == bytes)
    })
}

fn width<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    value(deserializer, "one of 1, 2, 4", |value| number(value, 1, 4).filter(|width| *width != 3))
}

fn pkeys<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u16>, D::Error> {
    value(deserializer, "a list of at most 65535 numbers from 0 to 65535, such as [0xffff]", |value| {
        let keys = value.as_array().filter(|keys| keys.len() <= u16::MAX.into())?;
        keys.iter().map(|key| number(key, 0, u16::MAX.into())).collect()
    })
}

fn gid_form<'de, D: Deserializer<'de>>(deserializer: D) -> Result<GidForm, D::Error> {
    let (one, both, second) = (GidForm::OneOfEach, GidForm::BothVersions, GidForm::SecondVersion);
    word(deserializer, &[("one-of-each", one), ("roce1-and-roce2", both), ("roce2", second)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{PLAIN, TEXTS};

    fn machine(text: &str) -> Machine {
        Machine::described(text, PLAIN).expect("the description is well-formed")
    }

    #[test]
    fn the_default_machine_has_one_roce_port() {
        let machine = machine(DEFAULT);
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
        let machine = machine(
            "faults = ['create_qp:2:ENOMEM'] # the second\n\
             [[device]]\nname = 'mlx5_0'\nguid = 0x1234\nsystem_guid = 0x99\ntransport = 'iwarp'\nvendor_id = 0x15b3\n\
             vendor_part_id = 1\nmax_qp = 3\nmax_qp_wr = 64\nmax_sge = 2\nmax_inline = 0\nmax_cq = 4\nmax_cqe = 100\n\
             max_mr = 5\nmax_pd = 6\nmax_srq = 0\nmax_srq_wr = 7\nmax_rd_atomic = 1\nece = [0x15b3, 0x30000002]\n\
             dma_buf = false\nbyte_counts = false\nwithholds_pages = true\ndata_direct = '/devices/x'\n\
             [[device.port]]\nstate = 'down'\nlink_layer = 'infiniband'\n\
             lid = 9\nmtu = 1024\nmax_mtu = 2048\nwidth = 2\n\
             speed = 'ndr'\nport_speed = 2000\nmax_message = 0x100000\ngrh_required = true\npkeys = [0xffff, 0x8001]\n\
             gid.0 = ['fe80::1', 'ib', 0]\ngid.20 = ['10.1.2.3', 'roce2', 4]\n\
             [[device.port]]\nlink_layer = 'infiniband'\n[[device]]\nname = 'b'\n",
        );
        assert_eq!(machine.faults.len(), 1);
        let device = &machine.devices[0];
        assert_eq!((device.guid, device.system_guid, device.transport), (0x1234, Some(0x99), 1));
        assert_eq!((device.max_qp, device.max_qp_wr, device.max_sge, device.max_inline), (3, 64, 2, 0));
        assert_eq!((device.max_cq, device.max_cqe, device.max_mr), (4, 100, 5));
        assert_eq!((device.max_pd, device.max_srq, device.max_srq_wr, device.max_rd_atomic), (6, 0, 7, 1));
        assert_eq!(device.ece(), Some(sys::Ece { vendor_id: 0x15b3, options: 0x3000_0002, comp_mask: 0 }));
        assert!(!device.dma_buf && !device.byte_counts && device.withholds_pages);
        assert_eq!(device.data_direct.as_deref(), Some("/devices/x"));
        assert_eq!((device.vendor_id, device.vendor_part_id), (0x15b3, 1));
        let port = &device.ports[0];
        assert_eq!((port.state, port.link_layer, port.lid), (1, 1, 9));
        assert_eq!((port.mtu, port.max_mtu, port.width, port.speed.code), (3, 4, 2, 128));
        assert_eq!((port.stated_speed(), port.max_message, port.grh_required), (Some(2000), 0x10_0000, true));
        assert_eq!((port.pkeys.clone(), port.gids.len()), (vec![0xffff, 0x8001], 21));
        assert_eq!((device.ports[1].lid, device.ports[1].gids[0].map(|gid| gid.kind)), (17, Some(sys::GID_TYPE_IB)));
        assert_eq!(machine.devices[1].ports.len(), 0);
    }

    #[test]
    fn a_guid_of_64_bits_is_a_string() {
        let machine = machine("[[device]]\nname = 'a'\nguid = '0xb8599f0300a1b2c4'\nsystem_guid = '0x99'\n");
        assert_eq!((machine.devices[0].guid, machine.devices[0].system_guid), (0xb859_9f03_00a1_b2c4, Some(0x99)));
        let machine =
            self::machine("[[device]]\nname = 'a'\nguid = 7\nsystem_guid = 0\n[[device]]\nname = 'b'\nguid = 7\n");
        assert_eq!([0, 1].map(|index| machine.devices[index].system_guid), [Some(0), Some(7)]);
    }

    #[test]
    fn a_device_has_at_most_254_ports() {
        let device = |ports| format!("[[device]]\nname = 'a'\n{}", "[[device.port]]\n".repeat(ports));
        assert_eq!(machine(&device(254)).devices[0].ports.len(), 254);
        for ports in [255, 256] {
            let error = Machine::described(&device(ports), PLAIN).expect_err("too many");
            assert_eq!(error, format!("device a has {ports} ports; 254 are the most"));
        }
    }

    #[test]
    fn the_example_in_the_documentation_is_read() {
        let page = include_str!("lib.rs").split("//! ```").nth(1).expect("an example").trim_start_matches("toml");
        let machine = machine(&page.replace("\n//!", "\n"));
        assert_eq!((machine.faults.len(), machine.devices[0].ports[0].gids.len()), (4, 16));
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_line_and_what_may_stand_there() {
        let check = |text: &str, line: &str, part: &str| {
            let error = Machine::described(text, PLAIN).expect_err(text);
            assert!(error.starts_with(line) && error.contains(part), "{text}: {error}");
            let words = ["expected i", "expected u", "struct", "sequence", "a map", "too large", "overflow"];
            assert!(!words.iter().any(|word| error.contains(word)), "{text}: {error}");
        };
        let device = "[[device]]\nname = 'a'\n";
        for (text, line, part) in [
            ("max_qp = 1", "line 1, `max_qp = 1`", "`faults` or `device`"),
            ("[plug]", "line 1, `[plug]`", "unknown field `plug`"),
            ("[[device]]\nname = 'a b'", "line 2, `name = 'a b'`", "without a space"),
            ("[device]\nname = 'a'", "line 1, `[device]`", "[[device]]"),
            ("device = [1]", "line 1, `device = [1]`", "[[device]]"),
            ("device = [{ name = 'a', max_cq = 5, max_qp = -5 }]", "line 1", "at `-5`: expected a number from 0 to"),
            ("faults = ['nothing']", "line 1, `faults = ['nothing']`", "FUNCTION:NUMBER:ERROR"),
            ("faults = 'nothing'", "line 1, `faults = 'nothing'`", "such as ['create_qp:2:ENOMEM']"),
            (&format!("{device}{device}"), "device 2", "`a`; each needs its own name"),
            ("[[device]]", "device 1", "each needs its own name"),
        ] {
            check(text, line, part);
        }
        for (key, part) in [
            ("speed = 'ndr'", "`max_qp_wr`"),
            ("dma_buf = 'maybe'", "a boolean"),
            ("profile = 'abacus'", "no profile abacus; one of plain, connectx-5"),
            ("profile = 5", "the name of a profile"),
            ("transport = 5", "one of ib, iwarp"),
            ("hello", "expected"),
            ("guid = 0", "a number from 1 to"),
            ("guid = 0xb8599f0300a1b2c4", "or a larger one as a string, such as '0xb8599f0300a1b2c4'"),
            ("system_guid = 0x1_b859_9f03_00a1_b2c4", "such as '0xb8599f0300a1b2c4'"),
            ("guid = '0xb8599f0300a1b2c45'", "such as '0xb8599f0300a1b2c4'"),
            ("max_qp = 16777217", "from 0 to 16777216"),
            ("max_cq = 16777217", "from 0 to 16777216"),
            ("max_mr = 16777217", "from 0 to 16777216"),
            ("max_pd = 16777217", "from 0 to 16777216"),
            ("max_srq = 16777217", "from 0 to 16777216"),
            ("max_qp_wr = -5", "at `-5`: expected a number from 1 to 1048576"),
            ("vendor_id = 0x1000000", "at `0x1000000`: expected a number from 0 to 16777215"),
            ("vendor_part_id = 0x100000000", "from 0 to 4294967295"),
            ("ece = [5]", "vendor and options"),
            ("ece = [1, 2, 3]", "vendor and options"),
            ("ece = [0, 2]", "vendor and options"),
            ("ece = [1, 0x100000000]", "vendor and options"),
            ("port = 1", "[[device.port]]"),
            ("port = [1]", "[[device.port]]"),
        ] {
            check(&format!("{device}{key}"), &format!("line 3, `{key}`"), part);
        }
        for (key, part) in [
            ("guid = 1", "`link_layer`"),
            ("state = 'up'", "down, init, armed, active"),
            ("gid.1 = ['10.0.0.1', 'roce2']", "an IP address, ib, roce1 or roce2"),
            ("gid.1 = ['10.0.0.1', 'roce2', 1, 2]", "an IP address, ib, roce1 or roce2"),
            ("gid.1 = ['10.0.0.300', 'roce2', 1]", "an IP address, ib, roce1 or roce2"),
            ("gid.1 = ['10.0.0.3', 'roce3', 1]", "an IP address, ib, roce1 or roce2"),
            ("gid.1 = ['10.0.0.3', 'roce2', -1]", "an IP address, ib, roce1 or roce2"),
            ("gid.x = ['10.0.0.3', 'roce2', 1]", "from 0 to 4095"),
            ("gid = 1", "such as gid.1 = ['10.0.0.1', 'roce2', 2]"),
            ("gid_form = 'roce3'", "one-of-each, roce1-and-roce2, roce2"),
            ("gid_places = 4097", "from 0 to 4096"),
            ("lid = 70000", "from 0 to 49151"),
            ("mtu = 1500", "one of 256, 512, 1024, 2048, 4096"),
            ("max_mtu = -5", "one of 256, 512, 1024, 2048, 4096"),
            ("width = 300", "one of 1, 2, 4"),
            ("port_speed = 0x100000000", "from 0 to 4294967295"),
            ("max_message = 0x80000001", "from 0 to 2147483648"),
            ("pkeys = [0xffff, 0x10000]", "numbers from 0 to 65535"),
        ] {
            check(&format!("{device}[[device.port]]\n{key}"), &format!("line 4, `{key}`"), part);
        }
        check(&format!("{device}[device.port]\nlid = 5"), "line 3, `[device.port]`", "[[device.port]]");
        assert!(Machine::described("", "abacus").expect_err("no such profile").contains("no profile abacus"));
    }

    #[test]
    fn every_profile_is_read_and_says_all_that_the_plain_one_says() {
        let keys = |table: &Table| table.keys().cloned().collect::<Vec<_>>();
        let plain = Profile::named(PLAIN).expect("it is there");
        for &(name, text) in TEXTS {
            let profile = Profile::named(name).expect(name);
            let machine = Machine::described(DEFAULT, name).expect(name);
            assert!(!profile.title.is_empty() && machine.devices[0].ports.len() == 1, "{name}");
            for (table, of) in [(&profile.device, &plain.device), (&profile.port, &plain.port)] {
                let missing: Vec<_> = keys(of).into_iter().filter(|key| !table.contains_key(key)).collect();
                assert!(missing.is_empty(), "{name} does not say {missing:?}");
            }
            assert!(name == PLAIN || text.contains(".c"), "{name} names no source");
        }
        let mut profile = plain.clone();
        profile.device.insert("max_wit".to_owned(), Value::Integer(1));
        let error = DeviceFacts::on_top(&profile, Table::new()).expect_err("no such limit");
        assert!(error.contains("max_wit"), "{error}");
    }
}
