//! The wire: what one work request does to the memory and the queues of both ends. It takes no time.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

use railweave_fabric_verbs::sys;

use crate::completions::Entry;
use crate::pairs::{MAX_SGES, QueuePair, Sends};
use crate::placing::place;
use crate::regions::{find_local, find_remote};
use crate::reports::Counts;

/// In `Wc::wc_flags`: the completion has an immediate.
const WC_WITH_IMM: u32 = 1 << 1;

/// Junk in a field that nobody fills, so that whoever reads it is found out.
const UNSAID: u32 = u32::MAX;

/// One work request.
#[derive(Clone, Copy)]
pub(crate) struct Work<'request> {
    pub(crate) request: &'request sys::SendWr,
    pub(crate) pieces: &'request [sys::Sge],
}

/// Why work failed.
pub(crate) struct Failure {
    pub(crate) status: c_int,
    /// The peer, ...
    pub(crate) peer: u32,
    /// ... and the event with which its queue pair ends too, if it does.
    pub(crate) event: Option<c_int>,
}

impl<'request> Work<'request> {
    /// The request with the pieces that it names.
    ///
    /// # Safety
    /// `sg_list` must have `num_sge` entries, a number that is not negative.
    #[inline]
    pub(crate) unsafe fn of(request: &'request sys::SendWr) -> Self {
        let pieces = if request.num_sge == 0 {
            &[][..]
        } else {
            // SAFETY: the caller vouches for it.
            unsafe { std::slice::from_raw_parts(request.sg_list, request.num_sge as usize) }
        };
        Self { request, pieces }
    }

    /// The request with other pieces.
    pub(crate) fn new(request: &'request sys::SendWr, pieces: &'request [sys::Sge]) -> Self {
        Self { request, pieces }
    }

    #[inline]
    pub(crate) fn inline(&self) -> bool {
        self.request.send_flags & sys::SEND_INLINE != 0
    }

    /// All bytes of it.
    #[inline]
    pub(crate) fn length(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.length)).sum()
    }

    /// Counts it as posted.
    #[inline]
    pub(crate) fn count(&self, counts: &mut Counts) {
        match self.request.opcode {
            sys::WR_RDMA_WRITE => counts.writes += 1,
            sys::WR_RDMA_WRITE_WITH_IMM => counts.writes_with_immediate += 1,
            _ => counts.reads += 1,
        }
        counts.inline += u64::from(self.inline());
        counts.signalled += u64::from(self.request.send_flags & sys::SEND_SIGNALED != 0);
    }
}

impl QueuePair {
    /// Carries out one request towards the peer, which must be there; false: the peer has no receive for it.
    #[inline]
    pub(crate) fn carry(&self, sends: &mut Sends, work: &Work<'_>) -> Result<bool, Failure> {
        // SAFETY: the gate is open in this epoch, so the peer is there until this side's lock is free (`Sends::peer`).
        let peer = unsafe { &*sends.peer };
        let length = work.length();
        let alone = |status| Failure { status, peer: 0, event: None };
        let both = |status, event| Failure { status, peer: peer.number, event: Some(event) };
        if length > sends.max_message {
            return Err(alone(sys::WC_LOC_LEN_ERR));
        }
        let request = work.request;
        let read = request.opcode == sys::WR_RDMA_READ;
        let inline = self.inlines(work);
        let mut local = [MaybeUninit::uninit(); MAX_SGES];
        let needs = if read { sys::ACCESS_LOCAL_WRITE as u32 } else { 0 };
        for (piece, place) in work.pieces.iter().zip(&mut local) {
            place.write(if inline {
                ptr::with_exposed_provenance_mut(piece.address as usize)
            } else if piece.length == 0 {
                ptr::null_mut() // the key of no bytes is not looked at
            } else {
                find_local(piece.lkey, self.domain, piece.address, piece.length.into(), needs)
                    .ok_or_else(|| alone(sys::WC_LOC_PROT_ERR))?
            });
        }
        let right = if read { sys::ACCESS_REMOTE_READ } else { sys::ACCESS_REMOTE_WRITE } as u32;
        if read && !sends.reads {
            return Err(alone(sys::WC_LOC_QP_OP_ERR));
        }
        if sends.peer_access & right == 0 {
            return Err(both(sys::WC_REM_INV_REQ_ERR, sys::EVENT_QP_REQ_ERR));
        }
        let mut remote = if length == 0 {
            ptr::null_mut()
        } else {
            find_remote(request.rdma.rkey, peer.domain, request.rdma.remote_address, length, right)
                .ok_or_else(|| both(sys::WC_REM_ACCESS_ERR, sys::EVENT_QP_ACCESS_ERR))?
        };
        let immediate = request.opcode == sys::WR_RDMA_WRITE_WITH_IMM;
        let receive = if immediate {
            let Some(receive) = peer.receives().take() else { return Ok(false) };
            Some(receive)
        } else {
            None
        };
        for (piece, here) in work.pieces.iter().zip(&local) {
            let bytes = piece.length as usize;
            if bytes == 0 {
                continue;
            }
            // SAFETY: the first loop has written as many places. Both ranges lie in registered regions (or the local one in memory
            // that the caller of ibv_post_send hands over inline), which are not taken out while this lock is held.
            unsafe {
                let here = here.assume_init();
                if read {
                    place(remote, here, bytes);
                } else {
                    place(here, remote, bytes);
                }
                remote = remote.add(bytes);
            }
        }
        if let Some(id) = receive {
            peer.recv_cq().push(Entry {
                completion: sys::Wc {
                    wr_id: id,
                    status: sys::WC_SUCCESS,
                    opcode: sys::WC_RECV_RDMA_WITH_IMM,
                    byte_len: if peer.manners.byte_counts { length as u32 } else { 0 },
                    imm_data: request.imm_data,
                    qp_num: peer.number,
                    wc_flags: WC_WITH_IMM,
                    ..sys::Wc::default()
                },
                released: &peer.receives().released,
                places: 1,
            });
        }
        sends.counts.bytes += length;
        sends.unreported += 1;
        if self.signal_all || request.send_flags & sys::SEND_SIGNALED != 0 {
            let places = std::mem::take(&mut sends.unreported);
            self.send_cq().push(Entry {
                completion: sys::Wc {
                    wr_id: request.wr_id,
                    status: sys::WC_SUCCESS,
                    opcode: if read { sys::WC_RDMA_READ } else { sys::WC_RDMA_WRITE },
                    byte_len: if read || self.manners.sent_bytes { length as u32 } else { UNSAID },
                    qp_num: self.number,
                    ..sys::Wc::default()
                },
                released: &self.released,
                places,
            });
        }
        Ok(true)
    }
}
