//! The verdicts on many worlds, by class.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::draw::{Class, Drawn, Flight};
use crate::judge::Verdict;

/// The least bandwidth next to the right weights with one message in flight, or too few to keep all rails busy.
pub const LEAST_ALONE: f64 = 0.80;

/// The same with more.
pub const LEAST: f64 = 0.88;

/// The least bandwidth next to the right weights in 99 of 100 worlds, if there are not too few messages in flight, and
/// if there are.
pub const LEAST_OF_99: [f64; 2] = [0.96, 0.88];

/// The most that a share moves in a constant world, in every world and in 99 of 100.
pub const MOST: [f64; 2] = [0.15, 0.03];

/// A figure and the seed that it is from.
type Figure = (f64, u64);

/// The figures of many worlds, the worst first.
#[derive(Debug, Default)]
pub struct Table {
    ratios: BTreeMap<Class, Vec<Figure>>,
    bands: BTreeMap<Class, Vec<Figure>>,
}

impl Table {
    /// Judges the worlds of these seeds on this many threads.
    pub fn play(from: u64, worlds: u64, threads: usize, judge: impl Fn(Drawn) -> Verdict + Sync) -> Self {
        let next = AtomicU64::new(from);
        let all = Mutex::new(Self::default());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= from + worlds {
                            break;
                        }
                        let drawn = Drawn::new(seed);
                        let class = drawn.class();
                        let verdict = judge(drawn);
                        let mut all = all.lock().expect("no world panics");
                        all.ratios.entry(class).or_default().push((verdict.ratio, seed));
                        if let Some(band) = verdict.band {
                            all.bands.entry(class).or_default().push((band, seed));
                        }
                    }
                });
            }
        });
        let mut all = all.into_inner().expect("no world panics");
        let is_worse = |a: &Figure, b: &Figure| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
        all.ratios.values_mut().for_each(|figures| figures.sort_by(is_worse));
        all.bands.values_mut().for_each(|figures| figures.sort_by(|a, b| is_worse(b, a)));
        all
    }

    /// Returns the bounds that do not hold, each in a sentence.
    pub fn breaches(&self) -> Vec<String> {
        let mut breaches = Vec::new();
        for (class, figures) in &self.ratios {
            let least = if matches!(class.flight, Flight::Alone | Flight::Tight) { LEAST_ALONE } else { LEAST };
            for (ratio, seed) in figures.iter().filter(|(ratio, _)| *ratio < least) {
                breaches.push(format!("seed {seed} ({class}): {ratio:.3} of the right weights, at least {least}"));
            }
        }
        for (class, figures) in &self.bands {
            for (band, seed) in figures.iter().filter(|(band, _)| *band > MOST[0]) {
                let most = MOST[0];
                breaches.push(format!("seed {seed} ({class}): a share moves by {band:.3}, at most {most}"));
            }
        }
        for (is_tight, least) in [false, true].into_iter().zip(LEAST_OF_99) {
            let ratios = merged(self.ratios.iter().filter(|(class, _)| (class.flight == Flight::Tight) == is_tight));
            let name = if is_tight { "tight" } else { "other" };
            let beyond = ratios.iter().filter(|(ratio, _)| *ratio < least).count();
            if is_too_many(beyond, ratios.len()) {
                let count = ratios.len();
                breaches.push(format!("{beyond} of {count} {name} worlds are below {least} of the right weights"));
            }
        }
        let bands = reversed(&self.bands);
        let beyond = bands.iter().filter(|(band, _)| *band > MOST[1]).count();
        if is_too_many(beyond, bands.len()) {
            breaches.push(format!("in {beyond} of {} worlds a share moves by more than {}", bands.len(), MOST[1]));
        }
        breaches
    }
}

/// Returns the figures of some classes, the smallest first.
fn merged<'a>(by_class: impl Iterator<Item = (&'a Class, &'a Vec<Figure>)>) -> Vec<Figure> {
    let mut all: Vec<Figure> = by_class.flat_map(|(_, figures)| figures).copied().collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

/// Returns the figures of all classes, the largest first.
fn reversed(by_class: &BTreeMap<Class, Vec<Figure>>) -> Vec<Figure> {
    let mut all = merged(by_class.iter());
    all.reverse();
    all
}

/// Returns true if more than one in 100 worlds are beyond a bound, by more than chance brings about: three standard
/// deviations, which matter only if there are few worlds.
fn is_too_many(beyond: usize, worlds: usize) -> bool {
    let expected = worlds as f64 / 100.0;
    beyond as f64 > expected + 3.0 * expected.sqrt()
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = |f: &mut fmt::Formatter<'_>, by_class: &BTreeMap<Class, Vec<Figure>>, all: &[Figure]| {
            let named = by_class.iter().map(|(class, figures)| (class.to_string(), &figures[..]));
            for (name, figures) in named.chain([("all".to_owned(), all)]).filter(|(_, figures)| !figures.is_empty()) {
                let at = |part: f64| figures[((figures.len() - 1) as f64 * part) as usize].0;
                let seeds: Vec<String> = figures.iter().take(3).map(|(_, seed)| seed.to_string()).collect();
                let [worst, one, five, half] = [0.0, 0.01, 0.05, 0.5].map(at);
                let (count, seeds) = (figures.len(), seeds.join(", "));
                writeln!(f, "{name:20} {count:6}  {worst:.3}  {one:.3}  {five:.3}  {half:.3}  {seeds}")?;
            }
            Ok(())
        };
        writeln!(f, "{:20} worlds  worst    1 %    5 %   half  worst seeds", "bandwidth")?;
        rows(f, &self.ratios, &merged(self.ratios.iter()))?;
        writeln!(f, "{:20} worlds  worst    1 %    5 %   half  worst seeds", "movement of a share")?;
        rows(f, &self.bands, &reversed(&self.bands))
    }
}
