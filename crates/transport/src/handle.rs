//! The 128 bytes that `listen` hands to NCCL and with which the sender's side connects (docs/wire.md, "Handle").

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use railweave_fabric::AddressPurpose;

use crate::codec::{DecodeError, Reader, Writer};
use crate::hello::ProcessId;

const MAGIC: u32 = u32::from_le_bytes(*b"RWHD");
const V4_BYTES: usize = 6;
const V6_BYTES: usize = 18;
const HEADER_BYTES: usize = 36;

/// One of the listening host's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandleAddress {
    /// The address.
    pub address: IpAddr,
    /// Length of its network's prefix in bits.
    pub prefix_len: u8,
    /// Index of the device's port that it belongs to, [`HandleAddress::OTHER_PORT`], [`HandleAddress::OUT_OF_BAND`] or
    /// [`HandleAddress::NAMED_OUT_OF_BAND`].
    pub port: u8,
}

impl HandleAddress {
    /// The port index of the out-of-band address, which belongs to no port.
    pub const OUT_OF_BAND: u8 = u8::MAX;
    /// The port index of an out-of-band address that the user named for RDMA ports: it is dialled first.
    pub const NAMED_OUT_OF_BAND: u8 = u8::MAX - 1;

    /// The port index of the address of a port that does not belong to the device.
    pub const OTHER_PORT: u8 = u8::MAX - 2;

    /// Returns its purpose, which the port index tells.
    pub fn purpose(&self) -> AddressPurpose {
        match self.port {
            Self::OUT_OF_BAND => AddressPurpose::OutOfBand,
            Self::NAMED_OUT_OF_BAND => AddressPurpose::NamedOutOfBand,
            Self::OTHER_PORT => AddressPurpose::OtherPort,
            _ => AddressPurpose::Port,
        }
    }

    /// Returns true if it belongs to a port of the device.
    pub fn is_of_device(&self) -> bool {
        self.purpose() == AddressPurpose::Port
    }
}

/// The place and the identity of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    /// The listening process.
    pub process: ProcessId,
    /// Names the listener inside the process; random, so that it cannot be guessed.
    pub nonce: u64,
    /// TCP port of the process's control socket.
    pub control_port: u16,
    /// The host's addresses: those of the device's ports, then those of others, the out-of-band one last.
    pub addresses: Vec<HandleAddress>,
}

impl Handle {
    /// Its length in bytes: `NCCL_NET_HANDLE_MAXSIZE`.
    pub const BYTES: usize = 128;

