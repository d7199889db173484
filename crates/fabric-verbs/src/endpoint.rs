//! A lane's endpoint, by which the peer reaches it: the 48 bytes of a queue pair in LANES (docs/wire.md).

use railweave_fabric::{LaneEndpoint, LinkLayer, SetupError};

use crate::sys;

/// This end supports ECE.
const HAS_ECE: u8 = 1;
/// The port requires a global route header on every packet.
const WANTS_GRH: u8 = 2;

/// A queue pair as its peer must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Its number, 24 bits.
    pub(crate) number: u32,
    /// The number of its first packet, 24 bits.
    pub(crate) psn: u32,
    /// The port's local identifier; 0 on RoCE.
    pub(crate) lid: u16,
    pub(crate) link_layer: LinkLayer,
    /// The port's MTU as the code of `enum ibv_mtu`, 1 to 5.
    pub(crate) mtu: u8,
    /// True if the port requires a global route header on every packet.
    pub(crate) wants_grh: bool,
    pub(crate) gid: [u8; 16],
    /// Enhanced connection establishment: offered by the connector, reduced by the acceptor.
    pub(crate) ece: Option<sys::Ece>,
}

impl Endpoint {
    pub(crate) fn encode(&self) -> LaneEndpoint {
        let mut bytes = [0; LaneEndpoint::BYTES];
        bytes[0..4].copy_from_slice(&self.number.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.psn.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.lid.to_le_bytes());
        bytes[10] = self.link_layer as u8;
        bytes[11] = self.mtu;
        bytes[12] = u8::from(self.ece.is_some()) * HAS_ECE + u8::from(self.wants_grh) * WANTS_GRH;
        bytes[16..32].copy_from_slice(&self.gid);
        if let Some(ece) = self.ece {
            bytes[32..36].copy_from_slice(&ece.vendor_id.to_le_bytes());
            bytes[36..40].copy_from_slice(&ece.options.to_le_bytes());
            bytes[40..44].copy_from_slice(&ece.comp_mask.to_le_bytes());
        }
        LaneEndpoint(bytes)
    }

    /// # Errors
    /// If a value in the peer's bytes is out of range; the error names it.
    pub(crate) fn decode(LaneEndpoint(bytes): &LaneEndpoint) -> Result<Self, SetupError> {
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let wrong = |what, value: u64, allowed| SetupError::WrongEndpoint { what, value, allowed };
        let flags = bytes[12];
        let layer = LinkLayer::from_code(bytes[10]).filter(|layer| *layer != LinkLayer::Tcp);
        let zero = bytes[13..16].iter().chain(&bytes[44..48]).all(|byte| *byte == 0);
        let no_ece = flags & HAS_ECE != 0 || bytes[32..44].iter().all(|byte| *byte == 0);
        if number(0) == 0 || number(0) >= 1 << 24 {
            return Err(wrong("the queue-pair number", number(0).into(), "1 to 0xffffff"));
        }
        if number(4) >= 1 << 24 {
            return Err(wrong("the first packet number", number(4).into(), "0 to 0xffffff"));
        }
        let Some(link_layer) = layer else {
            return Err(wrong("the link layer", bytes[10].into(), "1 (RoCE) or 2 (InfiniBand)"));
        };
        if !(1..=5).contains(&bytes[11]) {
            return Err(wrong("the MTU code", bytes[11].into(), "1 to 5"));
        }
        if flags & !(HAS_ECE | WANTS_GRH) != 0 || !zero || !no_ece {
            return Err(wrong("reserved bits, with flags", flags.into(), "zero"));
        }
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[16..32]);
        Ok(Self {
            number: number(0),
            psn: number(4),
            lid: u16::from_le_bytes([bytes[8], bytes[9]]),
            link_layer,
            mtu: bytes[11],
            wants_grh: flags & WANTS_GRH != 0,
            gid,
            ece: (flags & HAS_ECE != 0).then(|| sys::Ece {
                vendor_id: number(32),
                options: number(36),
                comp_mask: number(40),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint {
            number: 0x12_3456,
            psn: 0xff_ffff,
            lid: 0xbeef,
            link_layer: LinkLayer::InfiniBand,
            mtu: 5,
            wants_grh: true,
            gid: std::array::from_fn(|index| index as u8),
            ece: Some(sys::Ece { vendor_id: 0x15b3, options: 0x3000_0002, comp_mask: 1 }),
        }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for ece in [None, endpoint().ece] {
            for wants_grh in [false, true] {
                let whole = Endpoint { ece, wants_grh, ..endpoint() };
                assert_eq!(Endpoint::decode(&whole.encode()), Ok(whole));
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let spoilt = |change: fn(&mut [u8; 48])| {
            let LaneEndpoint(mut bytes) = endpoint().encode();
            change(&mut bytes);
            Endpoint::decode(&LaneEndpoint(bytes)).unwrap_err().to_string()
        };
        assert!(spoilt(|bytes| bytes[0..4].fill(0)).contains("queue-pair number 0x0"));
        assert!(spoilt(|bytes| bytes[3] = 1).contains("queue-pair number"));
        assert!(spoilt(|bytes| bytes[7] = 1).contains("packet number"));
        assert!(spoilt(|bytes| bytes[10] = 0).contains("link layer"));
        assert!(spoilt(|bytes| bytes[10] = 3).contains("link layer"));
        assert!(spoilt(|bytes| bytes[11] = 0).contains("MTU"));
        assert!(spoilt(|bytes| bytes[11] = 6).contains("MTU"));
        assert!(spoilt(|bytes| bytes[12] |= 4).contains("reserved"));
        assert!(spoilt(|bytes| bytes[13] = 1).contains("reserved"));
        assert!(spoilt(|bytes| bytes[47] = 1).contains("reserved"));
        assert!(spoilt(|bytes| bytes[12] &= !1).contains("reserved"), "ECE without its flag");
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_endpoint_or_a_sentence(
            bytes in proptest::array::uniform32(any::<u8>()),
            tail in proptest::array::uniform16(any::<u8>()),
        ) {
            let mut whole = [0; 48];
            whole[..32].copy_from_slice(&bytes);
            whole[32..].copy_from_slice(&tail);
            match Endpoint::decode(&LaneEndpoint(whole)) {
                Ok(endpoint) => prop_assert_eq!(endpoint.encode(), LaneEndpoint(whole)),
                Err(error) => prop_assert!(matches!(error, SetupError::WrongEndpoint { .. }), "{error}"),
            }
        }
    }
}
