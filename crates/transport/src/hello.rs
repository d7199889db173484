//! HELLO: the first message between two processes, and the check that they agree.

use std::fmt;

use railweave_fabric::SettingId;
use thiserror::Error;

use crate::codec::{DecodeError, Reader, Writer};

const MAGIC: u32 = u32::from_le_bytes(*b"RWHI");
/// The longest HELLO in bytes, including what later versions may append: it is read before anything is known about its
/// sender.
pub const MAX_HELLO_BYTES: usize = 512;

const MOST_NAME: usize = 64;
const MOST_BUILD: usize = 32;

/// A process's random name, new for each process and after each fork.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId(pub [u8; 16]);

impl fmt::Display for ProcessId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

/// The facts that a process states about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The oldest protocol version that it speaks.
    pub protocol_min: u16,
    /// The newest protocol version that it speaks.
    pub protocol_max: u16,
    /// Bits of optional features: [`Hello::KEYED`]. Unknown bits are ignored.
    pub features: u32,
    /// The way in which ports become devices: 0 ports, 1 fused. Both ends must agree, otherwise devices would not
    /// match.
    pub mode: u8,
    /// The fabrics that it has: bit 0 TCP, bit 1 verbs.
    pub fabrics: u8,
    /// Equal for two processes if and only if they share a network namespace: then equal addresses are the same
    /// address.
    pub network: u64,
    /// This process.
    pub process: ProcessId,
    /// The process that the opener of the session wants to reach; zero in the answer.
    pub wanted: ProcessId,
    /// Random, new for each session.
    pub nonce: [u8; 32],
    /// Process id, for messages.
    pub pid: u32,
    /// Rank in the job, -1 if the environment does not tell.
    pub rank: i32,
    /// Number of ranks in the job, -1 if the environment does not tell.
    pub world: i32,
    /// The host's name, for messages.
    pub host: String,
    /// The build's version, for messages.
    pub build: String,
    /// The TCP port of its control socket, by which the peer finds out if the process has ended; 0 if it has none.
    pub control_port: u16,
}

/// The reason why no session is possible.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HelloError {
    /// No version in common.
    #[error(
        "the peer {peer} speaks protocol versions {theirs_min} to {theirs_max}, this process {ours_min} to {ours_max}; \
         install the same version of Railweave on every host"
    )]
    Version {
        /// The peer.
        peer: String,
        /// Its oldest.
        theirs_min: u16,
        /// Its newest.
        theirs_max: u16,
        /// Our oldest.
        ours_min: u16,
        /// Our newest.
        ours_max: u16,
    },
    /// Another mode.
    #[error(
        "the peer {peer} runs with {}={theirs}, this process with {ours}; set the same on every host",
        SettingId::Mode
    )]
    Mode {
        /// The peer.
        peer: String,
        /// Its mode.
        theirs: &'static str,
        /// Ours.
        ours: &'static str,
    },
    /// No fabric in common.
    #[error(
        "the peer {peer} has no fabric in common with this process (its bits {theirs:#b}, ours {ours:#b}; bit 0 is \
         TCP, bit 1 verbs); set {} alike on every host",
        SettingId::Fabric
    )]
    Fabric {
        /// The peer.
        peer: String,
        /// Its fabrics.
        theirs: u8,
        /// Ours.
        ours: u8,
    },
    /// One end has a key and the other has none.
    #[error(
        "the peer {peer} {}; set {} to a copy of the same key on every host, or on none",
        if *.theirs { "asks for a shared key, and this process has none" }
        else { "has no shared key, and this process asks for one" },
        SettingId::KeyFile
    )]
    Key {
        /// The peer.
        peer: String,
        /// True if the peer is the one that has a key.
        theirs: bool,
    },
    /// Another process answered.
    #[error("{found} answered instead of the process {wanted}; another host carries the same address")]
    WrongProcess {
        /// The process that was wanted.
        wanted: ProcessId,
        /// The peer that answered.
        found: String,
    },
}

fn mode_name(mode: u8) -> &'static str {
    match mode {
        0 => "ports",
        1 => "fused",
        _ => "(unknown)",
    }
}

impl Hello {
    /// The bit of `features` of a process that has a shared key and wants proof that the peer has it.
    pub const KEYED: u32 = 1;

