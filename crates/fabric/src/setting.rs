//! The settings that messages tell the user to look at. The `options` crate knows the variables of each setting, and
//! supplies their names once, before the first message.

use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Defines the enum, the list of all settings and their plain names, from one line per setting.
macro_rules! settings {
    ($($(#[$doc:meta])* $variant:ident = $key:literal,)*) => {
        /// A setting that some message tells the user to look at or to change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum SettingId {
            $($(#[$doc])* $variant,)*
        }

        impl SettingId {
            /// Every setting.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns its plain name, used until [`Self::name_by`] is called.
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
    /// The address family to use.
    AddressFamily = "address_family",
    /// The range of addresses to use.
    AddressRange = "address_range",
    /// The trust in the byte counts that adapters report for writes with immediates.
    ByteCounts = "byte_counts",
    /// The range of ports that the control socket is bound to.
    ControlPort = "control_port",
    /// NCCL's use of dma-bufs for GPU memory.
    DmaBuf = "dma_buf",
    /// Enhanced connection establishment.
    Ece = "ece",
    /// The fabric.
    Fabric = "fabric",
    /// TCP where RDMA does not reach.
    Hybrid = "hybrid",
    /// The index into a port's GID table.
    GidIndex = "gid_index",
    /// The kernel's routes, as a reason against a way.
    Routes = "routes",
    /// The time limit for a connection's set-up.
    HandshakeTimeout = "handshake_timeout",
    /// The file of the key that peers share.
    KeyFile = "key_file",
    /// The number of lanes of a rail.
    Lanes = "lanes",
    /// The libibverbs library, by file or name.
    Library = "ibverbs_library",
    /// The permission for NCCL to fuse devices.
    MergeNics = "merge_nics",
    /// The way in which ports become devices.
    Mode = "mode",
    /// The interface over which sessions are dialled.
    OutOfBand = "oob_interface",
    /// The index into a port's partition keys.
    PartitionKey = "pkey_index",
    /// The time without an answer after which the peer counts as gone.
    PeerTimeout = "peer_timeout",
    /// The time in which a rail must bring something through.
    ProbeTimeout = "probe_timeout",
    /// The ports that become rails.
    Rails = "rails",
    /// The RDMA ports that become rails.
    RdmaRails = "rdma_rails",
    /// Relaxed ordering of data in memory.
    RelaxedOrdering = "relaxed_ordering",
    /// The version of RoCE.
    RoceVersion = "roce_version",
}

/// The names under which the user sets a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingNames {
    /// Railweave's own name.
    pub own: &'static str,
    /// The name in NCCL's own transports; Railweave's own if they have none.
    pub nccls: &'static str,
}

/// Returns the names of a setting.
type Names = fn(SettingId) -> SettingNames;

/// The address of a [`Names`], or NULL. Not a lock, because a fork while another thread holds it would leave it locked
/// in the child.
static NAMES: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

fn names_of(setting: SettingId) -> Option<SettingNames> {
    let address = NAMES.load(Ordering::Acquire);
    // SAFETY: only `name_by` stores here, always a function of this type; NULL is None.
    #[expect(unsafe_code, reason = "a function's address in an atomic")]
    let names = unsafe { std::mem::transmute::<*mut (), Option<Names>>(address) };
    names.map(|names| names(setting))
}

impl SettingId {
    /// Makes all messages use the names that `names` returns. Only the first call has an effect; before it, settings
    /// have their plain names.
    pub fn name_by(names: fn(Self) -> SettingNames) {
        // If the names are set already, they stay.
        let _ = NAMES.compare_exchange(ptr::null_mut(), names as *mut (), Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns Railweave's own name for it, or the plain one.
    pub fn own(self) -> &'static str {
        names_of(self).map_or(self.key(), |names| names.own)
    }

    /// Returns NCCL's name for it, or the plain one.
    pub fn nccls(self) -> &'static str {
        names_of(self).map_or(self.key(), |names| names.nccls)
    }

    /// Returns both names, NCCL's in parentheses, or the plain one.
    pub fn both(self) -> String {
        let (own, nccls) = (self.own(), self.nccls());
        if own == nccls { own.to_owned() } else { format!("{own} ({nccls})") }
    }
}

/// Writes [`SettingId::own`].
impl fmt::Display for SettingId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.own())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_names_a_setting_is_said_by_its_plain_one() {
        for setting in SettingId::ALL.iter().copied() {
            let both = setting.both();
            assert_eq!((setting.own(), setting.nccls(), both.as_str()), (setting.key(), setting.key(), setting.key()));
        }
    }
}
