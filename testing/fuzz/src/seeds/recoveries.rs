//! Seeds of connections that go on without rails that fail.

use super::plans::{ONE_SIDED, STRIPED, kib, plan};
use crate::peer::RECOVERS;
use crate::recovery;

/// Returns everything that a recovery has due, in this many rounds with a faultless peer, which answers with these
/// bytes.
fn rounds(count: u8, answers: &[u8]) -> Vec<u8> {
    [&[recovery::FROM, 8, count], answers].concat()
}

pub(super) fn send() -> Vec<(&'static str, Vec<u8>)> {
    let message = |size: u8| vec![0, 0, 0, size, 4, 0, size];
    let (complete, test, lane_fails) = (vec![8], vec![6, 0], vec![10, 1, 0]);
    let lost = [message(kib(70)), lane_fails, test.clone()].concat();
    let begun = |flags| [plan(RECOVERS | flags, 2, 1), lost.clone()].concat();
    let says = |rail: u8, what: &[u8]| [&[recovery::FROM, 3, rail, 0], what].concat();
    let dialled = [recovery::FROM, 4, 0];
    let back = [complete.clone(), rounds(8, &[]), complete.clone(), test.clone(), message(kib(70)), complete.clone()];
    let (back, unseen, seen) = (back.concat(), [0], [0xff]);
    let suspected = [plan(RECOVERS | ONE_SIDED, 2, 1), message(10), says(0, &[0]), rounds(8, &unseen)].concat();
    let flood = [plan(RECOVERS, 2, 1), message(10), vec![recovery::FROM, 7, 0, 0, 0, 0xff]].concat();
    let one_rail = [plan(RECOVERS | ONE_SIDED, 1, 1), message(10), vec![10, 0, 0], test.clone()].concat();
    let liar = |what: &[u8]| [begun(0), rounds(1, &[]), says(1, what), test.clone()].concat();
    vec![
        ("rail-back", [begun(ONE_SIDED), rounds(20, &unseen), back.clone()].concat()),
        ("rail-back-seen", [begun(ONE_SIDED | STRIPED), rounds(20, &seen), back.clone()].concat()),
        ("rail-back-sockets", [begun(0), rounds(20, &unseen), dialled.to_vec(), back.clone()].concat()),
        ("rail-dial-fails", [begun(0), rounds(20, &unseen), vec![recovery::FROM, 4, 0xff], back.clone()].concat()),
        ("rail-suspected", [suspected, back.clone()].concat()),
        ("rail-only", [one_rail, rounds(8, &unseen), back].concat()),
        ("rail-flood", [flood, rounds(9, &unseen), test.clone()].concat()),
        ("rail-state-of-others", liar(&[2, 1, 9, 0])),
        ("rail-state-of-none", liar(&[2, 0])),
        ("rail-up-of-peer", liar(&[5])),
        ("rail-unknown", [begun(0), vec![recovery::FROM, 3, 7, 0, 0], test.clone()].concat()),
        ("rail-other-incarnation", [begun(0), vec![recovery::FROM, 3, 1, 0xff, 9, 0, 0], test].concat()),
    ]
}

pub(super) fn receive() -> Vec<(&'static str, Vec<u8>)> {
    let (optional, gpu, size) = (8, 16, kib(8));
    let irecv = |flags: u8| vec![0, flags, size];
    let (test, lane_fails) = (vec![2, 0], vec![11, 1, 0]);
    // One slot of two rails: its size is 8 KiB, and the part of rail 1 is unsure, or was placed, or was refused.
    let listed = |flags: u8| [1, 0, 3, flags, 0, 0x20];
    // Rail 0 brings its own part, then that of rail 1.
    let parts = [6, 0, 0, 0, 3, size, 0, 6, 0, 0, 0, 0, 100, 0];
    let begun = |plan: Vec<u8>, flags| [plan, irecv(flags), lane_fails.clone(), test.clone()].concat();
    let two = |flags| plan(RECOVERS | flags, 2, 1);
    let end = [parts.to_vec(), test.clone(), vec![10], irecv(0), vec![3, 1, 0, size, 0, 0], test.clone()].concat();
    let with_down = |flags, entry: u8| [begun(two(ONE_SIDED), flags), rounds(20, &listed(entry)), end.clone()].concat();
    let socket = [recovery::FROM, 5, 1, 0];
    let says = |what: &[u8]| [&[recovery::FROM, 3, 1, 0], what].concat();
    let early = [two(ONE_SIDED), irecv(optional), test.clone(), lane_fails.clone(), irecv(0), test.clone()].concat();
    let liar = |what: &[u8]| [begun(two(0), 0), says(what), test.clone()].concat();
    vec![
        ("rail-back", with_down(0, 0)),
        ("rail-back-gpu", with_down(gpu, 0)),
        ("rail-placed", with_down(0, 1)),
        ("rail-record", with_down(0, 2)),
        (
            "rail-back-sockets",
            [begun(two(0), 0), rounds(3, &listed(0)), socket.to_vec(), rounds(4, &[]), end.clone()].concat(),
        ),
        ("rail-early", [early.clone(), rounds(20, &[1, 1, 3, 0, 0, 0x20]), end.clone()].concat()),
        ("rail-early-refused", [early, rounds(20, &[1, 1, 3, 4, 0, 0x20]), end].concat()),
        ("rail-down-of-none", liar(&[1, 1, 200, 3, 0, 0, 0])),
        ("rail-down-too-long", [begun(two(0), 0), rounds(9, &[1, 0, 3, 0, 0xff, 0xff]), test.clone()].concat()),
        ("rail-offer-early", liar(&[3, 0])),
        ("rail-up-early", liar(&[5])),
        ("rail-flood", [two(0), irecv(0), vec![recovery::FROM, 7, 1, 0, 1, 0, 0xff], test.clone()].concat()),
        ("rail-repair-unasked", [two(0), irecv(0), vec![6, 0, 0, 0, 0, 100, 0], test.clone(), test].concat()),
    ]
}
