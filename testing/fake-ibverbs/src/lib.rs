//! A fake libibverbs: RDMA in one process, without a card and without time passing.
//!
//! [`build`] links `libibverbs-fake.so`, whose functions have the names and versions of the real library, so that
//! `railweave_fabric_verbs` and NCCL's own transport load it by `NCCL_IBVERBS_LIB`;
//! `cargo run -p railweave-fake-ibverbs` prints where it is. [`FakeVerbs`] looks into the loaded library: it counts,
//! lists what is open, and breaks cables.
//!
//! A work request is carried out inside ibv_post_send, by copying from one place of this process to another. So it is
//! for tests, and for counting instructions without a wire. It is strict: what real cards merely ignore or lose, a
//! wrong attribute, key, sequence number or address, is refused, or fails with the status that the specification
//! names, and is said in words on standard error. A work request takes its place in the send queue until a completion
//! behind it has been polled, and a completion queue that is too small overruns. There are reliable connections, writes
//! with and without immediate, and reads; there are no sends, atomics, completion channels or address handles.
//!
//! # Describing a machine
//!
//! `RAILWEAVE_TEST_MACHINE` names a TOML file that is read with each ibv_get_device_list ([`FakeVerbs::describe`] takes
//! its place). If its text is the same as before, ports keep what was changed and failures go on being counted. Without
//! it there is one device `sim0` with one active RoCE port of 100 Gbit/s, whose routable GID has index 1.
//!
//! ```toml
//! faults = [
//!     'create_qp:2:ENOMEM',                   # the second call of ibv_create_qp fails so; * instead of 2: every call
//!     'modify_qp/RTR:1:110',                  # the first ibv_modify_qp to RTR; errors by name or number
//!     'modify_qp/RTR@mlx5_0:1-5:ETIMEDOUT',   # the first five on this device
//!     'destroy_qp:*:100ms',                   # every ibv_destroy_qp takes so long; also create_qp and modify_qp
//! ]
//!
//! [[device]]
//! name = 'mlx5_0'
//! profile = 'connectx-7'         # a kind of adapter, see below; all that follows changes it
//! guid = 0x1070fd0300a1b2c4      # system_guid is the same unless given
//! transport = 'ib'               # ib, iwarp
//! vendor_id = 0x15b3             # vendor_part_id
//! max_inline = 220               # max_qp, max_qp_wr, max_sge (up to 32), max_cq, max_cqe, max_mr, max_pd, max_srq,
//! max_srq = 0                    # max_srq_wr, max_rd_atomic; max_srq = 0: there are no shared receive queues
//! ece = [0x15b3, 0x30000002]     # vendor and options offered; [0, 0] (the usual): EOPNOTSUPP
//! dma_buf = true                 # false: ibv_reg_dmabuf_mr returns EOPNOTSUPP
//! byte_counts = true             # false: receive completions say 0 bytes
//! withholds_pages = false        # true: after ibv_fork_init children miss the pages that are registered
//! data_direct = '/devices/pci'   # what mlx5dv_get_data_direct_sysfs_path(3) returns; without it ENODEV
//!
//! [[device.port]]                # port 1
//! state = 'active'               # down, init, armed, active
//! link_layer = 'infiniband'      # ethernet (the usual), infiniband, unspecified
//! lid = 7
//! mtu = 4096                     # active; max_mtu
//! width = 4                      # 1, 2, 4
//! speed = 'ndr'                  # sdr, edr (the usual), hdr, ndr
//! port_speed = 4000              # what ibv_query_port_speed says, in units of 100 Mbit/s, if not width times speed;
//!                                # 0: EOPNOTSUPP
//! max_message = 0x40000000
//! grh_required = false
//! pkeys = [0xffff, 0x8001]
//! gid.0 = ['fe80::1', 'ib', 0]   # at this index: address, type (ib, roce1, roce2), network interface
//! gid.3 = ['10.0.0.1', 'roce2', 2]
//! gid_form = 'roce2'             # without any, those of the link layer; on RoCE one-of-each, roce1-and-roce2, roce2
//! gid_places = 16                # the table's least size
//! ```
//!
//! # Being an adapter
//!
//! A device is of a kind, its profile: one of the TOML files in `profiles/`, each value with its source in rdma-core's
//! providers or the kernel's drivers. A profile has the keys of a device and of its ports, and habits (`src/profile.rs`
//! says what each means): what is rounded up, refused, ignored or left unsaid. Without a name a device has that of the
//! variable `RAILWEAVE_TEST_PROFILE`, and without that the profile `plain`: no adapter, but a strict one.
//!
//! Functions that an older library has not are left out by [`build_without`]. The same file stands in libmlx5's place
//! too, for the three functions of Data Direct: devices of the profiles with the habit `libmlx5` are its own.

mod complaints;
mod data_path;
mod description;
mod devices;
mod events;
mod exports;
mod faults;
mod inspection;
mod library;
mod lifecycle;
mod loaded;
mod memory;
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
mod wire;
mod world;

pub use library::{LinkError, build, build_without, link};
pub use loaded::{FakeVerbs, LoadError};
pub use profile::profiles;
pub use reports::{Counts, Open, QpReport, Step};
