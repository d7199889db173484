//! The reasons why memory cannot be registered.

use super::os;
use crate::{Fault, MemoryKind, SettingId};

/// The reason why memory could not be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The fabric cannot register this kind of memory.
    #[error("{fabric} cannot register {kind} memory; only host memory is supported on this device")]
    Unsupported {
        /// The fabric's name.
        fabric: &'static str,
        /// The requested kind of memory.
        kind: &'static str,
    },
    /// The address range is invalid: it wraps around, or lies beyond what the fabric can address.
    #[error("the range of {length} bytes at {address:#x} is not a valid memory range")]
    Range {
        /// Address of the first byte.
        address: u64,
        /// Length in bytes.
        length: usize,
    },
    /// The domain cannot hold more registrations.
    #[error(
        "this port has {most} registrations already, the most it can hold; deregister some, or register fewer and \
         larger ranges"
    )]
    Full {
        /// The number that it can hold.
        most: usize,
    },
    /// The kernel gave no random bits for the registration's key.
    #[error("the kernel gave no random bits for a key: {why}")]
    NoKey {
        /// The kernel's error.
        why: String,
    },
    /// Relaxed ordering is required, but the library does not support it.
    #[error(
        "{port}: relaxed ordering is required ({}=1), but this libibverbs lacks it (ibv_reg_mr_iova2 of version \
         IBVERBS_1.8 is missing); set it to 2 or 0, or update rdma-core",
        SettingId::RelaxedOrdering.nccls()
    )]
    NoRelaxedOrdering {
        /// The port.
        port: String,
    },
    /// The library does not support dma-bufs.
    #[error(
        "{port}: this libibverbs cannot register a dma-buf (ibv_reg_dmabuf_mr of version IBVERBS_1.12 is missing); \
         update rdma-core, or load nvidia_peermem"
    )]
    NoDmaBufs {
        /// The port.
        port: String,
    },
    /// The range's address and its offset in the dma-buf do not fit together.
    #[error(
        "{port}: a dma-buf's memory at {address:#x} cannot begin at offset {offset:#x}: the offset must be a multiple \
         of the page size, {page} bytes, or have the same remainder as the address; export the dma-buf from the start \
         of a page"
    )]
    DmaBufPlace {
        /// The port.
        port: String,
        /// Address of the first byte.
        address: u64,
        /// Start of the range in the dma-buf, in bytes.
        offset: u64,
        /// The size of a page in bytes.
        page: u64,
    },
    /// The kernel or the library refused the range.
    #[error(
        "{port}: {length} bytes of {} memory at {address:#x} cannot be registered (access {access:#x}): {}; {}",
        kind.name(), os(*errno), advice(*errno, *kind, *relaxed)
    )]
    Refused {
        /// The port.
        port: String,
        /// The kind of memory.
        kind: MemoryKind,
        /// Address of the first byte.
        address: u64,
        /// Length in bytes.
        length: usize,
        /// The requested access rights, as flags of the library.
        access: i32,
        /// True if relaxed ordering was among them.
        relaxed: bool,
        /// The error number.
        errno: i32,
    },
}

impl RegisterError {
    /// Returns the party at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Unsupported { .. } => Fault::Configuration,
            Self::Range { .. } => Fault::Protocol,
            Self::Full { .. }
            | Self::NoKey { .. }
            | Self::NoRelaxedOrdering { .. }
            | Self::NoDmaBufs { .. }
            | Self::DmaBufPlace { .. }
            | Self::Refused { .. } => Fault::Local,
        }
    }
}

