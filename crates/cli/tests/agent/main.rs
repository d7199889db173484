//! `railweave agent`: real agents, and real jobs over TCP. Stories with traffic need root and iproute2.

mod congestion;
mod drains;
mod folders;
mod host;
mod job;
mod life;
mod policies;
mod safety;
mod scripts;
mod settings;
