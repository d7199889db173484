//! The judge of a world: the bandwidth of `adaptive` next to that of the right weights, and how much its shares move.

use crate::draw::Drawn;
use crate::flow::Message;
use crate::stage::{Split, Stage};

/// The messages of a window in which shares are looked at.
pub const WINDOW: usize = 32;

/// The messages of the right weights that are measured.
const MEASURED: usize = 150;

/// The verdict on one world.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The bandwidth next to that of the right weights, before the jump and after it: the smaller one.
    pub ratio: f64,
    /// The distance of the 99th from the 1st percentile of the share of the first rail in windows of [`WINDOW`]
    /// messages, if the world is constant and has two rails or more.
    pub band: Option<f64>,
}

/// Returns the bytes per nanosecond of messages that were sent in a time. It counts whole messages, from one
/// completion to another.
pub fn rate(sent: &[Message], from_ns: u64, until_ns: u64) -> f64 {
    let first = sent.partition_point(|message| message.done_ns < from_ns);
    let end = sent.partition_point(|message| message.done_ns <= until_ns);
    if first >= end {
        return 0.0;
    }
    let (begin_ns, end_ns) = (sent[first].done_ns, sent[end - 1].done_ns);
    let counted = sent[first..end].iter().filter(|message| message.done_ns > begin_ns);
    counted.map(|message| message.bytes).sum::<u64>() as f64 / (end_ns - begin_ns).max(1) as f64
}

/// Returns the smallest and the largest part of the first rail in windows of messages, without the 100th that is
/// smallest and the 100th that is largest.
pub fn band(sent: &[Message]) -> Option<(f64, f64)> {
    let part = |window: &[Message]| {
        let first: u64 = window.iter().map(|message| message.shares[0]).sum();
        first as f64 / window.iter().map(|message| message.bytes).sum::<u64>() as f64
    };
    let mut parts: Vec<f64> = sent.chunks_exact(WINDOW).map(part).collect();
    parts.sort_by(f64::total_cmp);
    let trim = parts.len() / 100;
    Some((*parts.get(trim)?, *parts.get(parts.len() - 1 - trim)?))
}

/// The bandwidths of the right weights in a world, in bytes per nanosecond, before the jump and after it.
fn right(drawn: &Drawn) -> (f64, f64) {
    let mut stage = drawn.stage(Split::right(&drawn.rates_kbps));
    let mut count = 20 + 2 * drawn.depth;
    let mut measure = |stage: &mut Stage, skip: usize| {
        count += skip;
        stage.run_messages(0, count);
        let from_ns = stage.now_ns();
        count += MEASURED;
        stage.run_messages(0, count);
        rate(stage.sent(0), from_ns, stage.now_ns())
    };
    let before = measure(&mut stage, 0);
    let Some(_) = drawn.jump else { return (before, before) };
    let after = drawn.rates_after();
    drawn.set_rates(&mut stage, &after);
    stage.steer(0, Split::right(&after));
    let after = measure(&mut stage, 20 + 2 * drawn.depth + drain(drawn));
    (before, after)
}

/// Returns the messages in whose time the first ones are through: nothing is known of the rails, so each gets the same
/// part of them, and the slowest takes long.
fn start(drawn: &Drawn) -> usize {
    let (least, sum) = (drawn.rates_kbps.iter().min(), drawn.rates_kbps.iter().sum::<u64>());
    (drawn.depth as u64 * sum / (drawn.rates_kbps.len() as u64 * least.copied().unwrap_or(1))) as usize
}

/// Returns the messages in whose time what was in flight before the jump is through.
fn drain(drawn: &Drawn) -> usize {
    drawn.jump.map_or(0, |jump| drawn.depth * 1300 / jump.permille.min(1000) as usize)
}

/// Judges a split in a world.
pub fn judge(drawn: &Drawn, split: Split) -> Verdict {
    judge_and_keep(drawn, split).0
}

/// Judges a split in a world. Returns its messages, too, in the order in which they were posted, and the time of the
/// jump.
pub fn judge_and_keep(drawn: &Drawn, split: Split) -> (Verdict, Vec<Message>, u64) {
    let right = right(drawn);
    // The time of a message, where they take longest.
    let message_ns = drawn.bytes as f64 / right.0.min(right.1);
    let after = |messages: usize| (messages as f64 * message_ns) as u64;
    let mut stage = drawn.stage(split);
    let begin_ns = after(100 + start(drawn));
    let jump_ns = begin_ns + after(150);
    stage.run_until(jump_ns);
    if drawn.jump.is_some() {
        drawn.set_rates(&mut stage, &drawn.rates_after());
    }
    let again_ns = jump_ns + after(120 + drain(drawn));
    let end_ns = again_ns + after(250);
    stage.run_until(end_ns);
    let mut sent = stage.sent(0).to_vec();
    let (first, last) = (rate(&sent, begin_ns, jump_ns), rate(&sent, again_ns, end_ns));
    let ratio = (first / right.0).min(last / right.1);
    let is_constant = drawn.jump.is_none() && drawn.rates_kbps.len() > 1;
    sent.sort_by_key(|message| message.number);
    let settled = sent.get(64 + 4 * drawn.depth..).filter(|settled| is_constant && settled.len() >= 2 * WINDOW);
    let band = settled.and_then(band).map(|(low, high)| high - low);
    (Verdict { ratio, band }, sent, jump_ns)
}
