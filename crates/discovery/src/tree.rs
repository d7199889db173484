//! A file system's root for tests, with the files that the kernel would show there.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory in the place of `/`, which is removed with this value.
pub(crate) struct Tree(PathBuf);

impl Tree {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("railweave-discovery-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(unique);
        fs::create_dir_all(&root).unwrap();
        Self(root)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.0
    }

    pub(crate) fn directory(&self, path: &str) -> &Self {
        fs::create_dir_all(self.0.join(path)).unwrap();
        self
    }

    pub(crate) fn file(&self, path: &str, content: &str) -> &Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    /// Adds a network interface with these files, by their names.
    pub(crate) fn interface(&self, name: &str, files: &[(&str, &str)]) -> &Self {
        let directory = format!("sys/class/net/{name}");
        for (file, content) in files {
            self.file(&format!("{directory}/{file}"), content);
        }
        self.directory(&directory)
    }

    /// Adds the entry `name` of `class`, a directory of /sys/class, for a device below `path` of /sys/devices.
    pub(crate) fn device(&self, class: &str, name: &str, path: &str) -> &Self {
        let (entry, device) = (format!("sys/class/{class}/{name}"), format!("sys/devices/{path}"));
        self.directory(&entry).directory(&device);
        std::os::unix::fs::symlink(self.0.join(device), self.0.join(entry).join("device")).unwrap();
        self
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
