//! Stories of connections over the simulated fabric, one in each test.

mod handshake;
mod misuse;
mod pair;
mod promises;
mod regressions;
