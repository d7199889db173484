//! The files of /sys that tell where a host's devices are, in a folder that takes the place of /sys.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::fixture::{Fixture, Rdma};

/// Makes the folder `root`, with the files of a host and no others.
pub(crate) fn make(fixture: &Fixture, root: &Path) -> Result<(), String> {
    let cannot = |error: io::Error| format!("cannot make the files of {} in {}: {error}", fixture.name, root.display());
    fill(fixture, root).map_err(cannot)
}

fn fill(fixture: &Fixture, root: &Path) -> io::Result<()> {
    match fs::remove_dir_all(root) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    for folder in ["class/infiniband", "class/net", "devices/virtual"] {
        fs::create_dir_all(root.join(folder))?;
    }
    for version in ["IB/RoCE v1", "RoCE v2"] {
        fs::write(shared(root, version), format!("{version}\n"))?;
    }
    for device in &fixture.rdma {
        rdma(device, root)?;
    }
    for interface in &fixture.net {
        let own = format!("devices/virtual/net/{}", interface.name);
        entry("net", &interface.name, &own, root)?;
        if !interface.members.is_empty() {
            file(root, &format!("{own}/bonding/slaves"), &interface.members.join(" "))?;
        }
        for member in &interface.members {
            let master = root.join("class/net").join(member).join("master");
            symlink(Path::new("/sys").join(&own), master)?;
        }
    }
    fixture.files.iter().try_for_each(|(path, text)| file(root, path, text))
}

fn rdma(device: &Rdma, root: &Path) -> io::Result<()> {
    let Some(pci) = &device.pci else {
        let own = format!("devices/virtual/infiniband/{}", device.name);
        entry("infiniband", &device.name, &own, root)?;
        return if device.files { ports(device, &own, root) } else { Ok(()) };
    };
    let own = format!("devices/{pci}/infiniband/{}", device.name);
    entry("infiniband", &device.name, &own, root)?;
    // As in the kernel's own tree: from the device's folder to that of its parent.
    let parent = Path::new(pci).file_name().unwrap_or_default();
    symlink(Path::new("../../..").join(parent), root.join(&own).join("device"))?;
    if let Some(numa) = device.numa {
        file(root, &format!("devices/{pci}/numa_node"), &numa.to_string())?;
    }
    if device.files {
        ports(device, &own, root)?;
    }
    for interface in &device.interfaces {
        let own = format!("devices/{pci}/net/{interface}");
        entry("net", interface, &own, root)?;
        symlink(Path::new("../../..").join(parent), root.join(&own).join("device"))?;
    }
    Ok(())
}

/// Adds the types of all entries of each port's GID table. The kernel has a file for each, also for an empty one, whose
/// reading fails there; NCCL's transport gives up if a file is missing.
fn ports(device: &Rdma, own: &str, root: &Path) -> io::Result<()> {
    for port in 1..=device.ports {
        let types = root.join(format!("{own}/ports/{port}/gid_attrs/types"));
        fs::create_dir_all(&types)?;
        for index in 0..device.gid_places {
            // A port of both versions has each address twice, first for version 1.
            let version = if device.roce_v2_only || index % 2 == 1 { "RoCE v2" } else { "IB/RoCE v1" };
            // Links, because thousands of new files cost seconds.
            fs::hard_link(shared(root, version), types.join(index.to_string()))?;
        }
    }
    Ok(())
}

/// Returns the file next to `root` that has a version of RoCE as its text.
fn shared(root: &Path, version: &str) -> PathBuf {
    root.with_file_name(version.replace(['/', ' '], "-"))
}

/// Adds the folder `own` of a device, and its entry in a class.
fn entry(class: &str, name: &str, own: &str, root: &Path) -> io::Result<()> {
    fs::create_dir_all(root.join(own))?;
    symlink(Path::new("../..").join(own), root.join("class").join(class).join(name))
}

fn file(root: &Path, path: &str, text: &str) -> io::Result<()> {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap_or(root))?;
    fs::write(path, format!("{text}\n"))
}
