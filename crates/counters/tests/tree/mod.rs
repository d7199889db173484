//! A file system's root for tests, with the files that the kernel shows of RDMA ports and interfaces.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory in the place of `/`, which is removed with this value.
pub(crate) struct Tree(PathBuf);

impl Tree {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("railweave-counters-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(unique);
        fs::create_dir_all(&root).unwrap();
        Self(root)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    /// Moves a directory, which keeps its inode.
    pub(crate) fn rename(&self, from: &str, to: &str) -> &Self {
        fs::rename(self.0.join(from), self.0.join(to)).unwrap();
        self
    }

    pub(crate) fn files(&self, directory: &str, files: &[(&str, &str)]) -> &Self {
        for (name, content) in files {
            self.file(&format!("{directory}/{name}"), content);
        }
        self
    }

    pub(crate) fn remove(&self, path: &str) -> &Self {
        let path = self.0.join(path);
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        removed.unwrap();
        self
    }

    /// Adds a port of an mlx5 device, whose GID table begins with an empty entry and then has `interface`.
    pub(crate) fn mlx5_port(&self, device: &str, number: u8, interface: &str) -> &Self {
        let port = format!("sys/class/infiniband/{device}/ports/{number}");
        self.file(&format!("{port}/gid_attrs/ndevs/1"), format!("{interface}\n"))
            .files(
                &port,
                &[
                    ("state", "4: ACTIVE\n"),
                    ("phys_state", "5: LinkUp\n"),
                    ("rate", "100 Gb/sec (4X EDR)\n"),
                    ("gid_attrs/ndevs/0", ""),
                    ("counters/port_rcv_data", "1000\n"),
                    ("counters/port_xmit_data", "2000\n"),
                    ("counters/port_rcv_packets", "30\n"),
                    ("counters/port_xmit_wait", "77\n"),
                    ("counters/link_downed", "1\n"),
                    ("counters/a_counter_of_the_future", "5\n"),
                    ("hw_counters/rp_cnp_handled", "11\n"),
                    ("hw_counters/np_ecn_marked_roce_packets", "12\n"),
                    ("hw_counters/np_cnp_sent", "13\n"),
                    ("hw_counters/out_of_sequence", "14\n"),
                    ("hw_counters/local_ack_timeout_err", "15\n"),
                    ("hw_counters/rx_icrc_encapsulated", "16\n"),
                    ("hw_counters/lifespan", "10\n"),
                ],
            )
            .files(
                &format!("sys/class/infiniband/{device}/device"),
                &[
                    ("current_link_speed", "8.0 GT/s PCIe\n"),
                    ("max_link_speed", "16.0 GT/s PCIe\n"),
                    ("current_link_width", "16\n"),
                    ("max_link_width", "16\n"),
                ],
            )
    }

    /// Adds a device of software RoCE, over an interface. It has no directory `counters`, and no PCI device.
    pub(crate) fn rxe(&self, device: &str, interface: &str) -> &Self {
        let port = format!("sys/class/infiniband/{device}/ports/1");
        self.file(&format!("{port}/gid_attrs/ndevs/0"), format!("{interface}\n")).files(
            &port,
            &[
                ("state", "4: ACTIVE\n"),
                ("phys_state", "5: LinkUp\n"),
                ("rate", "2.5 Gb/sec (1X SDR)\n"),
                ("hw_counters/sent_pkts", "21\n"),
                ("hw_counters/rcvd_pkts", "22\n"),
                ("hw_counters/completer_retry_err", "23\n"),
                ("hw_counters/rcvd_seq_err", "24\n"),
                ("hw_counters/link_downed", "25\n"),
                ("hw_counters/ack_deferred", "26\n"),
                ("hw_counters/lifespan", "10\n"),
            ],
        )
    }

    /// Adds an interface that is up and has received and sent these numbers of bytes.
    pub(crate) fn interface(&self, name: &str, received: u64, sent: u64) -> &Self {
        let directory = format!("sys/class/net/{name}");
        self.file(&format!("{directory}/statistics/rx_bytes"), format!("{received}\n"))
            .file(&format!("{directory}/statistics/tx_bytes"), format!("{sent}\n"))
            .files(
                &directory,
                &[
                    ("type", "1\n"),
                    ("operstate", "up\n"),
                    ("carrier", "1\n"),
                    ("speed", "10000\n"),
                    ("statistics/rx_dropped", "3\n"),
                    ("statistics/collisions", "9\n"),
                ],
            )
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
