//! The committed `docs/options.md` is what the table makes.

#[test]
fn the_document_is_fresh() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/options.md");
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == railweave_options::markdown(),
        "docs/options.md is not what crates/options/src/table.rs makes; write it anew with: cargo xtask docs"
    );
}
