//! Children of a process that uses RDMA: neither their actions nor their end affect the parent's adapter.

use railweave_fake_ibverbs::{FakeVerbs, Open};
use railweave_nccl_host::net::{Comm, NetApi, RecvComm, SendComm};

use crate::common::{Pair, alone, start, until, warnings};
use crate::machine::{EVEN, FUSED, ROCE, finish, machine, with};

/// The way a child ends.
#[derive(Clone, Copy)]
enum End {
    /// With the destructors of the C library: exit(3).
    Orderly,
    /// At once: _exit(2).
    AtOnce,
}

/// Forks a child that runs `act`. Returns true if `act` succeeded.
fn in_a_child(end: End, act: impl FnOnce() -> bool) -> bool {
    // SAFETY: the C library keeps its allocator usable in the child. The child then uses only this library and the
    // plugin, as the test intends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_or(false);
        let status = i32::from(!well);
        match end {
            // SAFETY: ends the child after its exit handlers.
            End::Orderly => unsafe { libc::exit(status) },
            // SAFETY: ends the child.
            End::AtOnce => unsafe { libc::_exit(status) },
        }
    }
    assert!(child > 0, "a child was forked");
    let mut status = 0;
    until("the child's end", || {
        // SAFETY: the process id is from fork, and the status is a variable of this function.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        (ended == child).then_some(())
    });
    status == 0
}

/// Returns true if the child's copy of the library still has the same objects open: with a real adapter, a child that
/// closes one closes its parent's.
fn still_open(fake: &FakeVerbs, before: Open) -> bool {
    fake.open() == before
}

#[test]
fn a_child_that_ends_changes_nothing_for_its_parent() {
    alone(&with(&[FUSED, EVEN]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        for (round, end) in [End::Orderly, End::AtOnce, End::Orderly].into_iter().enumerate() {
            pair.exchange(round as u64, 300_000);
            assert!(in_a_child(end, || true), "child {round}");
        }
        pair.exchange(9, 300_000);
        pair.close();
        finish(&fake, net);
        assert!(warnings().is_empty());
    });
}

#[test]
fn what_a_child_closes_or_finalizes_is_its_own_copy() {
    alone(&with(&[FUSED, EVEN]), || {
        let fake = machine(ROCE);
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        pair.exchange(1, 300_000);
        let Pair { send, recv, .. } = &pair;
        let (send, recv, context) = (send.pointer(), recv.pointer(), &net);
        let memory = pair.outgoing(&[1; 1000]);
        let registration = memory.registration();
        let well = in_a_child(End::AtOnce, || {
            let before = fake.open();
            let wrap = |pointer| std::ptr::NonNull::new(pointer).unwrap();
            // SAFETY: the memory is registered, and this is the child's copy.
            unsafe { context.dereg_mr(Comm::Send(&pair.send), registration) }.unwrap();
            context.close_send(SendComm::new(wrap(send))).unwrap();
            context.close_recv(RecvComm::new(wrap(recv))).unwrap();
            still_open(&fake, before)
        });
        assert!(well, "a child that deregisters and closes");
        pair.release_outgoing(memory);
        pair.exchange(2, 300_000);
        pair.close();
        finish(&fake, net);
        assert!(warnings().is_empty());
    });
}

#[test]
fn a_child_begins_afresh_with_an_adapter_of_its_own() {
    alone(&with(&[FUSED, EVEN]), || {
        let fake = machine(ROCE);
        let (plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        for round in 0..3 {
            assert!(
                in_a_child(End::AtOnce, || {
                    let before = fake.open();
                    let own = plugin.init(7, None).unwrap();
                    let mine = Pair::open(&own, &own, 0);
                    mine.exchange(round, 100_000);
                    mine.close();
                    own.finalize().unwrap();
                    still_open(&fake, before)
                }),
                "child {round}"
            );
            pair.exchange(round, 300_000);
        }
        pair.close();
        finish(&fake, net);
        assert!(warnings().is_empty());
    });
}

#[test]
fn a_child_on_an_old_kernel_misses_nothing_but_what_the_adapter_uses() {
    // Before Linux 5.12 registered memory is withheld from children, with everything else on its pages.
    let old = ROCE.replace("[[device.port]]", "withholds_pages = true\n[[device.port]]");
    alone(&with(&[FUSED, EVEN]), || {
        let fake = machine(&old);
        let (plugin, net) = start();
        // Only the plugin's own memory is registered, none of the application's.
        let pairs: Vec<Pair> = (0..4).map(|_| Pair::open(&net, &net, 0)).collect();
        let child = in_a_child(End::AtOnce, || {
            let before = fake.open();
            let own = plugin.init(7, None).unwrap();
            let mine = Pair::open(&own, &own, 0);
            mine.exchange(1, 100_000);
            mine.close();
            own.finalize().unwrap();
            still_open(&fake, before)
        });
        assert!(child, "the child began afresh");
        for (round, pair) in pairs.into_iter().enumerate() {
            pair.exchange(round as u64, 300_000);
            pair.close();
        }
        finish(&fake, net);
        assert!(warnings().is_empty());
    });
}
