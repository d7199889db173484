//! `railweave top`, with files as processes write them: its lines, and its screen on a terminal of our own.

mod host;
mod lines;
mod screens;
mod terminal;
