//! Breadth-first search through all states of a model.
//!
//! A state is kept as a fingerprint of 64 bits. Two states with the same fingerprint would count as one: among 50
//! million states that has a chance of less than one in ten thousand.

use foldhash::quality::FixedState;
use std::collections::HashMap;
use std::fmt::Display;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::time::{Duration, Instant};

/// Something that takes steps, and rules that every step must keep.
pub trait Model {
    /// All that a later step depends on.
    type State: Clone + Hash;
    /// One step of one part of the model.
    type Step: Copy + Display;
    /// A rule that does not hold.
    type Violation;

    /// Returns the state in which every run begins.
    fn first(&self) -> Self::State;

    /// Appends the steps that `state` allows to `steps`.
    fn steps(&self, state: &Self::State, steps: &mut Vec<Self::Step>);

    /// Returns true if `step`, which `state` allows, happens sooner or later unless another step prevents it. Faults
    /// may never happen.
    fn is_certain(&self, state: &Self::State, step: Self::Step) -> bool;

    /// Returns the state after `step`, which `state` allows.
    ///
    /// # Errors
    /// The rule that the step breaks.
    fn take(&self, state: &Self::State, step: Self::Step) -> Result<Self::State, Self::Violation>;

    /// Judges a state in which no certain step is left.
    ///
    /// # Errors
    /// The rule that such a state breaks.
    fn rest(&self, state: &Self::State) -> Result<(), Self::Violation>;

    /// Returns a number that two states share, by all likelihood, only if the same can come of them.
    fn fingerprint(&self, state: &Self::State, hasher: &FixedState) -> u64 {
        hasher.hash_one(state)
    }

    /// Returns the rule that a run without an end breaks.
    fn endless(&self) -> Self::Violation;
}

/// The result of a search.
#[derive(Debug)]
pub struct Report<S, V> {
    /// The number of states found.
    pub states: usize,
    /// The number of steps between them.
    pub steps: u64,
    /// The number of steps to the state that is farthest from the first one.
    pub depth: u32,
    /// The number of states in which no certain step is left.
    pub rests: u64,
    /// False if the search ended at its limit.
    pub is_complete: bool,
    /// The rule that does not hold, with a run that breaks it. No run is shorter, except of an endless run, which is
    /// told by one of its states.
    pub violation: Option<(V, Vec<S>)>,
    /// The time that the search took.
    pub time: Duration,
}

/// The number of states that are kept together.
const CHUNK: usize = 1024;

/// The predecessor of a state, and the step from there; the first state is its own.
type Origin<S> = (u32, S);

struct Search<'a, M: Model> {
    model: &'a M,
    known: HashMap<u64, u32, BuildHasherDefault<AsItIs>>,
    origins: Vec<Option<Origin<M::Step>>>,
    /// The number of steps from each state, and the states to which they lead, in the order of the states.
    degrees: Vec<u8>,
    edges: Vec<u32>,
    hasher: FixedState,
}

/// Searches all states of `model`, at most `limit`. Then looks for a run without an end.
pub fn search<M: Model>(model: &M, limit: usize) -> Report<M::Step, M::Violation> {
    let start = Instant::now();
    let mut search = Search {
        model,
        known: HashMap::default(),
        origins: Vec::new(),
        degrees: Vec::new(),
        edges: Vec::new(),
        hasher: FixedState::default(),
    };
    let mut report =
        Report { states: 0, steps: 0, depth: 0, rests: 0, is_complete: true, violation: None, time: Duration::ZERO };
    if let Err((violation, at, last)) = search.run(limit, &mut report) {
        report.violation = Some((violation, search.way(at, last)));
    } else if let Some(at) = report.is_complete.then(|| search.endless()).flatten() {
        report.violation = Some((model.endless(), search.way(at, None)));
    }
    report.states = search.origins.len();
    report.time = start.elapsed();
    report
}

/// A violation, the number of the state before it, and the step that broke the rule, if one did.
type Broken<M> = (<M as Model>::Violation, u32, Option<<M as Model>::Step>);

