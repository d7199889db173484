//! The clock by which the data path tells how fast a rail is: in ticks, because only their ratios matter there.
#![allow(unsafe_code)] // reading the processor's counter

use std::sync::OnceLock;
#[cfg(any(target_arch = "x86_64", test))]
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
/// processors before 2008 do, does no harm: it changes the ticks of all rails alike.
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

#[cfg(target_arch = "aarch64")]
fn frequency() -> u64 {
    let hertz;
    // SAFETY: Linux lets every process read this register, and reading has no effect.
    unsafe { core::arch::asm!("mrs {}, cntfrq_el0", out(reg) hertz, options(nomem, nostack, preserves_flags)) };
    hertz
}

/// The time for which the counter is compared with the system's clock. Two readings of both are 100 ns apart at most,
/// so the frequency is right within 0.01 %.
#[cfg(target_arch = "x86_64")]
const MEASURED_FOR: Duration = Duration::from_millis(2);

#[cfg(target_arch = "x86_64")]
fn frequency() -> u64 {
    let (began, first) = (Instant::now(), counter());
    let mut elapsed = Duration::ZERO;
    while elapsed < MEASURED_FOR {
        std::hint::spin_loop();
        elapsed = began.elapsed();
    }
    let ticks = u128::from(counter().saturating_sub(first));
    u64::try_from(ticks * 1_000_000_000 / elapsed.as_nanos()).unwrap_or(u64::MAX)
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
