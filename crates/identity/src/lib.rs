//! A process as its peers see it: its HELLO, its random bytes, and the proof that it has the shared key.
//!
//! The plugin and programs that talk to a peer as the plugin does (`railweave topo`) present themselves by it. It reads
//! the host's name, the environment's rank and the key file, and opens no socket.

#![deny(unsafe_code)]

mod hello;
mod key;

pub use hello::{TCP, VERBS, hello, random, random_u64};
pub use key::Key;
