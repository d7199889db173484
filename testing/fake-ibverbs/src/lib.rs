//! A fake libibverbs: RDMA within one process, without an adapter or a wire.
//!
//! [`build`] links `libibverbs-fake.so`, whose functions have the names and versions of the real library, so that
//! `railweave_fabric_verbs` and NCCL's own transport load it through `NCCL_IBVERBS_LIB`. [`FakeVerbs`] controls the
//! loaded library: it reads counters, lists open objects and cuts cables. `cargo run -p railweave-fake-ibverbs` prints
//! the library's path.
//!
//! ibv_post_send carries out a work request on the spot, by copying between two places of this process. The library is
//! therefore for tests, and for counting instructions without a wire. It is strict: a wrong attribute, key, sequence
//! number or address, which real cards may merely ignore or lose, is refused or fails with the status that the
//! specification names, and a sentence on standard error explains it. A work request keeps its place in the send queue
//! until its own completion or a later one has been polled, and a completion queue that is too small overruns. The
//! library has reliable connections, writes with and without immediate, and reads; it has no sends, atomics, completion
//! channels or address handles.
//!
//! # Describing a machine
//!
//! `RAILWEAVE_TEST_MACHINE` names a TOML file that each ibv_get_device_list reads; [`FakeVerbs::describe`] replaces it.
//! As long as the text stays the same, ports keep the changes made to them and faults keep their counts. Without a
//! description there is one device `sim0` with one active RoCE port of 100 Gbit/s, whose routable GID has index 1.
//!
//! ```toml
//! faults = [
//!     'create_qp:2:ENOMEM',                   # the second ibv_create_qp fails with this error; with * every one does
//!     'modify_qp/RTR:1:110',                  # the first ibv_modify_qp to RTR; errors by name or number
//!     'modify_qp/RTR@mlx5_0:1-5:ETIMEDOUT',   # the first five on this device
//!     'destroy_qp:*:100ms',                   # every ibv_destroy_qp takes this long; also for create_qp and modify_qp
//! ]
//!
//! [[device]]
//! name = 'mlx5_0'
//! profile = 'connectx-7'         # a kind of adapter, see below; the other keys override its values
//! guid = 0x1070fd0300a1b2c4      # from 2^63 on a string: '0xb8599f0300a1b2c4'; also the default of system_guid
//! system_guid = 0                # that of the whole adapter; some drivers report 0
//! transport = 'ib'               # ib, iwarp
//! vendor_id = 0x15b3             # vendor_part_id
//! max_inline = 220               # max_qp, max_qp_wr, max_sge (up to 32), max_cq, max_cqe, max_mr, max_pd, max_srq,
//! max_srq = 0                    # max_srq_wr, max_rd_atomic; max_srq = 0: there are no shared receive queues
//! ece = [0x15b3, 0x30000002]     # vendor and options offered; [0, 0] (default): EOPNOTSUPP
//! dma_buf = true                 # false: ibv_reg_dmabuf_mr returns EOPNOTSUPP
//! byte_counts = true             # false: receive completions report 0 bytes
//! withholds_pages = false        # true: forked children lack the pages registered after ibv_fork_init
//! data_direct = '/devices/pci'   # the result of mlx5dv_get_data_direct_sysfs_path(3); without it ENODEV
//!
//! [[device.port]]                # port 1
//! state = 'active'               # down, init, armed, active
//! link_layer = 'infiniband'      # ethernet (default), infiniband, unspecified
//! lid = 7
//! mtu = 4096                     # the active MTU; also max_mtu
//! width = 4                      # 1, 2, 4
//! speed = 'ndr'                  # sdr, edr (default), hdr, ndr
//! port_speed = 4000              # the result of ibv_query_port_speed, in units of 100 Mbit/s; without it width times
//!                                # speed; 0: EOPNOTSUPP
//! max_message = 0x40000000
//! grh_required = false
//! pkeys = [0xffff, 0x8001]
//! gid.0 = ['fe80::1', 'ib', 0]   # at this index: address, type (ib, roce1, roce2), network interface
//! gid.3 = ['10.0.0.1', 'roce2', 2]
//! gid_form = 'roce2'             # the GIDs of a RoCE port that names none: one-of-each, roce1-and-roce2, roce2
//! gid_places = 16                # the minimum size of the GID table
//! ```
//!
//! # Imitating an adapter
//!
//! A device imitates the adapter of its profile: one of the TOML files in `profiles/`, each value with its source in
//! rdma-core's providers or the kernel's drivers. A profile has the keys of a device and of its ports, and habits
//! (`src/profile.rs` explains each): sizes that the adapter rounds up, requests that it refuses or ignores, fields that
//! it leaves unset. A device that names no profile takes the one in the variable `RAILWEAVE_TEST_PROFILE`; without that
//! variable it takes `plain`, which is strict and imitates no adapter.
//!
//! [`build_without`] leaves out functions that an older library lacks. The same file also serves as libmlx5, for the
//! three functions of Data Direct; it supports devices whose profile has the habit `libmlx5`.

mod complaints;
mod data_path;
mod description;
mod devices;
mod events;
mod exports;
mod faults;
mod gids;
mod inspection;
mod library;
mod lifecycle;
mod loaded;
mod memory;
mod mirrors;
mod pages;
mod pairs;
mod paths;
mod profile;
mod queues;
mod regions;
mod reports;
mod requests;
mod spin;
mod transitions;
mod values;
mod wire;
mod world;

pub use library::{LinkError, build, build_without, link};
pub use loaded::{FakeVerbs, LoadError};
pub use profile::profiles;
pub use reports::{Counts, Open, QpReport};
