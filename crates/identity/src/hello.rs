//! The HELLO of this process, and random bytes.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;

use railweave_transport::{Hello, PROTOCOL_VERSION, ProcessId};

/// The bit of TCP in HELLO's fabrics.
pub const TCP: u8 = 1;

/// The bit of verbs in HELLO's fabrics.
pub const VERBS: u8 = 2;

/// Returns random bytes from the kernel.
///
/// # Panics
/// If the kernel has none, neither by getrandom(2) nor in /dev/urandom.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Fails only if neither getrandom(2) nor /dev/urandom can be used. Before the kernel's generator is seeded at boot,
    // the call waits.
    getrandom::fill(&mut bytes).expect("the kernel gives no random bytes (getrandom)");
    bytes
}

/// Returns a random number.
pub fn random_u64() -> u64 {
    u64::from_le_bytes(random())
}

/// Returns this process's HELLO, except the nonce and the wanted process, which each session fills in, and the control
/// port, which the process may not have yet. `mode` is 0 if
/// each port is a device, 1 if Railweave fuses them; `fabrics` has the bits [`TCP`] and [`VERBS`].
pub fn hello(mode: u8, fabrics: u8, keyed: bool) -> Hello {
    Hello {
        protocol_min: PROTOCOL_VERSION,
        protocol_max: PROTOCOL_VERSION,
        features: if keyed { Hello::KEYED } else { 0 },
        mode,
        fabrics,
        network: network(),
        process: ProcessId(random()),
        wanted: ProcessId::default(),
        nonce: [0; 32],
        pid: std::process::id(),
        rank: from_env(&["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"]),
        world: from_env(&["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"]),
        host: host(),
        build: env!("CARGO_PKG_VERSION").to_owned(),
        control_port: 0,
    }
}

fn from_env(names: &[&str]) -> i32 {
    let value = |name: &&str| env::var(name).ok().and_then(|value| value.trim().parse().ok());
    names.iter().find_map(value).filter(|number: &i32| *number >= 0).unwrap_or(-1)
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "unknown-host".to_owned() } else { name.to_owned() }
}

/// Returns a number that two processes share only if they are on one machine and in one network namespace: a hash of
/// the kernel's boot id and the namespace's inode. Without /proc it is random, so that two machines are never taken for
/// one.
fn network() -> u64 {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let namespace = fs::metadata("/proc/self/ns/net");
    let (Ok(boot), Ok(namespace)) = (boot, namespace) else {
        return random_u64();
    };
    let mut hasher = DefaultHasher::new();
    (boot.trim(), namespace.ino()).hash(&mut hasher);
    hasher.finish()
}
