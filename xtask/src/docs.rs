//! The pages that are generated from the code.

mod settings;

use crate::process::{Outcome, root};
use std::fs;

/// One page.
struct Page {
    /// Its path in the repository.
    path: &'static str,
    /// Generates its whole text.
    text: fn() -> String,
}

const PAGES: &[Page] = &[Page { path: "docs/options.md", text: settings::markdown }];

/// Writes every page.
pub(crate) fn write() -> Outcome {
    for Page { path, text } in PAGES {
        fs::write(root().join(path), text()).map_err(|error| format!("cannot write {path}: {error}"))?;
        println!("wrote {path}");
    }
    Ok(())
}

/// Checks that every page is up to date with the code.
pub(crate) fn check() -> Outcome {
    let fresh = |page: &Page| fs::read_to_string(root().join(page.path)).is_ok_and(|text| text == (page.text)());
    match PAGES.iter().find(|page| !fresh(page)) {
        None => Ok(()),
        Some(Page { path, .. }) => Err(format!("{path} is not what the code generates; run: cargo xtask docs")),
    }
}
