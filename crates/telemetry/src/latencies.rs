//! The histogram of a rail's write latencies.

/// The number of buckets.
pub const BUCKETS: usize = 16;

/// The latencies of a rail's sampled writes. Bucket 0 counts those below 2 µs, bucket `i` those from 2^i µs to below
/// 2^(i+1) µs, and the last all from 32,768 µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies(pub [u32; BUCKETS]);

impl Latencies {
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
    fn quantiles_lie_in_the_bucket_that_holds_them() {
        assert_eq!(Latencies::default().quantile(0.5), None);
        let mut latencies = Latencies::default();
        (latencies.0[3], latencies.0[9]) = (98, 2);
        let quantile = |part| latencies.quantile(part).unwrap();
        assert!((8.0..=16.0).contains(&quantile(0.5)), "{}", quantile(0.5));
        assert!((512.0..=1024.0).contains(&quantile(0.99)), "{}", quantile(0.99));
        assert!(quantile(0.0) <= quantile(1.0));
    }
}
