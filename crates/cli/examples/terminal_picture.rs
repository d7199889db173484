//! Makes a picture (SVG) out of a terminal's screen, for pages: `tmux capture-pane -e -p -t SESSION | cargo run -p
//! railweave-cli --example terminal_picture > docs/pictures/NAME.svg`.
#![allow(clippy::print_stdout)] // its result

use anstyle_svg::Term;
use std::io::Read;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut screen = String::new();
    std::io::stdin().read_to_string(&mut screen)?;
    println!("{}", Term::new().render_svg(&screen));
    Ok(())
}
