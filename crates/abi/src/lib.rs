//! C types: NCCL's for net v6 to v12, profiler v1 to v7 and logger, and those that our programs use to inspect our
//! plugin ([`railweave`]).
//!
//! A plugin fills these types and a host reads them; both use this crate, so that they cannot disagree. It holds only
//! layouts and numbers, and allocates nothing. The two main types are a version's function table (for instance
//! [`net::v12::Net`]) and [`NcclResult`], the result of every function in it.
//!
//! Fields have the C name in snake case (`pciPath` is `pci_path`), but a C field `type` is `kind`. Sizes and offsets
//! are those of NCCL 2.30.7's headers on x86_64 and aarch64; those of [`profiler::v7`] are 2.31's. Sizes are asserted
//! at compile time, and the offsets in [`net::parts::DeviceHandle`] too; `tests/layout.rs` and
//! `tests/profiler_layout.rs` compare every other field with tables that were measured with those headers.
#![no_std]

pub mod log;
pub mod net;
pub mod profiler;
pub mod railweave;
pub mod result;

pub use log::NcclLogger;
pub use profiler::ProfilerCallback;
pub use result::NcclResult;
