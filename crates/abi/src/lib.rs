//! C types: NCCL's for net v6 to v12, profiler and logger, and those by which our programs look into our own libraries
//! ([`railweave`], [`fake_ibverbs`]).
//!
//! A plugin fills these types, a host reads them; both use this crate, so that the two cannot disagree. It holds
//! layouts and numbers only: no function calls anything, nothing allocates. The two main types are a version's function
//! table (for instance [`net::v12::Net`]) and [`NcclResult`], the answer of every function in it.
//!
//! Fields have the C name in snake case (`pciPath` is `pci_path`). Sizes and offsets are those of the x86_64 and
//! aarch64 headers of NCCL 2.30.7; sizes are asserted here at compile time, and `tests/layout.rs` compares every field
//! with the table that was measured against those headers.
#![no_std]

pub mod fake_ibverbs;
pub mod log;
pub mod net;
pub mod profiler;
pub mod railweave;
pub mod result;

pub use log::NcclLogger;
pub use profiler::ProfilerCallback;
pub use result::NcclResult;