impl<M: Model> Search<'_, M> {
    fn run(&mut self, limit: usize, report: &mut Report<M::Step, M::Violation>) -> Result<(), Broken<M>> {
        let first = self.model.first();
        self.note(&first, None);
        let mut now = vec![vec![(0, first)]];
        let mut next: Vec<Vec<(u32, M::State)>> = Vec::new();
        let mut steps = Vec::new();
        while !now.is_empty() {
            for (number, state) in now.drain(..).flatten() {
                self.model.steps(&state, &mut steps);
                self.degrees.push(u8::try_from(steps.len()).expect("at most 255 steps from a state"));
                let mut is_rest = true;
                for step in steps.drain(..) {
                    report.steps += 1;
                    is_rest &= !self.model.is_certain(&state, step);
                    let after = self.model.take(&state, step).map_err(|broken| (broken, number, Some(step)))?;
                    let (found, is_new) = self.note(&after, Some((number, step)));
                    self.edges.push(found);
                    if is_new {
                        // States are kept in chunks, so that they go as they are searched, and none is moved.
                        match next.last_mut().filter(|chunk| chunk.len() < CHUNK) {
                            Some(chunk) => chunk.push((found, after)),
                            None => next.push(vec![(found, after)]),
                        }
                    }
                }
                if is_rest {
                    report.rests += 1;
                    self.model.rest(&state).map_err(|broken| (broken, number, None))?;
                }
                if self.origins.len() > limit {
                    report.is_complete = false;
                    return Ok(());
                }
            }
            std::mem::swap(&mut now, &mut next);
            report.depth += u32::from(!now.is_empty());
        }
        Ok(())
    }

    /// Returns the number of `state`, and true if it is new.
    fn note(&mut self, state: &M::State, origin: Option<Origin<M::Step>>) -> (u32, bool) {
        let number = u32::try_from(self.origins.len()).expect("fewer than 2^32 states");
        let found = *self.known.entry(self.model.fingerprint(state, &self.hasher)).or_insert(number);
        if found == number {
            self.origins.push(origin);
        }
        (found, found == number)
    }

    /// Returns the steps from the first state to the one numbered `at`, and then `last`.
    fn way(&self, mut at: u32, last: Option<M::Step>) -> Vec<M::Step> {
        let mut way: Vec<M::Step> = last.into_iter().collect();
        while let Some((before, step)) = self.origins[at as usize] {
            way.push(step);
            at = before;
        }
        way.reverse();
        way
    }

    /// Returns a state that leads back to itself. Taking away states to which no step leads, again and again, leaves
    /// none if every run ends.
    fn endless(&self) -> Option<u32> {
        let count = self.origins.len();
        let mut into = vec![0_u32; count];
        self.edges.iter().for_each(|after| into[*after as usize] += 1);
        let mut first_edges = Vec::with_capacity(count);
        let mut edges = 0_usize;
        for degree in &self.degrees {
            first_edges.push(edges);
            edges += usize::from(*degree);
        }
        let mut free: Vec<u32> = (0_u32..).zip(&into).filter(|(_, into)| **into == 0).map(|(state, _)| state).collect();
        while let Some(state) = free.pop() {
            let first = first_edges[state as usize];
            for &after in &self.edges[first..first + usize::from(self.degrees[state as usize])] {
                into[after as usize] -= 1;
                if into[after as usize] == 0 {
                    free.push(after);
                }
            }
        }
        (0_u32..).zip(&into).find(|(_, into)| **into > 0).map(|(state, _)| state)
    }
}

/// Fingerprints are spread well already.
#[derive(Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two jugs of 3 and 5 litres. The rule is that no jug holds `never`.
    struct Jugs {
        never: u8,
    }

    impl Model for Jugs {
        type State = [u8; 2];
        type Step = char;
        type Violation = &'static str;

        fn first(&self) -> [u8; 2] {
            [0, 0]
        }

        fn steps(&self, _: &[u8; 2], steps: &mut Vec<char>) {
            steps.extend("fFeEpP".chars());
        }

        fn is_certain(&self, state: &[u8; 2], step: char) -> bool {
            self.take(state, step).is_ok_and(|after| after != *state)
        }

        fn take(&self, &[a, b]: &[u8; 2], step: char) -> Result<[u8; 2], &'static str> {
            let after = match step {
                'f' => [3, b],
                'F' => [a, 5],
                'e' => [0, b],
                'E' => [a, 0],
                'p' => [a - a.min(5 - b), b + a.min(5 - b)],
                _ => [a + b.min(3 - a), b - b.min(3 - a)],
            };
            if after.contains(&self.never) { Err("never") } else { Ok(after) }
        }

        fn rest(&self, state: &[u8; 2]) -> Result<(), &'static str> {
            if *state == [3, 5] { Ok(()) } else { Err("rest") }
        }

        fn endless(&self) -> &'static str {
            "endless"
        }
    }

    #[test]
    fn all_states_are_found() {
        let report = search(&Jugs { never: 9 }, 100);
        assert_eq!((report.states, report.is_complete), (16, true));
    }

    #[test]
    fn the_shortest_run_that_breaks_a_rule_is_told() {
        let report = search(&Jugs { never: 4 }, 100);
        let (rule, way) = report.violation.expect("four litres can be measured");
        assert_eq!((rule, way.len()), ("never", 6));
        let report = search(&Jugs { never: 7 }, 100);
        assert_eq!(report.violation.expect("jugs are filled and emptied without end").0, "endless");
    }

    #[test]
    fn a_search_that_ends_at_its_limit_says_so() {
        assert!(!search(&Jugs { never: 9 }, 3).is_complete);
    }
}