    /// Returns true if this process has a key.
    pub fn is_keyed(&self) -> bool {
        self.features & Self::KEYED != 0
    }

    /// Returns the peer's name for messages: `node7, rank 3 (pid 4711)`.
    pub fn peer_name(&self) -> String {
        match self.rank {
            -1 => format!("{} (pid {})", self.host, self.pid),
            rank => format!("{}, rank {rank} (pid {})", self.host, self.pid),
        }
    }

    /// Returns the bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u32(MAGIC).u16(self.protocol_min).u16(self.protocol_max).u32(self.features);
        out.u8(self.mode).u8(self.fabrics).zeros(2).u64(self.network);
        out.put(&self.process.0).put(&self.wanted.0).put(&self.nonce);
        out.u32(self.pid).i32(self.rank).i32(self.world);
        out.text(&self.host, MOST_NAME).text(&self.build, MOST_BUILD).u16(self.control_port);
        out.bytes
    }

    /// Reads a HELLO. A later version may append fields, so bytes left over are ignored; earlier ones had no port at
    /// the end, and are read all the same, so that a difference of versions can be named.
    ///
    /// # Errors
    /// If the bytes are not a HELLO.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("HELLO", bytes);
        let magic = reader.u32()?;
        if magic != MAGIC {
            return Err(DecodeError::Value {
                what: "HELLO's magic number",
                value: u64::from(magic),
                allowed: "that of Railweave",
            });
        }
        let (protocol_min, protocol_max, features) = (reader.u16()?, reader.u16()?, reader.u32()?);
        let (mode, fabrics) = (reader.u8()?, reader.u8()?);
        reader.zeros(2)?;
        Ok(Self {
            protocol_min,
            protocol_max,
            features,
            mode,
            fabrics,
            network: reader.u64()?,
            process: ProcessId(reader.array()?),
            wanted: ProcessId(reader.array()?),
            nonce: reader.array()?,
            pid: reader.u32()?,
            rank: reader.i32()?,
            world: reader.i32()?,
            host: reader.text("the host's name", MOST_NAME)?,
            build: reader.text("the build's version", MOST_BUILD)?,
            control_port: reader.u16().unwrap_or(0),
        })
    }

    /// Checks that a session between these two processes is possible.
    ///
    /// # Errors
    /// If they disagree: the disagreement, in words.
    pub fn check(&self, theirs: &Self) -> Result<(), HelloError> {
        let peer = theirs.peer_name();
        if theirs.protocol_min > self.protocol_max || theirs.protocol_max < self.protocol_min {
            return Err(HelloError::Version {
                peer,
                theirs_min: theirs.protocol_min,
                theirs_max: theirs.protocol_max,
                ours_min: self.protocol_min,
                ours_max: self.protocol_max,
            });
        }
        if self.wanted != ProcessId::default() && theirs.process != self.wanted {
            return Err(HelloError::WrongProcess { wanted: self.wanted, found: peer });
        }
        if theirs.is_keyed() != self.is_keyed() {
            return Err(HelloError::Key { peer, theirs: theirs.is_keyed() });
        }
        if theirs.mode != self.mode {
            return Err(HelloError::Mode { peer, theirs: mode_name(theirs.mode), ours: mode_name(self.mode) });
        }
        if theirs.fabrics & self.fabrics == 0 {
            return Err(HelloError::Fabric { peer, theirs: theirs.fabrics, ours: self.fabrics });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hello() -> Hello {
        Hello {
            protocol_min: 1,
            protocol_max: 1,
            features: 0,
            mode: 1,
            fabrics: 1,
            network: 99,
            process: ProcessId([1; 16]),
            wanted: ProcessId::default(),
            nonce: [3; 32],
            pid: 4711,
            rank: 3,
            world: 8,
            host: "node7".into(),
            build: "0.1.0".into(),
            control_port: 4711,
        }
    }

    #[test]
    fn what_goes_in_comes_out() {
        assert_eq!(Hello::decode(&hello().encode()), Ok(hello()));
        assert_eq!(hello().peer_name(), "node7, rank 3 (pid 4711)");
        let mut of_version_3 = hello().encode();
        of_version_3.truncate(of_version_3.len() - 2);
        assert_eq!(Hello::decode(&of_version_3), Ok(Hello { control_port: 0, ..hello() }));
    }

    #[test]
    fn long_names_are_cut_and_odd_ones_made_printable() {
        let long = Hello { host: "ä".repeat(100), ..hello() };
        assert_eq!(Hello::decode(&long.encode()).unwrap().host, "ä".repeat(32));
        let odd = Hello { host: "a\nb".into(), ..hello() };
        assert_eq!(Hello::decode(&odd.encode()).unwrap().host, "a\u{fffd}b");
    }

    #[test]
    fn what_does_not_agree_is_said_in_words() {
        let ours = Hello { wanted: ProcessId([1; 16]), ..hello() };
        assert_eq!(ours.check(&hello()), Ok(()));
        let cases = [
            (Hello { protocol_min: 2, protocol_max: 3, ..hello() }, "versions 2 to 3"),
            (Hello { mode: 0, ..hello() }, "mode=ports"),
            (Hello { features: Hello::KEYED, ..hello() }, "set key_file to a copy"),
            (Hello { fabrics: 2, ..hello() }, "set fabric alike"),
            (Hello { process: ProcessId([2; 16]), ..hello() }, "another host carries the same address"),
        ];
        for (theirs, words) in cases {
            let text = ours.check(&theirs).unwrap_err().to_string();
            assert!(text.contains(words) && text.contains("node7"), "{text}");
        }
    }

    #[test]
    fn two_processes_need_one_version_in_common() {
        let ours = Hello { protocol_min: 3, protocol_max: 5, ..hello() };
        let speaks = |protocol_min, protocol_max| Hello { protocol_min, protocol_max, ..hello() };
        for (min, max) in [(1, 3), (5, 7), (4, 4), (1, 9), (3, 5)] {
            assert_eq!(ours.check(&speaks(min, max)), Ok(()), "{min} to {max}");
        }
        for (min, max) in [(1, 2), (6, 7)] {
            assert!(matches!(ours.check(&speaks(min, max)), Err(HelloError::Version { .. })), "{min} to {max}");
        }
    }

    #[test]
    fn two_processes_need_one_fabric_in_common() {
        let has = |fabrics| Hello { fabrics, ..hello() };
        for (ours, theirs, is_fine) in [(0b01, 0b01, true), (0b11, 0b10, true), (0b01, 0b10, false), (0, 0b11, false)] {
            assert_eq!(has(ours).check(&has(theirs)).is_ok(), is_fine, "{ours:#b} and {theirs:#b}");
        }
    }

    #[test]
    fn a_process_that_wants_none_in_particular_takes_any() {
        assert_eq!(hello().check(&Hello { process: ProcessId([2; 16]), ..hello() }), Ok(()));
    }

    #[test]
    fn only_the_bit_of_the_key_says_that_a_process_has_one() {
        let with = |features| Hello { features, ..hello() };
        assert!(with(Hello::KEYED).is_keyed() && with(Hello::KEYED | 0b10).is_keyed());
        assert!(!with(0).is_keyed() && !with(0b10).is_keyed(), "unknown bits are ignored");
        let text = |ours: &Hello, theirs: &Hello| ours.check(theirs).unwrap_err().to_string();
        assert!(text(&with(0), &with(Hello::KEYED)).contains("asks for a shared key, and this process has none"));
        assert!(text(&with(Hello::KEYED), &with(0)).contains("has no shared key, and this process asks for one"));
    }

    #[test]
    fn modes_that_differ_are_both_named() {
        let runs = |mode| Hello { mode, ..hello() };
        for (ours, theirs, words) in [
            (1, 0, "mode=ports, this process with fused;"),
            (0, 1, "mode=fused, this process with ports;"),
            (0, 7, "mode=(unknown), this process with ports;"),
        ] {
            let text = runs(ours).check(&runs(theirs)).unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn a_process_without_a_rank_is_named_without_one() {
        assert_eq!(Hello { rank: -1, ..hello() }.peer_name(), "node7 (pid 4711)");
        assert_eq!(ProcessId([0xab; 16]).to_string(), "abababab");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), magic: bool) {
            if magic && bytes.len() >= 4 {
                bytes[..4].copy_from_slice(b"RWHI");
            }
            let _ = Hello::decode(&bytes);
        }
    }
}
