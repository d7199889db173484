//! `railweave policy`, with files as processes write them, and real agents.

mod agents;
mod files;
mod host;
mod others;
mod rules;
mod sockets;
