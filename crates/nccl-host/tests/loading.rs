//! The errors that a user sees when a plugin cannot be loaded.

use railweave_nccl_host::profiler::ProfilerPlugin;
use railweave_nccl_host::{LoadError, Plugin};
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// Returns the path of a library without any plugin.
fn libc() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("/libc.so"));
    libc.expect("this test runs with a libc.so").into()
}

#[test]
fn a_library_that_is_no_plugin_names_the_symbols() {
    let error = Plugin::load(&libc(), None).unwrap_err();
    assert!(matches!(error, LoadError::NoPlugin { .. }), "{error}");
    assert!(error.to_string().contains("ncclNetPlugin_v12 down to ncclNetPlugin_v6"), "{error}");
    let error = ProfilerPlugin::load(&libc(), None).unwrap_err();
    assert!(matches!(error, LoadError::NoProfiler { .. }), "{error}");
    assert!(error.to_string().contains("ncclProfiler_v7 down to ncclProfiler_v1"), "{error}");
}

#[test]
fn a_profiler_is_loaded_in_the_newest_or_the_requested_version() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, library) = (folder.join("profilers.c"), folder.join("libprofilers.so"));
    let table = |version| format!("const void *ncclProfiler_v{version}[6] = {{\"version {version}\"}};\n");
    std::fs::write(&source, table(2) + &table(5)).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(built.expect("a C compiler").success());
    let newest = ProfilerPlugin::load(&library, None).unwrap();
    assert_eq!((newest.name(), newest.version(), newest.versions()), ("version 5", 5, &[5, 2][..]));
    let old = ProfilerPlugin::load(&library, Some(2)).unwrap();
    assert_eq!((old.name(), old.version(), old.path()), ("version 2", 2, &*library));
    let error = ProfilerPlugin::load(&library, Some(6)).unwrap_err().to_string();
    assert!(error.contains("no ncclProfiler_v6: it exports v5, v2"), "{error}");
    let error = ProfilerPlugin::load(Path::new("/nowhere/libprofiler.so"), None).unwrap_err();
    assert!(matches!(error, LoadError::Missing { .. }), "{error}");

    // The plugin's callbacks are numbered, and each that ends makes room for another.
    let mut loaded: Vec<ProfilerPlugin> = (2..32).map(|_| ProfilerPlugin::load(&library, None).unwrap()).collect();
    let error = ProfilerPlugin::load(&library, None).unwrap_err().to_string();
    assert!(error.contains("32 profilers are loaded"), "{error}");
    loaded.pop();
    assert!(ProfilerPlugin::load(&library, None).is_ok());
}
