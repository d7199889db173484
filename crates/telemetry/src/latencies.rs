//! The histogram of a rail's write latencies.

/// The number of buckets.
pub const BUCKETS: usize = 16;

/// The latencies of a rail's sampled writes. Bucket 0 counts those below 2 µs, bucket `i` those from 2^i µs to below
/// 2^(i+1) µs, and the last all from 32,768 µs.
///
/// When a bucket is full, all are halved, so that the shares of the buckets stay right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies(pub [u32; BUCKETS]);

impl Latencies {
    /// Counts one write that took this many nanoseconds.
    pub fn add(&mut self, nanoseconds: u64) {
        let microseconds = (nanoseconds / 1000).max(1);
        let bucket = (microseconds.ilog2() as usize).min(BUCKETS - 1);
        if self.0[bucket] == u32::MAX {
            self.0 = self.0.map(|count| count / 2);
        }
        self.0[bucket] += 1;
    }

    /// Adds the counts of another histogram, up to the largest number that a bucket holds.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count = count.saturating_add(more);
        }
    }

    /// Returns the number of writes that were counted.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|count| u64::from(*count)).sum()
    }

    /// Returns an estimate, in microseconds, of the latency that this part of the writes does not exceed; `part` is
    /// from 0 to 1. `None` if no write was counted.
    ///
    /// Inside a bucket the writes count as evenly spread. So the estimate is off by less than a factor of two; for the
    /// last bucket, it is at most 65,536.
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let wanted = part.clamp(0.0, 1.0) * count as f64;
        let mut below = 0.0;
        for (bucket, number) in self.0.iter().enumerate().filter(|(_, number)| **number > 0) {
            let number = f64::from(*number);
            if below + number >= wanted {
                let low = if bucket == 0 { 0.0 } else { (1_u64 << bucket) as f64 };
                let high = (2_u64 << bucket) as f64;
                return Some(low + (high - low) * ((wanted - below) / number));
            }
            below += number;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_latency_has_a_bucket() {
        let bucket = |nanoseconds| {
            let mut latencies = Latencies::default();
            latencies.add(nanoseconds);
            latencies.0.iter().position(|count| *count == 1)
        };
        for (nanoseconds, place) in
            [(0, 0), (1_999, 0), (2_000, 1), (3_999, 1), (4_000, 2), (32_768_000, 15), (u64::MAX, 15)]
        {
            assert_eq!(bucket(nanoseconds), Some(place), "{nanoseconds} ns");
        }
    }

    #[test]
    fn quantiles_lie_in_the_bucket_that_holds_them() {
        assert_eq!(Latencies::default().quantile(0.5), None);
        let mut latencies = Latencies::default();
        (0..98).for_each(|_| latencies.add(10_000));
        (0..2).for_each(|_| latencies.add(1_000_000));
        let quantile = |part| latencies.quantile(part).unwrap();
        assert!((8.0..=16.0).contains(&quantile(0.5)), "{}", quantile(0.5));
        assert!((512.0..=1024.0).contains(&quantile(0.99)), "{}", quantile(0.99));
        assert!(quantile(0.0) <= quantile(1.0));
    }

    #[test]
    fn a_full_bucket_halves_all() {
        let mut latencies = Latencies::default();
        (latencies.0[3], latencies.0[4]) = (u32::MAX, 100);
        latencies.add(8_000);
        assert_eq!((latencies.0[3], latencies.0[4]), (u32::MAX / 2 + 1, 50));
    }
}
