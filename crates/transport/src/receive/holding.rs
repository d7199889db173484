//! When a CTS may wait for those of the next receives, so that one write carries them all.
//!
//! It waits while the peer has unused ones. But how many those are is known only as of what has arrived: all of them may be on
//! their way here as messages, and a peer that sends as fast as receives are posted would wait. It says so in an immediate
//! then, and for a while every CTS goes out at once; as it does where there is mostly nothing to hold.

/// The peer has at least so many unused while a CTS waits.
const LEAST_UNUSED: u32 = 2;

/// No CTS joins more than so many, as many as NCCL has receives: one write carries them all and those of a group.
const MOST_HELD: u32 = 32;

/// After so many receives in a row whose CTS did not wait, holding is off for a while: it costs more then than it gains.
const IDLE_RECEIVES: u32 = 8;

/// It is off for so many receives where there was nothing to hold.
const OFF_WHEN_IDLE: u32 = 256;

/// It is off for so many receives when the peer has waited: more, because the next try may make it wait again.
const OFF_WHEN_WAITED_FOR: u32 = 16384;

/// Whether CTS are held.
pub(super) struct Holding {
    /// Off for ever where it is not allowed.
    is_allowed: bool,
    /// They are held when the peer has enough unused. Else every one goes out at once.
    is_on: bool,
    /// The first receive whose CTS may be held again.
    prompt_until: u32,
    /// Receives since one was held.
    idle: u32,
    /// One was held since it was turned on.
    has_held: bool,
    /// The peer has waited for a CTS that was held.
    is_waited_for: bool,
}

impl Holding {
    /// On from the first receive on, where it is allowed at all.
    pub(super) fn new(is_allowed: bool) -> Self {
        Self { is_allowed, is_on: is_allowed, prompt_until: 0, idle: 0, has_held: false, is_waited_for: false }
    }

    /// Whether any CTS may be held now.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether another CTS may join `held` ones, to wait with them or to go out with them.
    #[inline]
    pub(super) fn may_join(&self, held: u32) -> bool {
        self.is_on && held <= MOST_HELD
    }

    /// Whether `held` CTS of `open` receives, those that the peer has not completed, may stay held.
    #[inline]
    pub(super) fn may_wait(&self, open: u32, held: u32) -> bool {
        let unused = open.wrapping_sub(held);
        self.is_on && !self.is_waited_for && unused >= LEAST_UNUSED.max(held)
    }

    /// The CTS of another receive is held, or is not.
    #[inline]
    pub(super) fn note(&mut self, is_held: bool) {
        self.idle = if is_held { 0 } else { self.idle.wrapping_add(1) };
        self.has_held |= is_held;
    }

    /// The peer has waited for a CTS that was held, whose message has come now.
    pub(super) fn handle_waited(&mut self) {
        self.is_waited_for |= self.is_on;
    }

    /// Turns it off where it does harm or nothing, and on again after a while. Whether it was turned on and CTS were held the
    /// last time that it was: nobody may take those for held now. `head` is the number of the next receive.
    #[inline]
    pub(super) fn turn(&mut self, head: u32) -> bool {
        if !self.is_on {
            let turns_on = self.is_allowed && self.prompt_until.wrapping_sub(head).cast_signed() <= 0;
            let has_held = self.has_held;
            if turns_on {
                *self = Self::new(true);
            }
            return turns_on && has_held;
        }
        let off_for = match self.idle {
            _ if self.is_waited_for => OFF_WHEN_WAITED_FOR,
            IDLE_RECEIVES.. => OFF_WHEN_IDLE,
            _ => return false,
        };
        self.is_on = false;
        self.prompt_until = head.wrapping_add(off_for);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays receives of which `ahead` are open, and answers how many CTS each write carried.
    fn writes(holding: &Holding, ahead: u32, count: usize) -> Vec<u32> {
        let (mut open, mut held, mut writes) = (0, 0, Vec::new());
        while writes.len() < count {
            open += 1;
            held += 1;
            if !holding.may_wait(open, held) {
                writes.push(std::mem::take(&mut held));
            }
            if open == ahead {
                open -= 1;
            }
        }
        writes
    }

    #[test]
    fn cts_wait_while_the_peer_has_two_unused_and_as_many_as_wait() {
        let holding = Holding::new(true);
        assert_eq!(writes(&holding, 1, 4), [1, 1, 1, 1]);
        assert_eq!(writes(&holding, 2, 4), [1, 1, 1, 1]);
        assert_eq!(writes(&holding, 3, 5), [1, 1, 2, 2, 2]);
        assert_eq!(writes(&holding, 4, 5), [1, 1, 3, 3, 3]);
        assert_eq!(writes(&holding, 8, 6), [1, 1, 3, 5, 5, 5]);
        assert!(holding.may_join(MOST_HELD) && !holding.may_join(MOST_HELD + 1));
        assert_eq!(writes(&Holding::new(false), 8, 3), [1, 1, 1]);
    }

    #[test]
    fn it_is_off_for_a_while_when_the_peer_waits_for_one_that_was_held() {
        let mut holding = Holding::new(true);
        holding.note(true);
        assert!(holding.may_wait(100, 1));
        holding.handle_waited();
        assert!(!holding.may_wait(100, 1), "what is held goes out");
        assert!(!holding.turn(u32::MAX - 10));
        assert!(!holding.is_on() && !holding.may_wait(100, 1));
        holding.handle_waited();
        let back = (u32::MAX - 10).wrapping_add(OFF_WHEN_WAITED_FOR);
        assert!(!holding.turn(back.wrapping_sub(1)) && !holding.is_on());
        assert!(holding.turn(back), "one was held before");
        assert!(holding.is_on() && holding.may_wait(100, 1));
        assert!(!holding.turn(back) && holding.is_on());
    }

    #[test]
    fn it_is_off_for_a_while_where_nothing_is_held() {
        let mut holding = Holding::new(true);
        for receive in 1..=100 {
            holding.note(receive % IDLE_RECEIVES == 0);
            assert!(!holding.turn(receive) && holding.is_on());
        }
        (0..IDLE_RECEIVES).for_each(|_| holding.note(false));
        assert!(!holding.turn(108) && !holding.is_on());
        assert!(!holding.turn(107 + OFF_WHEN_IDLE) && !holding.is_on());
        assert!(holding.turn(108 + OFF_WHEN_IDLE) && holding.is_on());
        (0..IDLE_RECEIVES).for_each(|_| holding.note(false));
        assert!(
            !holding.turn(1000) && !holding.turn(1000 + OFF_WHEN_IDLE) && holding.is_on(),
            "none was held this time"
        );
        let mut never = Holding::new(false);
        assert!(!never.turn(u32::MAX) && !never.is_on());
    }
}
