//! Sweeps over all sizes of messages between two ranks, in both directions at once, with every byte checked.
//!
//! A message is a piece of its sender's noise: random bytes drawn from the seed, so that the receiver can compute them
//! too. Before a receive is posted, its buffer and the guards around it are filled with the complement of that piece
//! and of the noise around it. So a missing byte is noticed like a wrong one, and so is an extra byte, even if it is
//! the byte that follows the message in the sender's memory.

mod plan;

use crate::bootstrap::Link;
use crate::ends;
use crate::error::CommunicatorError;
use crate::patience::Patience;
pub use plan::Settings;
use plan::{Chance, GUARD_BYTES, Message, NOISE_BEYOND_BYTES, Plan, plans, windows};
use railweave_nccl_host::connection::{Connection, StepShape};
use railweave_nccl_host::net::{MAX_PARTS, NetApi, NetError, Part, RecvComm, Request, SendComm};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The messages that one rank received in one phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Its name.
    pub name: &'static str,
    /// Messages received.
    pub messages: usize,
    /// Their bytes, as far as they fit into their receives.
    pub bytes: usize,
    /// Wrong results: messages received with a wrong size, wrong data or a changed byte around them, and messages sent
    /// whose size the plugin reports wrongly.
    pub mismatches: usize,
    /// The time that this rank took to send and to receive.
    pub took: Duration,
}

/// The results of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// Every phase, in order.
    pub phases: Vec<Phase>,
    /// The first mismatch in words.
    pub first_mismatch: Option<String>,
}

/// The reason why a sweep ended early.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// An error of a communicator.
    #[error(transparent)]
    Communicator(#[from] CommunicatorError),
    /// A call of the plugin failed.
    #[error("phase {phase} of the sweep, {what}: {cause}")]
    Call {
        /// The phase.
        phase: &'static str,
        /// The call.
        what: String,
        /// The plugin's error.
        cause: NetError,
    },
}

/// Runs the sweep; both ranks of `link` call this together. `progress` is called with each step as it begins.
/// Mismatches do not end the sweep.
///
/// # Errors
/// If a connection or a transfer fails, or there are not exactly two ranks. A stall names phase, size and direction.
pub fn run<N: NetApi>(
    net: &N,
    link: &mut Link,
    settings: &Settings,
    mut progress: impl FnMut(&mut Link, &str),
) -> Result<Results, SweepError> {
    ends::check_ranks(link, "a sweep")?;
    let abort = link.abort_flag();
    let (mut sweep, out, into) = Sweep::connect(net, link, settings, &abort)?;
    let mut phases = Vec::with_capacity(into.len());
    for (out, into) in out.iter().zip(&into) {
        progress(link, &format!("{} messages in each direction: {}", into.sends.len(), into.name));
        phases.push(sweep.carry(out, into)?);
    }
    Ok(Results { phases, first_mismatch: sweep.close(link)? })
}

/// A posted receive.
struct Receiving {
    request: Request,
    /// Its number in the plan.
    index: usize,
    /// The number of its place in memory.
    place: usize,
}

/// One rank with its ends of both connections. The staging buffer of the sending end holds its noise.
struct Sweep<'a, N: NetApi> {
    net: &'a N,
    to: Connection<'a, N, SendComm>,
    from: Connection<'a, N, RecvComm>,
    /// The noise of the peer.
    expected: Vec<u8>,
    patience: Patience<'a>,
    chance: Chance,
    first_mismatch: Option<String>,
}

impl<'a, N: NetApi> Sweep<'a, N> {
    /// Connects; also returns the plans of this rank's sends and of its receives.
    fn connect(
        net: &'a N,
        link: &mut Link,
        settings: &Settings,
        abort: &'a AtomicBool,
    ) -> Result<(Self, [Plan; 4], [Plan; 4]), CommunicatorError> {
        let (rank, peer) = (link.rank(), 1 - link.rank());
        let max_parts = net.properties(settings.device)?.max_recvs.clamp(1, MAX_PARTS as i32) as u64;
        let max_parts = link.gather_numbers(max_parts)?.into_iter().min().unwrap_or(1) as usize;
        let [out, into] = [rank, peer].map(|sender| plans(settings, sender, max_parts));
        let mut patience = Patience::new(rank, settings.stall, abort);
        let (to, from) = ends::open_each_way(net, link, settings.device, &mut patience)?;
        let noise_bytes = settings.max_bytes + NOISE_BEYOND_BYTES;
        let memory = into.iter().map(|plan| plan.place_bytes * plan.receives_ahead).max().unwrap_or(0);
        let shape = |bytes| StepShape { slice_bytes: bytes, in_flight: 1 };
        let to = Connection::new(net, to, peer, shape(noise_bytes));
        let from = Connection::new(net, from, peer, shape(memory));
        let (to, from) = (to?, from?);
        let noise = |rank| Chance::new(settings.seed, &format!("noise of rank {rank}"));
        // SAFETY: this many bytes, initially zero, which belong to the connection and which no transfer uses yet.
        noise(rank).fill(unsafe { std::slice::from_raw_parts_mut(to.slot(0).0.as_ptr(), noise_bytes) });
        let mut expected = vec![0; noise_bytes];
        noise(peer).fill(&mut expected);
        let chance = Chance::new(settings.seed, &format!("tests of rank {rank}"));
        Ok((Self { net, to, from, expected, patience, chance, first_mismatch: None }, out, into))
    }

