//! The clock by which the data path tells how fast a rail is: in ticks, because only their ratios matter there.
#![allow(unsafe_code)] // reading the processor's counter

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A clock that is cheap enough to be read for each message.
pub trait Clock: Send + 'static {
    /// Returns the present time in ticks since some moment. Readings of different processors may differ a little, so a
    /// later one may be smaller.
    fn ticks(&self) -> u64;

    /// Returns the number of ticks in a second, at least 1.
    fn ticks_per_second(&self) -> u64;
}

/// The counter of the processor: the time-stamp counter of x86_64, the virtual counter of aarch64 (`CNTVCT_EL0`). Both
/// can be read without privileges.
///
/// On x86_64 its frequency is measured against the system's clock. A counter that changes its frequency, as those of
/// processors before 2008 do, changes the ticks of all rails alike, so the ratios of their rates stay right; the times
/// of telemetry do not.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessorClock;

impl Clock for ProcessorClock {
    #[inline(always)]
    fn ticks(&self) -> u64 {
        counter()
    }

    fn ticks_per_second(&self) -> u64 {
        static FREQUENCY: OnceLock<u64> = OnceLock::new();
        *FREQUENCY.get_or_init(|| frequency().max(1))
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: every x86_64 processor has the instruction, and a kernel forbids it only to a process that asked for that
    // (PR_SET_TSC in prctl(2)).
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn counter() -> u64 {
    let ticks;
    // SAFETY: Linux lets every process read this register (CNTKCTL_EL1.EL0VCTEN), and reading has no effect.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}

/// Returns the ticks of a second, as the processor states them; `None` if it does not, or names a number that cannot
/// be.
fn stated_frequency() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    let hertz = 0_u64;
    #[cfg(target_arch = "aarch64")]
    let hertz: u64 = {
        let hertz;
        // SAFETY: Linux lets every process read this register, and reading has no effect.
        unsafe { core::arch::asm!("mrs {}, cntfrq_el0", out(reg) hertz, options(nomem, nostack, preserves_flags)) };
        hertz
    };
    // Firmware is meant to set the register. One that was left at 0 says nothing.
    (hertz >= 1_000_000).then_some(hertz)
}

/// The time for which the counter is compared with the system's clock, by the thread that first asks.
const MEASURED_FOR: Duration = Duration::from_millis(2);

/// The number of comparisons of which the closest counts: a thread may lose its processor in one.
const COMPARISONS: usize = 5;

/// Returns the counter and the system's clock at nearly the same moment.
fn both() -> (u64, Instant) {
    let once = || {
        let (before, instant, after) = (counter(), Instant::now(), counter());
        (after.saturating_sub(before), before, instant)
    };
    let closest = (0..COMPARISONS).map(|_| once()).min_by_key(|(apart, ..)| *apart);
    closest.map_or_else(|| (counter(), Instant::now()), |(_, ticks, instant)| (ticks, instant))
}

fn frequency() -> u64 {
    if let Some(hertz) = stated_frequency() {
        return hertz;
    }
    let (first, begin) = both();
    while begin.elapsed() < MEASURED_FOR {
        std::hint::spin_loop();
    }
    let (last, end) = both();
    let ticks = u128::from(last.saturating_sub(first));
    u64::try_from(ticks * 1_000_000_000 / end.duration_since(begin).as_nanos().max(1)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_pass_as_fast_as_the_frequency_says() {
        let clock = ProcessorClock;
        let frequency = clock.ticks_per_second() as f64;
        let ratio = || {
            let (began, first) = (Instant::now(), clock.ticks());
            std::thread::sleep(Duration::from_millis(20));
            (clock.ticks() - first) as f64 / frequency / began.elapsed().as_secs_f64()
        };
        // A thread that loses its processor between two readings gets another chance.
        let ratios: Vec<f64> = (0..5).map(|_| ratio()).collect();
        let is_right = ratios.iter().any(|ratio| (0.99..1.01).contains(ratio));
        assert!(is_right, "{ratios:?} seconds of the counter in each second");
    }
}
