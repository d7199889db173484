//! The guests' boot image: Debian's stock kernel, and an initial file system with the modules that the lab needs. Both
//! are kept under `target/lab`.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The first program of a guest.
const INIT: &str = include_str!("init.sh");

/// The modules; their dependencies are added to them.
const MODULES: &[&str] = &[
    // The machine: its disk-less root, its network cards, its serial line.
    "virtio_pci",
    "virtio_net",
    "virtio_console",
    "virtio-rng",
    "9pnet_virtio",
    "9p",
    "overlay",
    // RDMA over those network cards. Its checksum module is looked up by name, so no dependency would load it.
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    // Shapers.
    "sch_tbf",
    "sch_netem",
    // Filters that drop packets.
    "sch_ingress",
    "cls_bpf",
];

/// The package that always depends on the newest stock kernel.
const NEWEST_KERNEL: &str = "linux-image-amd64";

/// The guests' boot image.
#[derive(Debug)]
pub(crate) struct Image {
    /// The kernel.
    pub(crate) kernel: PathBuf,
    /// The initial file system.
    pub(crate) initramfs: PathBuf,
}

/// Makes those parts of the image that `folder` lacks, and returns the image.
pub(crate) fn prepare(folder: &Path) -> Result<Image, String> {
    let kernels = folder.join("kernel");
    let unpacked = match fs::read_dir(&kernels).ok().and_then(|mut entries| entries.next()) {
        Some(Ok(entry)) => entry.path(),
        _ => fetch_kernel(folder, &kernels)?,
    };
    let version = only_entry(&unpacked.join("lib").join("modules"))?;
    let version = version.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let kernel = unpacked.join("boot").join(format!("vmlinuz-{version}"));
    let initramfs = folder.join("initramfs.cpio");
    let recipe = format!("{version}\n{}\n{INIT}", MODULES.join("\n"));
    let made_by = folder.join("initramfs.recipe");
    if !initramfs.is_file() || fs::read_to_string(&made_by).ok().as_ref() != Some(&recipe) {
        make_initramfs(folder, &unpacked, &version, &initramfs)?;
        fs::write(&made_by, recipe).map_err(cannot("write", &made_by))?;
    }
    Ok(Image { kernel, initramfs })
}

/// Fetches and unpacks the kernel's package without installing it. Returns the folder, which is then the only one in
/// `kernels`.
fn fetch_kernel(folder: &Path, kernels: &Path) -> Result<PathBuf, String> {
    let depends = Command::new("apt-cache").args(["depends", NEWEST_KERNEL]).output();
    let depends = depends.map_err(|error| format!("cannot run apt-cache: {error}"))?.stdout;
    let depends = String::from_utf8_lossy(&depends);
    let signed = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: ")).ok_or_else(|| {
        format!("apt-cache knows no kernel behind {NEWEST_KERNEL}; run \"apt-get update\", on Debian 12")
    })?;
    let package = format!("{signed}-unsigned");
    eprintln!("fetching {package}");
    let new = folder.join("new");
    make_folder(&new)?;
    let mut download = Command::new("apt-get");
    download.args(["download", &package]).current_dir(&new).stdin(Stdio::null()).stdout(std::io::stderr());
    run(download).map_err(|error| format!("{error}; run \"apt-get update\" and try again"))?;
    let file = only_entry(&new)?;
    let unpacked = new.join("unpacked");
    let mut unpack = Command::new("dpkg");
    unpack.arg("-x").arg(&file).arg(&unpacked);
    run(unpack)?;
    fs::create_dir_all(kernels).map_err(cannot("make", kernels))?;
    let kept = kernels.join(&package);
    fs::rename(&unpacked, &kept).map_err(cannot("make", &kept))?;
    fs::remove_dir_all(&new).map_err(cannot("remove", &new))?;
    Ok(kept)
}

fn make_initramfs(folder: &Path, unpacked: &Path, version: &str, initramfs: &Path) -> Result<(), String> {
    eprintln!("making {}", initramfs.display());
    let mut index = Command::new("depmod");
    index.arg("-b").arg(unpacked).arg(version);
    run(index)?;
    let tree = folder.join("new");
    make_folder(&tree)?;
    for folder in ["bin", "dev", "modules"] {
        make_folder(&tree.join(folder))?;
    }
    let (busybox, init) = (tree.join("bin").join("busybox"), tree.join("init"));
    fs::copy("/bin/busybox", &busybox).map_err(cannot("make", &busybox))?;
    fs::write(&init, INIT).map_err(cannot("write", &init))?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).map_err(cannot("write", &init))?;
    let mut order = String::new();
    for file in modules(unpacked, version)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let copy = tree.join("modules").join(&name);
        fs::copy(&file, &copy).map_err(cannot("make", &copy))?;
        order.push_str(&name);
        order.push('\n');
    }
    let list = tree.join("modules").join("order");
    fs::write(&list, order).map_err(cannot("write", &list))?;
    pack(&tree, initramfs)?;
    fs::remove_dir_all(&tree).map_err(cannot("remove", &tree))
}

