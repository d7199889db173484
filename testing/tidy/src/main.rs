//! `cargo xtask tidy`: refuses mistakes that no compiler refuses and every reader stumbles over.
//!
//! These are text that is not UTF-8, cycles among the modules of a crate, lines over 120 columns, modules over 600
//! lines, references to files and headings that are not in the tree, and words that only the authors know (the table in
//! CONTRIBUTING.md). The argument is the root of the tree, by default the current folder. The program prints a line for
//! each finding, and fails if there is one.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)] // a program whose output is its result

mod cycles;
mod finding;
mod lengths;
mod references;
mod tree;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;

use finding::Finding;
use tree::Tree;

/// One check of the whole tree.
type Check = fn(&Tree) -> Vec<Finding>;

const CHECKS: [(&str, Check); 6] = [
    ("files that are not UTF-8", tree::check),
    ("cycles among modules", cycles::check),
    ("long lines", lengths::lines),
    ("long modules", lengths::modules),
    ("references to missing files", references::check),
    ("words that CONTRIBUTING.md replaces", words::check),
];

fn main() -> ExitCode {
    let root = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    match run(root) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs every check on the tree at `root`, prints the findings and returns their number.
fn run(root: PathBuf) -> Result<usize, String> {
    let tree = Tree::read(root)?;
    let mut total = 0;
    for (name, check) in CHECKS {
        let findings = check(&tree);
        for finding in &findings {
            println!("{finding}");
        }
        println!("{name}: {}", findings.len());
        total += findings.len();
    }
    Ok(total)
}
