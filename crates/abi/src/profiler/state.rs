//! The states that NCCL records for events.

use core::ffi::c_int;

/// `ncclProfilerEventState_t`: the change of an event that a record reports.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventState(pub c_int);

/// The states of [`EventType::PROXY_OP`](super::EventType::PROXY_OP). Those before [`Self::PROXY_OP_IN_PROGRESS`] are
/// of v1 to v3, where `StateArgs` then holds a `proxy_op`.
impl EventState {
    /// A buffer for a message was given to the GPU.
    pub const PROXY_OP_SEND_POSTED: Self = Self(0);
    /// A message waits for the receiver's CTS.
    pub const PROXY_OP_SEND_REM_FIFO_WAIT: Self = Self(1);
    /// A message was given to the network.
    pub const PROXY_OP_SEND_TRANSMITTED: Self = Self(2);
    /// The network is done with a message.
    pub const PROXY_OP_SEND_DONE: Self = Self(3);
    /// A receive was given to the network.
    pub const PROXY_OP_RECV_POSTED: Self = Self(4);
    /// A message has arrived.
    pub const PROXY_OP_RECV_RECEIVED: Self = Self(5);
    /// A message is visible to the GPU.
    pub const PROXY_OP_RECV_TRANSMITTED: Self = Self(6);
    /// The GPU is done with a message.
    pub const PROXY_OP_RECV_DONE: Self = Self(7);
    /// The proxy has begun (v4 on).
    pub const PROXY_OP_IN_PROGRESS: Self = Self(19);
}

/// The states of [`EventType::PROXY_STEP`](super::EventType::PROXY_STEP). From v4 on, `StateArgs` holds a `proxy_step`.
impl EventState {
    /// The step waits for data from the GPU.
    pub const PROXY_STEP_SEND_GPU_WAIT: Self = Self(8);
    /// The step waits until the network takes the message; the wait for the receiver is part of it (v4 on).
    pub const PROXY_STEP_SEND_PEER_WAIT: Self = Self(20);
    /// The step waits until the network is done with the message.
    pub const PROXY_STEP_SEND_WAIT: Self = Self(9);
    /// The step waits for the message.
    pub const PROXY_STEP_RECV_WAIT: Self = Self(10);
    /// The step waits until the message is visible to the GPU.
    pub const PROXY_STEP_RECV_FLUSH_WAIT: Self = Self(11);
    /// The step waits until the GPU is done with the message.
    pub const PROXY_STEP_RECV_GPU_WAIT: Self = Self(12);
}

/// The states of [`EventType::PROXY_CTRL`](super::EventType::PROXY_CTRL). `StateArgs` holds a `proxy_ctrl`.
impl EventState {
    /// The progress thread has nothing to do.
    pub const PROXY_CTRL_IDLE: Self = Self(13);
    /// The progress thread has work again.
    pub const PROXY_CTRL_ACTIVE: Self = Self(14);
    /// The progress thread goes to sleep.
    pub const PROXY_CTRL_SLEEP: Self = Self(15);
    /// The progress thread was woken.
    pub const PROXY_CTRL_WAKEUP: Self = Self(16);
    /// The progress thread takes over new operations.
    pub const PROXY_CTRL_APPEND: Self = Self(17);
    /// The progress thread has taken them over.
    pub const PROXY_CTRL_APPEND_END: Self = Self(18);
}

/// The states of the other kinds of events.
impl EventState {
    /// A net plugin changes its event (v4 on); `StateArgs` holds a `net_plugin`.
    pub const NET_PLUGIN_UPDATE: Self = Self(21);
    /// The GPU is done with the work of a channel (v4 on); `StateArgs` holds a `kernel_ch`.
    pub const KERNEL_CH_STOP: Self = Self(22);
    /// The user's group has begun (v5 on); there are no arguments.
    pub const GROUP_START_API_STOP: Self = Self(23);
    /// The user ends the group (v5 on); there are no arguments.
    pub const GROUP_END_API_START: Self = Self(24);
    /// A collective by copy engines begins (v6 on).
    pub const CE_COLL_START: Self = Self(25);
    /// A collective by copy engines is complete (v6 on).
    pub const CE_COLL_COMPLETE: Self = Self(26);
    /// A synchronisation of copy engines begins (v6 on).
    pub const CE_SYNC_START: Self = Self(27);
    /// A synchronisation of copy engines is complete (v6 on).
    pub const CE_SYNC_COMPLETE: Self = Self(28);
    /// A batch of copies begins (v6 on).
    pub const CE_BATCH_START: Self = Self(29);
    /// A batch of copies is complete (v6 on).
    pub const CE_BATCH_COMPLETE: Self = Self(30);
    /// The GPU is done with a phase of a kernel (v7 on); `StateArgs` holds a `kernel_ch`.
    pub const KERNEL_PHASE_STOP: Self = Self(31);
}
