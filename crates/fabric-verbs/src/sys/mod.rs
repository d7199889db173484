//! libibverbs as C sees it: its types, its constants and its functions, written by hand.
//!
//! It holds only the functions that this fabric calls, and their types. `tests/layout.rs` compares every size, offset
//! and value with the installed `<infiniband/verbs.h>` (rdma-core 44 and later). Names are the header's without their
//! `ibv_`; the manual page of the function that takes a type explains its fields.

mod constants;
mod functions;
mod mlx5;
mod types;

pub use constants::*;
pub use functions::{Functions, LibraryError};
pub use mlx5::{Mlx5Functions, REG_DMABUF_ACCESS_DATA_DIRECT};
pub use types::*;
