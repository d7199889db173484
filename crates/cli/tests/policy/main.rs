//! `railweave policy` and `railweave completions`, with files as processes write them, and real agents.

mod agents;
mod completions;
mod files;
mod host;
mod others;
mod rules;
mod sockets;
