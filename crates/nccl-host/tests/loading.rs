//! The errors that a user sees when a plugin cannot be loaded.

use railweave_nccl_host::{LoadError, Plugin};
use std::path::Path;

#[test]
fn a_missing_file_is_named_with_what_to_try() {
    let error = Plugin::load(Path::new("/nowhere/libnccl-net.so"), None).unwrap_err();
    assert!(matches!(error, LoadError::Missing { .. }));
    let text = error.to_string();
    assert!(text.contains("/nowhere/libnccl-net.so") && text.contains("cargo build"), "{text}");
}

#[test]
fn a_file_that_is_no_library_says_what_the_linker_says() {
    let error =
        Plugin::load(Path::new(file!()), None).or_else(|_| Plugin::load(Path::new("Cargo.toml"), None)).unwrap_err();
    assert!(matches!(error, LoadError::Unloadable { .. }), "{error}");
    assert!(error.to_string().contains("Cargo.toml"), "{error}");
}

#[test]
fn a_library_that_is_no_plugin_names_the_symbols() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("/libc.so"));
    let error = Plugin::load(Path::new(libc.expect("this test runs with a libc.so")), None).unwrap_err();
    assert!(matches!(error, LoadError::NoPlugin { .. }), "{error}");
    assert!(error.to_string().contains("ncclNetPlugin_v12 down to ncclNetPlugin_v6"), "{error}");
}
