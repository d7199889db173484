//! NCCL's own IB transport: imitations of NCCL's library, built by the C compiler like the real one.

use railweave_bench::nccl::{NcclError, load};
use railweave_nccl_host::NetApi;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library with NCCL's symbols, both exported and local ones. Each test chooses `WORDS`, `NAME`, `FIRST` and `COUNT`.
const SOURCE: &str = r#"
#include <stddef.h>
#include <stdio.h>

typedef int (*function)();

int ncclGetVersion(int *version) { *version = 23203; return 0; }
/* NCCL has one such function for each version of plugins. */
__attribute__((used)) static void *getNcclNet_v9(void *library) { return library; }
__attribute__((used)) static void *getNcclNet_v12(void *library) { return library; }

static int init(void **context) { *context = NULL; return 0; }
static int devices(int *count) { *count = COUNT; return 0; }
static int finalize(void *context) { return context != NULL; }

static struct { const char *name; function functions[WORDS - 1]; }
    ncclNetIb __attribute__((used)) = { NAME, { (function)FIRST, (function)devices, [19] = (function)finalize } };
"#;

/// Compiles the imitation into a file of its own.
fn library(test: &str, words: usize, name: &str, first: &str, count: i32, flags: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, library) = (folder.join(format!("{test}.c")), folder.join(format!("lib{test}.so")));
    std::fs::write(&source, SOURCE).unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args(["-shared", "-fPIC", "-w"]).args(flags);
    command.arg(format!("-DWORDS={words}")).arg(format!("-DNAME={name}"));
    command.arg(format!("-DFIRST={first}")).arg(format!("-DCOUNT={count}"));
    let status = command.args([OsStr::new("-o"), library.as_os_str(), source.as_os_str()]).status();
    assert!(status.expect("a C compiler").success());
    library
}

fn refused(library: &Path) -> NcclError {
    let error = load(library).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&library.display().to_string()) && text.contains("libnccl.so.2"), "{text}");
    error
}

fn refused_table(library: &Path, reason: &str) {
    match refused(library) {
        NcclError::NoTable { what, .. } => assert_eq!(what, reason),
        error => panic!("unexpected: {error}"),
    }
}

#[test]
fn a_table_that_is_not_exported_is_found_and_called() {
    let plugin = load(&library("driven", 22, "\"IB\"", "init", 3, &[])).unwrap();
    assert_eq!((plugin.name(), plugin.version(), plugin.versions()), ("IB", 12, [12].as_slice()));
    let net = plugin.init(7, None).unwrap();
    assert_eq!(net.devices().unwrap(), 3);
    net.finalize().unwrap();
}

#[test]
fn a_transport_without_devices_says_which_library_and_which_call() {
    let path = library("idle", 22, "\"IB\"", "init", 0, &[]);
    let error = load(&path).unwrap().init(7, None).unwrap_err().to_string();
    assert!(error.contains(&path.display().to_string()) && error.contains("devices returned 0"), "{error}");
    assert!(error.contains("no active port"), "{error}");
}

#[test]
fn a_stripped_library_is_told_from_a_foreign_one() {
    let stripped = refused(&library("stripped", 22, "\"IB\"", "init", 3, &["-s"]));
    assert!(matches!(stripped, NcclError::Stripped { .. }), "{stripped}");
    let foreign = refused(&library("foreign", 22, "\"IB\"", "init", 3, &["-DncclGetVersion=other"]));
    assert!(matches!(foreign, NcclError::Foreign { .. }), "{foreign}");
    let unreadable = refused(Path::new("/nowhere/libnccl.so.2"));
    assert!(matches!(unreadable, NcclError::Unreadable { .. }), "{unreadable}");
    assert!(matches!(refused(Path::new("Cargo.toml")), NcclError::Unreadable { .. }));
}

#[test]
fn a_table_that_cannot_be_right_is_never_called() {
    let size = library("size", 23, "\"IB\"", "init", 3, &[]);
    refused_table(&size, "its size is wrong");
    refused_table(&library("name", 22, "\"IBX\"", "init", 3, &[]), "it does not begin with its name");
    refused_table(&library("null", 22, "NULL", "init", 3, &[]), "it does not begin with its name");
    // A function of another library, data of this one, and a number that is no address.
    for (test, first) in [("outside", "puts"), ("data", "&ncclNetIb"), ("number", "7")] {
        let library = library(test, 22, "\"IB\"", first, 3, &[]);
        refused_table(&library, "it has a pointer that does not lead to code of the library");
    }
}

#[test]
fn a_version_that_this_program_does_not_know_is_named() {
    let library = library("future", 22, "\"IB\"", "init", 3, &["-DgetNcclNet_v12=getNcclNet_v13"]);
    let text = refused(&library).to_string();
    assert!(text.contains("not a usable table of net v13") && text.contains("knows net v6 to v12"), "{text}");
}
