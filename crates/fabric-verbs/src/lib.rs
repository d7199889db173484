//! Rails over RDMA: InfiniBand and RoCE through libibverbs, which is loaded at run time.
//!
//! The hardware edge is a ladder. [`sys`] holds C's types and functions; `device`, `memory` and `queue_pair` own what the
//! library hands out and destroy it in the right order; [`VerbsDomain`] and [`VerbsRail`] are the fabric. What a machine
//! has is in `discovery`.

pub mod sys;
