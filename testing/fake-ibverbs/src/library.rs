//! Links the shared library: versioned names need a version script, which shared libraries linked by rustc cannot have.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// The name of the archive that cargo builds from this crate, without cargo's suffix.
const ARCHIVE: &str = "librailweave_fake_ibverbs";

/// The functions of libibverbs by version: rdma-core, libibverbs/libibverbs.map.in. Each version contains those before
/// it.
const VERSIONS: &[(&str, &str)] = &[
    (
        "IBVERBS_1.1",
        "ibv_get_device_list ibv_free_device_list ibv_get_device_name ibv_open_device ibv_close_device \
         ibv_get_async_event ibv_ack_async_event ibv_query_device ibv_query_port ibv_query_gid ibv_query_pkey \
         ibv_alloc_pd ibv_dealloc_pd ibv_reg_mr ibv_dereg_mr ibv_create_cq ibv_destroy_cq ibv_create_srq \
         ibv_destroy_srq ibv_create_qp ibv_modify_qp ibv_query_qp ibv_destroy_qp ibv_fork_init ibv_event_type_str",
    ),
    ("IBVERBS_1.8", "ibv_reg_mr_iova2"),
    ("IBVERBS_1.10", "ibv_query_ece ibv_set_ece"),
    ("IBVERBS_1.11", "_ibv_query_gid_ex"),
    ("IBVERBS_1.12", "ibv_reg_dmabuf_mr"),
    ("IBVERBS_1.16", "ibv_query_port_speed"),
    // The functions of libmlx5: rdma-core, providers/mlx5/libmlx5.map.
    ("MLX5_1.8", "mlx5dv_is_supported"),
    ("MLX5_1.25", "mlx5dv_get_data_direct_sysfs_path mlx5dv_reg_dmabuf_mr"),
];

/// The library's own function. It has a version of its own, since a version script cannot leave names unversioned and
/// hide the rest; dlsym finds it by name alone.
const OWN: &str = "fake_ibverbs";

/// The reason why the library could not be linked.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// There is no archive next to this program.
    #[error("{ARCHIVE}*.a is neither in {0} nor in its deps; run `cargo build -p railweave-fake-ibverbs`")]
    NoArchive(PathBuf),
    /// The library has no such symbol to leave out.
    #[error(
        "{0} cannot be left out: only a function of libibverbs or libmlx5 can be; `nm -D` shows those that the library \
         has, with versions that begin with IBVERBS and MLX5"
    )]
    UnknownSymbol(String),
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The linker cannot be run.
    #[error("the C compiler cc, which links the library, cannot be run: {0}; install it")]
    NoLinker(std::io::Error),
    /// The linker failed.
    #[error("linking {path} failed: {output}")]
    Linker {
        /// The library.
        path: PathBuf,
        /// The linker's standard error.
        output: String,
    },
}

/// Links the library next to this program, unless it is up to date, and returns its path.
///
/// # Panics
/// If that fails, with the reason: this is for tests.
#[must_use]
pub fn build() -> PathBuf {
    build_without(&[])
}

/// Does the same as [`build`] without these functions, such as `ibv_reg_mr_iova2`, like an older libibverbs.
///
/// # Panics
/// If that fails, with the reason: this is for tests.
#[must_use]
pub fn build_without(absent: &[&str]) -> PathBuf {
    link(absent).unwrap_or_else(|error| panic!("the fake libibverbs: {error}"))
}

/// Does the same as [`build_without`], without panicking.
///
/// # Errors
/// If the library has no function of such a name, cargo has not built the archive, or it cannot be linked.
pub fn link(absent: &[&str]) -> Result<PathBuf, LinkError> {
    let unknown =
        absent.iter().find(|&name| !VERSIONS.iter().any(|(_, names)| names.split(' ').any(|known| known == *name)));
    if let Some(unknown) = unknown {
        return Err(LinkError::UnknownSymbol((*unknown).to_owned()));
    }
    let program = std::env::current_exe().map_err(|source| file("/proc/self/exe", source))?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let (archive, built) = newest_archive(folder).ok_or_else(|| LinkError::NoArchive(folder.to_owned()))?;
    let mut absent = absent.to_vec();
    absent.sort_unstable();
    let suffix: String = absent.iter().fold(String::new(), |name, symbol| name + "-no-" + symbol);
    let library = folder.join(format!("libibverbs-fake{suffix}.so"));
    if modified(&library).is_some_and(|linked| linked > built) {
        return Ok(library);
    }
    // Each program or thread that links at the same time moves a complete library into place.
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let call = format!("{}-{}", std::process::id(), CALLS.fetch_add(1, Ordering::Relaxed));
    let script = library.with_extension(format!("{call}.map"));
    let unfinished = library.with_extension(format!("{call}.so"));
    std::fs::write(&script, version_script(&absent)).map_err(|source| file(&script, source))?;
    let mut linker = Command::new("cc");
    linker.args(["-shared", "-o"]).arg(&unfinished).arg("-Wl,-soname,libibverbs-fake.so");
    let mut versions = std::ffi::OsString::from("-Wl,--version-script=");
    versions.push(&script);
    // The library stays loaded: its thread-local values have destructors.
    linker.arg(versions).args(["-Wl,--gc-sections", "-Wl,-z,nodelete", "-Wl,-z,defs"]);
    linker.args(names(&absent).map(|name| format!("-Wl,--undefined={name}")));
    linker.arg(&archive).args(["-lgcc_s", "-lpthread", "-lm", "-ldl", "-lc"]);
    let output = linker.output().map_err(LinkError::NoLinker);
    let _ = std::fs::remove_file(&script); // a leftover file does no harm
    let output = output?;
    if !output.status.success() {
        let output = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(LinkError::Linker { path: library, output });
    }
    std::fs::rename(&unfinished, &library).map_err(|source| file(&library, source))?;
    Ok(library)
}

fn file(path: impl Into<PathBuf>, source: std::io::Error) -> LinkError {
    LinkError::File { path: path.into(), source }
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}

/// Finds the newest archive: cargo leaves those of earlier builds next to it.
fn newest_archive(folder: &Path) -> Option<(PathBuf, SystemTime)> {
    let places = [folder.to_owned(), folder.join("deps")];
    let files = places.iter().filter_map(|place| std::fs::read_dir(place).ok()).flatten().flatten();
    let archives = files.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with(ARCHIVE) && name.ends_with(".a")
    });
    archives.filter_map(|path| modified(&path).map(|time| (path, time))).max_by_key(|&(_, time)| time)
}

fn names<'all>(absent: &'all [&str]) -> impl Iterator<Item = &'static str> + 'all {
    let all = VERSIONS.iter().map(|&(_, names)| names).chain([OWN]);
    all.flat_map(|names| names.split(' ')).filter(|name| !absent.contains(name))
}

fn version_script(absent: &[&str]) -> String {
    let mut script = String::new();
    let mut before = String::new();
    for (version, names) in VERSIONS {
        let names = names.split(' ').filter(|name| !absent.contains(name));
        let names: String = names.map(|name| format!("{name}; ")).collect();
        let global = if names.is_empty() { String::new() } else { format!("global: {names}") };
        let _ = writeln!(script, "{version} {{ {global}}}{before};"); // writing to a string cannot fail
        before = format!(" {version}");
    }
    let _ = writeln!(script, "FAKE {{ global: {OWN}; local: *; }};");
    script
}