/// Returns advice for a range that was refused with this error number.
fn advice(errno: i32, kind: MemoryKind, relaxed: bool) -> String {
    match (errno, kind) {
        (libc::EINVAL | libc::EOPNOTSUPP, MemoryKind::Host) if relaxed => {
            let setting = SettingId::RelaxedOrdering.nccls();
            return format!("the driver may not know relaxed ordering, which {setting}=1 asks for: set it to 2 or 0");
        }
        (libc::ENOMEM | libc::EAGAIN, MemoryKind::Host) => {
            "raise the limit of locked memory (ulimit -l unlimited; in a container --ulimit memlock=-1)"
        }
        (_, MemoryKind::Cuda) => {
            return format!("load nvidia_peermem, or let NCCL use dma-buf ({}=1)", SettingId::DmaBuf.nccls());
        }
        (_, MemoryKind::DmaBuf { .. }) => "check that kernel and driver support dma-buf, or load nvidia_peermem",
        (libc::EFAULT | libc::EINVAL, _) => "the range must be mapped and writable",
        _ => "look at the kernel log",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(errno: i32, kind: MemoryKind, relaxed: bool) -> RegisterError {
        let port = "a".to_owned();
        RegisterError::Refused { port, kind, address: 0x1000, length: 100, access: 0x3, relaxed, errno }
    }

    #[test]
    fn what_is_refused_is_told_with_its_remedy() {
        let dma_buf = MemoryKind::DmaBuf { fd: 3, offset: 0 };
        let cases = [
            (libc::ENOMEM, MemoryKind::Host, false, "host", "ulimit -l unlimited"),
            (libc::EAGAIN, MemoryKind::Host, true, "host", "memlock=-1"),
            (libc::EINVAL, MemoryKind::Host, true, "host", "which relaxed_ordering=1 asks for: set it to 2 or 0"),
            (libc::EINVAL, MemoryKind::Host, false, "host", "the range must be mapped and writable"),
            (libc::EFAULT, MemoryKind::Host, true, "host", "the range must be mapped and writable"),
            (libc::EFAULT, MemoryKind::Cuda, false, "CUDA", "let NCCL use dma-buf (dma_buf=1)"),
            (libc::EINVAL, dma_buf, false, "dma-buf", "kernel and driver support dma-buf"),
            (libc::EIO, MemoryKind::Host, false, "host", "look at the kernel log"),
        ];
        for (errno, kind, relaxed, name, remedy) in cases {
            let error = refused(errno, kind, relaxed);
            let text = error.to_string();
            let begin = format!(
                "a: 100 bytes of {name} memory at 0x1000 cannot be registered (access 0x3): {}; ",
                std::io::Error::from_raw_os_error(errno)
            );
            assert!(text.starts_with(&begin) && text.contains(remedy), "{text}");
            assert_eq!(error.fault(), Fault::Local, "{text}");
        }
    }

    #[test]
    fn every_other_cause_has_its_sentence_and_its_fault() {
        let port = || "a".to_owned();
        let cases = [
            (
                RegisterError::Unsupported { fabric: "tcp", kind: "CUDA" },
                Fault::Configuration,
                "tcp cannot register CUDA memory; only host memory is supported on this device",
            ),
            (
                RegisterError::Range { address: 0x1000, length: 9 },
                Fault::Protocol,
                "the range of 9 bytes at 0x1000 is not a valid memory range",
            ),
            (
                RegisterError::Full { most: 2 },
                Fault::Local,
                "this port has 2 registrations already, the most it can hold; deregister some, or register fewer and \
                 larger ranges",
            ),
            (
                RegisterError::NoKey { why: "none".to_owned() },
                Fault::Local,
                "the kernel gave no random bits for a key: none",
            ),
            (
                RegisterError::NoRelaxedOrdering { port: port() },
                Fault::Local,
                "a: relaxed ordering is required (relaxed_ordering=1), but this libibverbs lacks it (ibv_reg_mr_iova2 \
                 of version IBVERBS_1.8 is missing); set it to 2 or 0, or update rdma-core",
            ),
            (
                RegisterError::NoDmaBufs { port: port() },
                Fault::Local,
                "a: this libibverbs cannot register a dma-buf (ibv_reg_dmabuf_mr of version IBVERBS_1.12 is missing); \
                 update rdma-core, or load nvidia_peermem",
            ),
            (
                RegisterError::DmaBufPlace { port: port(), address: 0x1010, offset: 0x20, page: 4096 },
                Fault::Local,
                "a: a dma-buf's memory at 0x1010 cannot begin at offset 0x20: the offset must be a multiple of the \
                 page size, 4096 bytes, or have the same remainder as the address; export the dma-buf from the \
                 start of a page",
            ),
        ];
        for (error, fault, sentence) in cases {
            assert_eq!((error.fault(), error.to_string().as_str()), (fault, sentence));
        }
    }
}
