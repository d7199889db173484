//! A host, as a file describes it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::file::read;

/// A host.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fixture {
    /// The file's name without its ending.
    #[serde(skip)]
    pub(crate) name: String,
    /// The heading on the page.
    pub(crate) title: String,
    /// The machine, as the fake libibverbs describes one.
    pub(crate) machine: String,
    /// Values that no source gives.
    pub(crate) assumed: Vec<String>,
    /// The public descriptions that the values come from.
    pub(crate) source: Vec<Source>,
    /// The RDMA devices in /sys.
    pub(crate) rdma: Vec<Rdma>,
    /// The network interfaces in /sys that are on no RDMA device.
    #[serde(default)]
    pub(crate) net: Vec<Net>,
    /// Further files below /sys with their texts.
    #[serde(default)]
    pub(crate) files: BTreeMap<String, String>,
    /// Groups of devices that a user would name in NCCL_NET_FORCE_MERGE.
    #[serde(default)]
    pub(crate) force_merge: Vec<Vec<String>>,
    /// Values of NCCL_IB_HCA to try as well.
    #[serde(default)]
    pub(crate) lists: Vec<String>,
    /// Other settings to try, each `NAME=VALUE`.
    #[serde(default)]
    pub(crate) also: Vec<String>,
}

/// A public description.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Source {
    /// Its title.
    pub(crate) title: String,
    /// Its address.
    pub(crate) address: String,
    /// The facts that it gives.
    pub(crate) gives: String,
}

/// An RDMA device in /sys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rdma {
    /// Its name.
    pub(crate) name: String,
    /// The folder of its PCI device below /sys/devices; without it the device is virtual.
    pub(crate) pci: Option<String>,
    /// The NUMA node of the PCI device.
    pub(crate) numa: Option<u32>,
    /// The network interfaces on the same PCI device.
    pub(crate) interfaces: Vec<String>,
    /// False if the files about its ports are missing.
    #[serde(default = "yes")]
    pub(crate) files: bool,
    /// The number of its ports.
    #[serde(default = "one")]
    pub(crate) ports: u32,
    /// The size of a port's GID table; that of NVIDIA's adapters without it.
    #[serde(default = "gid_places")]
    pub(crate) gid_places: u32,
    /// True if all its GIDs are of version 2 of RoCE; otherwise those of odd numbers.
    #[serde(default)]
    pub(crate) roce_v2_only: bool,
}

fn one() -> u32 {
    1
}

fn gid_places() -> u32 {
    255
}

fn yes() -> bool {
    true
}

/// A virtual network interface.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Net {
    /// Its name.
    pub(crate) name: String,
    /// The interfaces that it bonds.
    #[serde(default)]
    pub(crate) members: Vec<String>,
}

impl Fixture {
    /// Reads all hosts in a folder, in the order of their names.
    pub(crate) fn all(folder: &Path) -> Result<Vec<Self>, String> {
        let cannot = |error: std::io::Error| format!("cannot list {}: {error}", folder.display());
        let mut paths = Vec::new();
        for entry in fs::read_dir(folder).map_err(cannot)? {
            paths.push(entry.map_err(cannot)?.path());
        }
        paths.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
        paths.sort_by(|one, other| one.file_stem().cmp(&other.file_stem()));
        paths.iter().map(|path| Self::read(path)).collect()
    }

    fn read(path: &Path) -> Result<Self, String> {
        let fixture: Self = toml::from_str(&read(path)?).map_err(|error| format!("{}: {error}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if fixture.source.is_empty() || fixture.assumed.is_empty() {
            return Err(format!("{}: a host names its sources and what is assumed", path.display()));
        }
        Ok(Self { name, ..fixture })
    }

    /// Returns the settings to try, each a list of variables with values: none first.
    pub(crate) fn settings(&self) -> Vec<Vec<(String, String)>> {
        let names: Vec<&str> = self.rdma.iter().rev().map(|device| device.name.as_str()).collect();
        let list = |list: String| vec![("NCCL_IB_HCA".to_owned(), list)];
        let mut settings = vec![Vec::new(), vec![("NCCL_IB_MERGE_NICS".to_owned(), "0".to_owned())]];
        settings.push(list(format!("={}", names.join(","))));
        settings.extend(self.lists.iter().cloned().map(list));
        settings.extend(self.also.iter().filter_map(|setting| {
            let (name, value) = setting.split_once('=')?;
            Some(vec![(name.to_owned(), value.to_owned())])
        }));
        settings
    }
}

/// Returns settings as a person would write them; `no setting` if there are none.
pub(crate) fn line(settings: &[(String, String)]) -> String {
    let all: Vec<String> = settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if all.is_empty() { "no setting".to_owned() } else { all.join(" ") }
}
