//! The whole plugin over RDMA: both ends of each connection in one process, on machines that the fake libibverbs
//! describes. What it posts is counted, its cables are cut, and when it has finished nothing may be open.

#[path = "../common/mod.rs"]
mod common;

mod breaking;
mod counts;
mod events;
mod flush;
mod forks;
mod lasting;
mod machine;
mod promises;
mod setup;
mod strangers;
mod traffic;