    /// Closes both connections once both ranks are done, and returns the first mismatch.
    fn close(self, link: &mut Link) -> Result<Option<String>, CommunicatorError> {
        link.barrier()?;
        self.to.close().and(self.from.close())?;
        Ok(self.first_mismatch)
    }

    /// Carries out one phase in both directions at once. Requests are tested in random order.
    fn carry(&mut self, out: &Plan, into: &Plan) -> Result<Phase, SweepError> {
        let (begin, peer, phase) = (Instant::now(), self.to.peer(), into.name);
        let failed = |what, cause| SweepError::Call { phase, what, cause };
        let mut places: Vec<usize> = (0..into.receives_ahead).collect();
        let (mut receives, mut sends) = (Vec::<Receiving>::new(), Vec::<(Request, usize)>::new());
        let (mut posted, mut sent, mut mismatches) = (0, 0, 0);
        // The place prepared for the next receive.
        let mut next = None;
        while posted < into.receives.len() || sent < out.sends.len() || receives.len() + sends.len() > 0 {
            let mut moved = false;
            if let Some(messages) = into.receives.get(posted) {
                if next.is_none() {
                    next = places.pop().inspect(|place| self.prepare(place * into.place_bytes, messages));
                }
                if let Some(place) = next {
                    let posting = self.post_receive(place * into.place_bytes, messages);
                    if let Some(request) = posting.map_err(|cause| failed(of_receive(messages, peer), cause))? {
                        receives.push(Receiving { request, index: posted, place });
                        (posted, next, moved) = (posted + 1, None, true);
                    }
                }
            }
            if let Some(message) = out.sends.get(sent)
                && sends.len() < out.sends_ahead
                && let Some(request) =
                    self.post_send(*message).map_err(|cause| failed(of_send(message, peer), cause))?
            {
                sends.push((request, sent));
                (sent, moved) = (sent + 1, true);
            }
            if !receives.is_empty() {
                let chosen = self.chance.below(receives.len());
                let Receiving { request, index, place } = &receives[chosen];
                let (place, messages) = (*place, &into.receives[*index]);
                if let Some(sizes) = self.test(request).map_err(|cause| failed(of_receive(messages, peer), cause))? {
                    mismatches += self.check_receive(phase, place * into.place_bytes, messages, sizes);
                    places.push(place);
                    receives.swap_remove(chosen);
                    moved = true;
                }
            }
            if !sends.is_empty() {
                let chosen = self.chance.below(sends.len());
                let (request, index) = &sends[chosen];
                let message = &out.sends[*index];
                if let Some([size, ..]) = self.test(request).map_err(|cause| failed(of_send(message, peer), cause))? {
                    if size as usize != message.carried() {
                        mismatches += 1;
                        let wrong = format!("test says {size} bytes; it must be exactly {}", message.carried());
                        self.tell(phase, &of_send(message, peer), &wrong);
                    }
                    sends.swap_remove(chosen);
                    moved = true;
                }
            }
            self.patience.after_round(moved, || {
                let receive = receives.iter().map(|receive| receive.index).min().unwrap_or(posted);
                let send = sends.iter().map(|(_, index)| *index).min().unwrap_or(sent);
                let receive = into.receives.get(receive).map(|messages| of_receive(messages, peer));
                let send = out.sends.get(send).map(|message| of_send(message, peer));
                let missing: Vec<_> = receive.into_iter().chain(send).collect();
                format!("phase {phase} of the sweep waits for {}", missing.join(" and "))
            })?;
        }
        let messages = into.sends.len();
        let bytes = into.sends.iter().map(|message| message.carried()).sum();
        Ok(Phase { name: phase, messages, bytes, mismatches, took: begin.elapsed() })
    }

    fn post_send(&self, message: Message) -> Result<Option<Request>, NetError> {
        let (noise, registration) = self.to.slot(0);
        let Message { offered, offset, tag, .. } = message;
        assert!(offset + offered <= self.expected.len(), "a message inside the noise");
        // SAFETY: the message lies inside the registered noise, to which nothing writes after its set-up.
        unsafe { self.net.isend(self.to.side(), noise.add(offset), offered, tag, registration) }
    }

    fn post_receive(&self, place: usize, messages: &[Message]) -> Result<Option<Request>, NetError> {
        let (memory, registration) = self.from.slot(0);
        let parts: Vec<Part> = windows(place, messages)
            .map(|(start, message)| Part {
                // SAFETY: the plan's places lie inside the memory that was made for all of its plans.
                data: unsafe { memory.add(start + GUARD_BYTES) },
                bytes: message.room,
                tag: message.tag,
                registration,
            })
            .collect();
        // SAFETY: the buffers are registered, and nothing else uses this place until the receive is done.
        unsafe { self.net.irecv(self.from.side(), &parts, false) }
    }

