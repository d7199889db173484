//! The judge as a program: many random worlds with a table, or one with the shares over time (docs/simulation.md).

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)] // a program whose output is its result

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use railweave_split::{Drawn, Split, Table, WINDOW, judge, judge_and_keep};

/// Judges the policy adaptive in random worlds, next to the right weights: many seeds, or one with its shares
#[derive(Debug, Parser)]
#[command(name = "cargo xtask split")]
struct Arguments {
    /// The number of worlds
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    worlds: u64,
    /// The first seed
    #[arg(long, value_name = "S", default_value_t = 1)]
    from: u64,
    /// The number of threads [default: one per processor]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Judge equal weights instead
    #[arg(long)]
    equal: bool,
    /// Let five messages travel alone first, so that idle rails tell their latency
    #[arg(long)]
    rested: bool,
    /// Play the world of the first seed only, and print the shares of the rails, a line for 32 messages
    #[arg(long, conflicts_with_all = ["worlds", "threads"])]
    shares: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let split = if arguments.equal { Split::EQUAL } else { Split::Adaptive };
    let begin = |drawn| Drawn { alone: if arguments.rested { 5 } else { 0 }, ..drawn };
    if arguments.shares {
        tell(&begin(Drawn::new(arguments.from)), split);
        return ExitCode::SUCCESS;
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.unwrap_or(processors);
    let start = Instant::now();
    let table = Table::play(arguments.from, arguments.worlds, threads, |drawn| judge(&begin(drawn), split));
    print!("{table}");
    let seconds = start.elapsed().as_secs_f64();
    println!("{seconds:.1} s, {:.0} worlds/s on {threads} threads", arguments.worlds as f64 / seconds);
    let breaches = table.breaches();
    breaches.iter().for_each(|breach| println!("{breach}"));
    if breaches.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plays one world, and prints its shares.
fn tell(drawn: &Drawn, split: Split) {
    let (verdict, sent, jump_ns) = judge_and_keep(drawn, split);
    println!("{drawn:?}\n{}, {verdict:?}", drawn.class());
    let tell_parts = |name: &str, parts: &[u64]| {
        let sum: u64 = parts.iter().sum();
        let parts: Vec<String> = parts.iter().map(|part| format!("{:.3}", *part as f64 / sum as f64)).collect();
        println!("{name:>16}  {}", parts.join("  "));
    };
    let rails = drawn.rates_kbps.len();
    tell_parts("right", &drawn.rates_kbps);
    let mut is_before = drawn.jump.is_some();
    for window in sent.chunks(WINDOW) {
        if is_before && window[0].posted_ns >= jump_ns {
            is_before = false;
            tell_parts("right", &drawn.rates_after());
        }
        let sums: Vec<u64> = (0..rails).map(|rail| window.iter().map(|message| message.shares[rail]).sum()).collect();
        tell_parts(&format!("{:.3} ms", window[0].posted_ns as f64 / 1e6), &sums);
    }
}
