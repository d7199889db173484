//! The subcommands, one module each.

pub(crate) mod agent;
pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod connections;
pub(crate) mod crowd;
pub(crate) mod demo;
pub(crate) mod flow;
pub(crate) mod options;
pub(crate) mod pairs;
pub(crate) mod policy;
pub(crate) mod status;
pub(crate) mod sweep;
pub(crate) mod top;
pub(crate) mod topo;
pub(crate) mod trace;
