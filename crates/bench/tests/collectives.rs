//! The collectives over a net in memory: their results are correct, and errors are noticed.

mod support;

use railweave_bench::Communicator;
use railweave_bench::communicator::Mode;
use railweave_bench::numbers::{check, fill};
use std::sync::atomic::Ordering::SeqCst;
use support::{Faults, Loopback, with_ranks};

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Runs all collectives with about `length` elements, and checks every result.
fn all_collectives(communicator: &mut Communicator<'_, Loopback>, length: usize) -> Result<(), String> {
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let mut data = vec![0.0; length];
    fill(&mut data, rank, 1, 0);
    communicator.all_reduce(&mut data).map_err(text)?;
    check(&data, 0..ranks, 1, 0).map_err(|wrong| format!("all-reduce: {wrong}"))?;

    let mut output = vec![-1.0; length * ranks];
    fill(&mut data, rank, 2, 0);
    communicator.all_gather(&data, &mut output).map_err(text)?;
    for (source, block) in output.chunks(length).enumerate() {
        check(block, source..source + 1, 2, 0).map_err(|wrong| format!("all-gather: {wrong}"))?;
    }

    fill(&mut output, rank, 3, 0);
    let own = communicator.reduce_scatter(&mut output).map_err(text)?;
    check(&output[own.clone()], 0..ranks, 3, own.start).map_err(|wrong| format!("reduce-scatter: {wrong}"))?;

    let mut input = vec![0.0; length * ranks];
    fill(&mut input, rank, 4, 0);
    communicator.all_to_all(&input, &mut output).map_err(text)?;
    for (source, block) in output.chunks(length).enumerate() {
        check(block, source..source + 1, 4, rank * length).map_err(|wrong| format!("all-to-all: {wrong}"))?;
    }

    let (to, from) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    fill(&mut input[..length], rank, 5, 0);
    communicator.send_recv(to, &input[..length], from, &mut data).map_err(text)?;
    check(&data, from..from + 1, 5, 0).map_err(|wrong| format!("send and receive: {wrong}"))
}

#[test]
fn all_are_right_for_any_number_of_ranks_rings_and_lengths() {
    for mode in [Mode::Staged, Mode::Direct] {
        for (ranks, devices, length) in [(2, 1, 1_000_000), (3, 2, 700_001), (4, 1, 5), (5, 3, 100_003), (2, 1, 1)] {
            let (results, world) = with_ranks(ranks, devices, mode, Faults::default(), |communicator| {
                all_collectives(communicator, length)
            });
            for result in results {
                assert_eq!(result, Ok(()), "{ranks} ranks, {devices} devices, {length} elements, {mode:?}");
            }
            assert_eq!(world.open.load(SeqCst), 0, "everything that was opened is closed");
            let largest = world.largest.load(SeqCst);
            assert!(largest <= if mode == Mode::Staged { 1 << 20 } else { 8 << 20 }, "{largest}");
            assert!(length > 5 || world.empty.load(SeqCst) > 0, "short rings have empty messages");
        }
    }
}

#[test]
fn a_flipped_bit_is_noticed_anywhere() {
    for flip_bit in [0, 3, 7] {
        let faults = Faults { flip_bit: Some(flip_bit), ..Faults::default() };
        let (results, _) = with_ranks(2, 1, Mode::Staged, faults, |communicator| {
            let mut data = vec![0.0; 2_000_000];
            fill(&mut data, communicator.rank(), 1, 0);
            communicator.all_reduce(&mut data).map_err(text)?;
            check(&data, 0..2, 1, 0).map_err(text)
        });
        assert!(results.iter().any(|result| result.as_ref().is_err_and(|wrong| wrong.contains("1 of 2000000"))));
    }
}

#[test]
fn a_lost_message_is_an_error_that_says_what_waits() {
    let faults = Faults { lose_from: Some(2), ..Faults::default() };
    let (results, world) =
        with_ranks(2, 1, Mode::Direct, faults, |communicator| all_collectives(communicator, 1_000_000));
    let stalled =
        |result: &Result<(), String>| result.as_ref().is_err_and(|error| error.starts_with("ran out of time: "));
    assert!(results.iter().any(stalled), "{results:?}");
    assert!(results.iter().all(Result::is_err), "{results:?}");
    assert_eq!(world.open.load(SeqCst), 0, "closed after an error too");
}

#[test]
fn a_wrong_size_and_a_failure_are_errors_and_close_the_communicator() {
    let short = Faults { short_size: Some(1), ..Faults::default() };
    let fail = Faults { fail: Some(1), ..Faults::default() };
    for (faults, expected) in [(short, "sizes must be exact"), (fail, "asked for")] {
        let (results, _) = with_ranks(2, 1, Mode::Staged, faults, |communicator| {
            let error = all_collectives(communicator, 1_000_000).expect_err("one rank fails, so both do");
            let again = communicator.all_reduce(&mut [0.0]).expect_err("it is closed").to_string();
            assert!(again.contains("was closed by its first error"), "{again}");
            Err(error)
        });
        assert!(
            results.iter().any(|result| result.as_ref().is_err_and(|error| error.contains(expected))),
            "{results:?}"
        );
    }
}

#[test]
fn wrong_lengths_and_ranks_are_refused_without_harm() {
    let (results, _) = with_ranks(2, 1, Mode::Staged, Faults::default(), |communicator| {
        let rank = communicator.rank();
        assert!(communicator.all_gather(&[0.0; 3], &mut [0.0; 5]).is_err());
        assert!(communicator.reduce_scatter(&mut [0.0; 3]).is_err());
        assert!(communicator.all_to_all(&[0.0; 4], &mut [0.0; 2]).is_err());
        assert!(communicator.send_recv(rank, &[], 1 - rank, &mut []).is_err());
        all_collectives(communicator, 10)
    });
    assert_eq!(results, [Ok(()), Ok(())]);
}