    /// Returns the bytes. Addresses that do not fit are left out, those of other ports first, an out-of-band one last.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut room = Self::BYTES - HEADER_BYTES;
        let mut kept: Vec<HandleAddress> = Vec::new();
        // The out-of-band address reaches the host if no other does, so it is the last to be left out.
        let mut by_need: Vec<&HandleAddress> = self.addresses.iter().collect();
        by_need.sort_by_key(|entry| match entry.purpose() {
            AddressPurpose::OutOfBand | AddressPurpose::NamedOutOfBand => 0,
            AddressPurpose::Port => 1,
            AddressPurpose::OtherPort => 2,
        });
        for address in by_need {
            let need = if address.address.is_ipv4() { V4_BYTES } else { V6_BYTES };
            if need <= room {
                room -= need;
                kept.push(*address);
            }
        }
        kept.sort_by_key(|address| address.port);
        let (v4, v6): (Vec<_>, Vec<_>) = kept.into_iter().partition(|a| a.address.is_ipv4());
        let mut out = Writer::default();
        out.u32(MAGIC).u16(crate::PROTOCOL_VERSION).u8(v4.len() as u8).u8(v6.len() as u8);
        out.put(&self.process.0).u64(self.nonce).u16(self.control_port).zeros(2);
        for entry in v4.iter().chain(&v6) {
            match entry.address {
                IpAddr::V4(address) => out.put(&address.octets()),
                IpAddr::V6(address) => out.put(&address.octets()),
            };
            out.u8(entry.prefix_len).u8(entry.port);
        }
        let mut bytes = [0; Self::BYTES];
        bytes[..out.bytes.len()].copy_from_slice(&out.bytes);
        bytes
    }

    /// Reads a handle.
    ///
    /// # Errors
    /// If the bytes are not a handle of this protocol version.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("the handle", bytes);
        let magic = reader.u32()?;
        if magic != MAGIC {
            return Err(DecodeError::Value {
                what: "the handle's magic number",
                value: u64::from(magic),
                allowed: "that of Railweave; the peer uses another plugin, or the handle was damaged",
            });
        }
        let version = reader.u16()?;
        if version != crate::PROTOCOL_VERSION {
            return Err(DecodeError::Version { what: "the handle's protocol version", version });
        }
        let (v4, v6) = (reader.u8()?, reader.u8()?);
        let process = ProcessId(reader.array()?);
        let nonce = reader.u64()?;
        let control_port = reader.u16()?;
        reader.zeros(2)?;
        let mut addresses = Vec::new();
        for index in 0..usize::from(v4) + usize::from(v6) {
            let address = if index < usize::from(v4) {
                IpAddr::V4(Ipv4Addr::from(reader.array::<4>()?))
            } else {
                IpAddr::V6(Ipv6Addr::from(reader.array::<16>()?))
            };
            let prefix_len = reader.u8()?;
            let longest = if address.is_ipv4() { 32 } else { 128 };
            if prefix_len > longest {
                return Err(DecodeError::Value {
                    what: "a prefix length in the handle",
                    value: u64::from(prefix_len),
                    allowed: "at most 32 for IPv4 and 128 for IPv6",
                });
            }
            addresses.push(HandleAddress { address, prefix_len, port: reader.u8()? });
        }
        addresses.sort_by_key(|address| address.port);
        Ok(Self { process, nonce, control_port, addresses })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn v4(last: u8, port: u8) -> HandleAddress {
        HandleAddress { address: Ipv4Addr::new(10, 0, 0, last).into(), prefix_len: 24, port }
    }

    fn v6(last: u16, port: u8) -> HandleAddress {
        HandleAddress { address: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last).into(), prefix_len: 64, port }
    }

    fn handle(addresses: Vec<HandleAddress>) -> Handle {
        Handle { process: ProcessId([7; 16]), nonce: 0x1234_5678_9abc_def0, control_port: 4711, addresses }
    }

    #[test]
    fn twelve_ipv4_or_four_ipv6_addresses_fit() {
        for addresses in [(0..12).map(|i| v4(i, i)).collect(), (0..4).map(|i| v6(i.into(), i)).collect::<Vec<_>>()] {
            let handle = handle(addresses);
            assert_eq!(Handle::decode(&handle.encode()), Ok(handle));
        }
    }

    #[test]
    fn addresses_of_other_ports_are_the_first_to_be_left_out() {
        let others = (0..8).map(|i| v4(100 + i, HandleAddress::OTHER_PORT));
        let own = (0..10).map(|i| v4(i, i));
        let many = handle(others.chain(own).chain([v4(99, HandleAddress::OUT_OF_BAND)]).collect());
        let back = Handle::decode(&many.encode()).unwrap();
        let count = |purpose| back.addresses.iter().filter(|entry| entry.purpose() == purpose).count();
        assert_eq!(back.addresses.len(), 15);
        assert_eq!((count(AddressPurpose::Port), count(AddressPurpose::OtherPort)), (10, 4));
        assert_eq!(back.addresses.last().unwrap().purpose(), AddressPurpose::OutOfBand);
    }

    #[test]
    fn the_out_of_band_address_is_never_left_out() {
        for port in [HandleAddress::OUT_OF_BAND, HandleAddress::NAMED_OUT_OF_BAND] {
            let oob = v4(99, port);
            let many = handle((0..30).map(|i| v6(i.into(), i)).chain([oob]).collect());
            let back = Handle::decode(&many.encode()).unwrap();
            assert_eq!(back.addresses.last(), Some(&oob));
            assert!(back.addresses.len() >= 5);
        }
    }

    #[test]
    fn the_three_highest_port_indices_stand_for_no_port_of_the_device() {
        let last = HandleAddress::OTHER_PORT - 1;
        for (port, purpose) in [
            (0, AddressPurpose::Port),
            (last, AddressPurpose::Port),
            (HandleAddress::OTHER_PORT, AddressPurpose::OtherPort),
            (HandleAddress::NAMED_OUT_OF_BAND, AddressPurpose::NamedOutOfBand),
            (HandleAddress::OUT_OF_BAND, AddressPurpose::OutOfBand),
        ] {
            assert_eq!(v4(1, port).purpose(), purpose, "{port}");
            assert_eq!(v4(1, port).is_of_device(), port <= last, "{port}");
        }
    }

    #[test]
    fn another_magic_version_or_prefix_is_refused_in_words() {
        let good = handle(vec![v4(1, 0)]).encode();
        for (at, value, words) in [(0, b'X', "magic"), (4, 9, "version"), (40, 33, "prefix"), (6, 40, "ends after")] {
            let mut bad = good;
            bad[at] = value;
            let text = Handle::decode(&bad).unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
            let ours = format!("allowed: {}; install", crate::PROTOCOL_VERSION);
            assert!(words != "version" || text.contains(&ours), "{text}");
        }
    }

    #[test]
    fn a_prefix_may_be_as_long_as_its_address_and_no_longer() {
        for (address, longest) in [(v4(1, 0), 32), (v6(1, 0), 128)] {
            let with = |prefix_len| handle(vec![HandleAddress { prefix_len, ..address }]);
            for prefix_len in [0, longest] {
                assert_eq!(Handle::decode(&with(prefix_len).encode()), Ok(with(prefix_len)));
            }
            assert!(Handle::decode(&with(longest + 1).encode()).unwrap_err().to_string().contains("prefix"));
        }
    }

    #[test]
    fn an_address_that_does_not_fit_leaves_its_room_to_shorter_ones() {
        // 5 IPv6 addresses take 90 of 92 bytes; 4 of them and 3 IPv4 addresses, 90 too.
        let mixed = handle((0..4).map(|i| v6(i.into(), i)).chain((4..7).map(|i| v4(i, i))).collect());
        assert_eq!(Handle::decode(&mixed.encode()), Ok(mixed.clone()));
        let last_is_long = handle(mixed.addresses[..6].iter().copied().chain([v6(9, 7), v4(8, 8)]).collect());
        let kept = Handle::decode(&last_is_long.encode()).unwrap().addresses;
        assert_eq!(kept.iter().map(|address| address.port).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 8]);
        let fifteen = handle((0..16).map(|i| v4(i, i)).collect());
        assert_eq!(Handle::decode(&fifteen.encode()).unwrap().addresses, fifteen.addresses[..15]);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::array::uniform32(any::<u8>()), head: bool) {
            let mut whole = [0; Handle::BYTES];
            if head {
                whole = handle(vec![]).encode();
            }
            whole[if head { 6 } else { 0 }..][..32].copy_from_slice(&bytes);
            let _ = Handle::decode(&whole);
        }
    }
}
