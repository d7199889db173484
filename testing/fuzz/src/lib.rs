//! Everything that a peer or a file can send, as functions of bytes: the bodies of the fuzz targets (docs/fuzzing.md).
//!
//! A target takes any bytes, reads them as a script ([`input`]), and panics when something happens that no peer may
//! cause. libFuzzer calls the targets (`cargo xtask fuzz`), and so does an ordinary test, with the corpus in the
//! repository. This crate does not test the treatment of well-behaved peers; the crates' own tests do.

#![deny(unsafe_code)]

mod file;
mod handshake;
pub mod input;
mod lane;
mod options;
mod peer;
mod policy_file;
mod receive;
mod recovery;
mod scripted;
mod seed_policy;
pub mod seeds;
mod send;
mod session;
mod telemetry;
mod trace;
mod wire;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name: that of its program in `testing/fuzz/targets/fuzz_targets` and of its folder in `testing/fuzz/corpus`.
    pub name: &'static str,
    /// Runs one input. A panic is a finding.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "wire", run: wire::run },
    Target { name: "handshake", run: handshake::run },
    Target { name: "session", run: session::run },
    Target { name: "send", run: send::run },
    Target { name: "receive", run: receive::run },
    Target { name: "tcp_lane", run: lane::run },
    Target { name: "options", run: options::run },
    Target { name: "telemetry", run: telemetry::run },
    Target { name: "trace", run: trace::run },
    Target { name: "policy_file", run: policy_file::run },
    Target { name: "seed_policy", run: seed_policy::run },
];

/// Runs one input of the target called `name`.
///
/// # Panics
/// When the input is a finding, or there is no such target.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("there is no fuzz target {name}")).run)(bytes);
}