    /// Returns the sizes once the request is done.
    fn test(&self, request: &Request) -> Result<Option<[i32; MAX_PARTS]>, NetError> {
        let mut sizes = [-1; MAX_PARTS];
        // SAFETY: the caller removes a request that is done.
        let done = unsafe { self.net.test(request, Some(&mut sizes)) }?;
        Ok(done.then_some(sizes))
    }

    /// Returns the buffer of a receive that is not in progress, with its guards, and the peer's noise for both.
    fn window(&mut self, start: usize, message: Message) -> (&mut [u8], &[u8]) {
        let bytes = GUARD_BYTES + message.room + GUARD_BYTES;
        assert!(start + bytes <= self.from.shape().buffer_bytes(), "a window of this memory");
        // SAFETY: inside the memory, which belongs to `self`, and no transfer in progress uses this window.
        let window = unsafe { std::slice::from_raw_parts_mut(self.from.slot(0).0.add(start).as_ptr(), bytes) };
        (window, &self.expected[message.offset - GUARD_BYTES..][..bytes])
    }

    fn prepare(&mut self, place: usize, messages: &[Message]) {
        for (start, message) in windows(place, messages) {
            let (window, noise) = self.window(start, message);
            window.iter_mut().zip(noise).for_each(|(byte, noise)| *byte = !noise);
        }
    }

    /// Returns the number of messages of a receive that are wrong.
    fn check_receive(&mut self, phase: &str, place: usize, messages: &[Message], sizes: [i32; MAX_PARTS]) -> usize {
        let mut mismatches = 0;
        for ((start, message), size) in windows(place, messages).zip(sizes) {
            let (window, noise) = self.window(start, message);
            if let Err(wrong) = check(window, noise, message, size) {
                mismatches += 1;
                self.tell(phase, &of_receive(&[message], self.from.peer()), &wrong);
            }
        }
        mismatches
    }

    fn tell(&mut self, phase: &str, what: &str, wrong: &str) {
        self.first_mismatch.get_or_insert_with(|| format!("phase {phase}, {what}: {wrong}"));
    }
}

fn of_send(message: &Message, peer: usize) -> String {
    let Message { offered, room, tag, .. } = message;
    format!("a send of {offered} bytes to rank {peer}, which receives up to {room}, with tag {tag}")
}

fn of_receive(messages: &[Message], peer: usize) -> String {
    let list = messages.iter().map(|message| format!("{} (up to {})", message.offered, message.room));
    format!("a receive of {} bytes from rank {peer}", list.collect::<Vec<_>>().join(", "))
}

/// Checks that a message arrived exactly, by size and by every byte, with nothing changed around it.
fn check(window: &[u8], noise: &[u8], message: Message, size: i32) -> Result<(), String> {
    let carried = message.carried();
    if size as usize != carried {
        return Err(format!("test says {size} bytes; it must be exactly {carried}"));
    }
    let end = GUARD_BYTES + carried;
    if window[GUARD_BYTES..end] != noise[GUARD_BYTES..end] {
        let place = (GUARD_BYTES..end).find(|place| window[*place] != noise[*place]).unwrap_or(end);
        let (sent, received) = (noise[place], window[place]);
        let place = place - GUARD_BYTES;
        return Err(format!("byte {place} was sent as {sent:#04x} and received as {received:#04x}"));
    }
    let changed = |place: &usize| window[*place] != !noise[*place];
    if let Some(place) = (0..GUARD_BYTES).find(changed) {
        return Err(format!("a byte {} before its buffer was changed", GUARD_BYTES - place));
    }
    if let Some(place) = (end..window.len()).find(changed) {
        return Err(format!("byte {}, beyond the end of the message, was changed", place - GUARD_BYTES));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_noticed_in_data_and_guards() {
        let message = Message { tag: 0, offered: 20, room: 33, offset: GUARD_BYTES };
        let mut noise = vec![0; GUARD_BYTES + 33 + GUARD_BYTES];
        Chance::new(7, "a test").fill(&mut noise);
        let mut window: Vec<u8> = noise.iter().map(|byte| !byte).collect();
        assert!(check(&window, &noise, message, 20).unwrap_err().starts_with("byte 0 was sent as"));
        window[GUARD_BYTES..][..20].copy_from_slice(&noise[GUARD_BYTES..][..20]);
        assert_eq!(check(&window, &noise, message, 20), Ok(()));
        assert!(check(&window, &noise, message, 21).unwrap_err().contains("21 bytes; it must be exactly 20"));
        for place in 0..window.len() {
            for bit in 0..8 {
                window[place] ^= 1 << bit;
                assert!(check(&window, &noise, message, 20).is_err(), "bit {bit} of {place}");
                window[place] ^= 1 << bit;
            }
        }
    }
}
