//! The whole plugin over RDMA: both ends of each connection in one process, on machines of the fake libibverbs. Its
//! work requests are counted, its cables are cut, and at the end nothing may be left open.

#[path = "../common/mod.rs"]
mod common;

mod breaking;
mod counts;
mod events;
mod flush;
mod forks;
mod ladder;
mod lasting;
mod machine;
mod promises;
mod recovery;
mod setup;
mod strangers;
mod traffic;