/// Returns the files of [`MODULES`] and their dependencies, in loading order.
fn modules(unpacked: &Path, version: &str) -> Result<Vec<PathBuf>, String> {
    let mut files: Vec<PathBuf> = Vec::new();
    for module in MODULES {
        let mut show = Command::new("modprobe");
        show.args(["--set-version", version, "--show-depends", "--ignore-install", "--dirname"])
            .arg(unpacked)
            .arg(module);
        let output = show.output().map_err(|error| format!("cannot run modprobe: {error}"))?;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(format!(
                "the kernel {version} has no module {module}: {error}; remove {} and try again",
                unpacked.display()
            ));
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // Modules that are built into the kernel need no loading.
        for file in text.lines().filter_map(|line| line.strip_prefix("insmod ")).map(|file| PathBuf::from(file.trim()))
        {
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

/// Packs the folder `tree` into an archive for the kernel, in one move.
fn pack(tree: &Path, archive: &Path) -> Result<(), String> {
    let new = archive.with_extension("new");
    let output = fs::File::create(&new).map_err(cannot("write", &new))?;
    let mut command = Command::new("cpio");
    command.args(["--create", "--format=newc", "--owner=0:0", "--quiet"]).current_dir(tree);
    let spawned = command.stdin(Stdio::piped()).stdout(output).spawn();
    let mut child = spawned.map_err(|error| format!("cannot run cpio: {error}"))?;
    let names = entries_below(tree, Path::new(""))?;
    let list: String = names.iter().map(|name| format!("{}\n", name.display())).collect();
    let given = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(list.as_bytes()));
    let status = child.wait().map_err(|error| format!("cannot wait for cpio: {error}"))?;
    given.map_err(|error| format!("cpio takes no input: {error}"))?;
    if !status.success() {
        return Err(format!("cpio: {status}"));
    }
    fs::rename(&new, archive).map_err(cannot("make", archive))
}

/// Returns the paths of everything below `below` in `tree`, each folder before its entries.
fn entries_below(tree: &Path, below: &Path) -> Result<Vec<PathBuf>, String> {
    let folder = tree.join(below);
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).map_err(cannot("read", &folder))? {
        let name = below.join(entry.map_err(cannot("read", &folder))?.file_name());
        names.push(name.clone());
        if tree.join(&name).is_dir() {
            names.extend(entries_below(tree, &name)?);
        }
    }
    Ok(names)
}

fn only_entry(folder: &Path) -> Result<PathBuf, String> {
    let entries = fs::read_dir(folder).map_err(cannot("read", folder))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    match (paths.pop(), paths.is_empty()) {
        (Some(path), true) => Ok(path),
        _ => Err(format!("{} should hold exactly one entry; remove target/lab and try again", folder.display())),
    }
}

/// Runs `command`; fails unless it succeeds.
fn run(mut command: Command) -> Result<(), String> {
    let status =
        command.status().map_err(|error| format!("cannot run {}: {error}", command.get_program().display()))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}

/// Makes an empty folder, replacing an old one.
fn make_folder(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(cannot("remove", folder)(error)),
        _ => {}
    }
    fs::create_dir_all(folder).map_err(cannot("make", folder))
}

fn cannot(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> String {
    let path = path.display().to_string();
    move |error| format!("cannot {what} {path}: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_lists_folders_before_what_is_in_them() {
        let tree = std::env::temp_dir().join(format!("railweave-lab-image-{}", std::process::id()));
        make_folder(&tree.join("a").join("b")).unwrap();
        fs::write(tree.join("a").join("b").join("c"), "").unwrap();
        let names = entries_below(&tree, Path::new("")).unwrap();
        assert_eq!(names, ["a", "a/b", "a/b/c"].map(PathBuf::from));
        assert_eq!(only_entry(&tree).unwrap(), tree.join("a"));
        make_folder(&tree).unwrap();
        let error = only_entry(&tree).unwrap_err();
        assert!(error.contains("should hold exactly one entry"), "{error}");
        fs::remove_dir_all(&tree).unwrap();
    }
}
