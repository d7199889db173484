//! What a user can set, for sentences that tell them to. How each is called where it is set (the name of a variable) is
//! known where the table of options is, and handed in once, before any of these crates is used.

use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// One line per setting: the enum, the list of all and the plain names are made of it.
macro_rules! settings {
    ($($(#[$doc:meta])* $variant:ident = $key:literal,)*) => {
        /// A setting that some sentence tells the user to look at or to change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Setting {
            $($(#[$doc])* $variant,)*
        }

        impl Setting {
            /// Every setting.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its plain name, which says it where no other is known.
            pub const fn key(self) -> &'static str {
                match self {
                    $(Self::$variant => $key,)*
                }
            }
        }
    };
}

settings! {
    /// The local ACK timeout of RDMA lanes.
    AckTimeout = "ack_timeout",
    /// The family of addresses that is used.
    AddressFamily = "address_family",
    /// The range of addresses that is used.
    AddressRange = "address_range",
    /// Whether adapters report the bytes of writes with immediates.
    ByteCounts = "byte_counts",
    /// The range of ports that the control socket is bound to.
    ControlPort = "control_port",
    /// Whether NCCL hands GPU memory over as dma-bufs.
    DmaBuf = "dma_buf",
    /// Enhanced connection establishment.
    Ece = "ece",
    /// The fabric.
    Fabric = "fabric",
    /// The entry of a port's GID table.
    GidIndex = "gid_index",
    /// How long a connection's set-up may take.
    HandshakeTimeout = "handshake_timeout",
    /// The file of the key that peers share.
    KeyFile = "key_file",
    /// The lanes of a rail.
    Lanes = "lanes",
    /// The file of libibverbs.
    Library = "ibverbs_library",
    /// Whether ports are fused.
    Mode = "mode",
    /// The interface over which sessions are dialled.
    OutOfBand = "oob_interface",
    /// The index into a port's partition keys.
    PartitionKey = "pkey_index",
    /// How long a peer may take to answer when it is asked whether it is there.
    PeerTimeout = "peer_timeout",
    /// The list of rails.
    Rails = "rails",
    /// The list of rails of RDMA.
    RdmaRails = "rdma_rails",
    /// Relaxed ordering of data in memory.
    RelaxedOrdering = "relaxed_ordering",
    /// The version of RoCE.
    RoceVersion = "roce_version",
}

/// The names of a setting where the user sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingNames {
    /// Railweave's own name.
    pub own: &'static str,
    /// The one that NCCL's transports have for it; Railweave's own where they have none.
    pub nccls: &'static str,
}

/// Says how settings are called.
type Names = fn(Setting) -> SettingNames;

/// The address of a [`Names`], or NULL. No lock: a fork while another thread holds one would leave it locked in the
/// child.
static NAMES: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

fn names_of(setting: Setting) -> Option<SettingNames> {
    let address = NAMES.load(Ordering::Acquire);
    // SAFETY: only `name_by` stores here, and what it stores is a function of this type; NULL is None.
    #[expect(unsafe_code, reason = "a function's address in an atomic")]
    let names = unsafe { std::mem::transmute::<*mut (), Option<Names>>(address) };
    names.map(|names| names(setting))
}

impl Setting {
    /// From now on sentences name settings as `names` says. The first call counts; without any, they have their plain
    /// names.
    pub fn name_by(names: fn(Self) -> SettingNames) {
        // Where it was said already, that counts.
        let _ = NAMES.compare_exchange(ptr::null_mut(), names as *mut (), Ordering::AcqRel, Ordering::Acquire);
    }

    /// Railweave's own name for it, or the plain one.
    pub fn own(self) -> &'static str {
        names_of(self).map_or(self.key(), |names| names.own)
    }

    /// NCCL's name for it, or the plain one.
    pub fn nccls(self) -> &'static str {
        names_of(self).map_or(self.key(), |names| names.nccls)
    }

    /// Both names, NCCL's in parentheses, or the plain one.
    pub fn both(self) -> String {
        let (own, nccls) = (self.own(), self.nccls());
        if own == nccls { own.to_owned() } else { format!("{own} ({nccls})") }
    }
}

/// As [`Setting::own`].
impl fmt::Display for Setting {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.own())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_names_a_setting_is_said_by_its_plain_one() {
        for setting in Setting::ALL.iter().copied() {
            let both = setting.both();
            assert_eq!((setting.own(), setting.nccls(), both.as_str()), (setting.key(), setting.key(), setting.key()));
        }
    }
}
