//! Railweave's side, without NCCL's library: against what NCCL's transport answered when it was last asked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_railweave-view");

/// The folder of this package.
const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

/// Returns the built plugin: the one that the whole test run names, or the one that cargo builds next to this program's
/// tests.
fn library() -> PathBuf {
    std::env::var_os("RAILWEAVE_TEST_LIB")
        .map_or_else(|| std::env::current_exe().unwrap().with_file_name("libnccl_net_railweave.so"), PathBuf::from)
}

/// Compares, with the hosts of a package. Returns the complaints, `None` if this user cannot ask.
fn complaints(package: &Path, name: &str) -> Option<String> {
    let page = Path::new(PACKAGE).join("../../docs/nccl-view.md");
    let mut command = Command::new(PROGRAM);
    command.arg("compare").arg("--plugin").arg(library()).arg("--package").arg(package).arg("--page").arg(page);
    command.arg("--folder").arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)).arg("--check");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.starts_with("this user may not create namespaces") {
        eprintln!("skipped: {said}");
        return None;
    }
    assert_eq!(output.status.success(), said.is_empty(), "{said}");
    Some(said)
}

#[test]
fn the_page_has_railweaves_answers_of_today() {
    if let Some(said) = complaints(Path::new(PACKAGE), "today") {
        assert!(said.is_empty(), "{said}");
    }
}

/// Copies the package's data, with one host alone and one replacement in its file.
fn changed(name: &str, host: &str, from: &str, to: &str) -> PathBuf {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("package-{name}"));
    fs::create_dir_all(copy.join("fixtures")).unwrap();
    for file in ["nccl.json", "differences.toml"] {
        fs::copy(Path::new(PACKAGE).join(file), copy.join(file)).unwrap();
    }
    let path = Path::new("fixtures").join(host).with_extension("toml");
    let text = fs::read_to_string(Path::new(PACKAGE).join(&path)).unwrap();
    assert_eq!(text.matches(from).count(), 1, "{host} has {from:?} once");
    fs::write(copy.join(path), text.replace(from, to)).unwrap();
    copy
}

#[test]
fn a_host_that_is_not_as_nccl_saw_it_is_a_complaint() {
    let cases = [
        (
            "function",
            "connectx-6-two-ports",
            "0000:4b:00.0\"",
            "0000:4b:00.7\"",
            "connectx-6-two-ports, no setting, device 0: name is mlx5_0 in NCCL and mlx5_1 in Railweave",
        ),
        (
            "bus",
            "dgx-h100",
            "0000:db:00.0/0000:dc:00.0",
            "0000:db:00.0/0000:dd:00.0",
            "dgx-h100, no setting, device 11: pciPath is ",
        ),
        (
            "memory",
            "bond",
            "module/nvidia_peermem/version",
            "module/nvidia_peermem_no_more/version",
            "bond, no setting, device 0: ptrSupport is HOST+CUDA+DMABUF in NCCL and HOST+DMABUF in Railweave",
        ),
    ];
    for (name, host, from, to, complaint) in cases {
        if let Some(said) = complaints(&changed(name, host, from, to), name) {
            assert!(said.contains(complaint), "{name}: {said}");
        }
    }
}
