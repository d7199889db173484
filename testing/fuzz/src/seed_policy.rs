//! The table of weights: an agent that writes anything in its place, and everybody else who replaces or cuts it.
//!
//! Each rank has the weight that docs/policy.md says, from 0 to 1, whatever happened before: a model next to it follows
//! that page. Each kind of trouble is said once, in a sentence whose advice works. An order gives away all of the data.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::UNIX_EPOCH;

use railweave_telemetry::{MOST_RANKS, SEED_POLICY_MAGIC, SeedPolicy, Steering, Subject};

use crate::file::{Folder, assert_helpful};
use crate::input::Input;

const MOST_STEPS: usize = 20;

/// The largest size to which a file is set. A larger table has more ranks than an input needs.
const MOST_BYTES: u64 = 4096;

/// The kinds of trouble that a file's content can cause: the magic number, too few bytes, too many ranks, a weight.
const KINDS: usize = 4;

const NAME: &str = "table";

/// The weights as the page says, by other code.
#[derive(Default)]
struct Model {
    weights: Vec<Option<f32>>,
}

impl Model {
    /// Follows the content of the file. Returns true if something is wrong with it.
    fn follow(&mut self, file: Option<&[u8]>) -> bool {
        let Some(file) = file else {
            self.weights.clear();
            return false;
        };
        let number = |at: usize| Some(u32::from_le_bytes(file.get(at..at + 4)?.try_into().ok()?));
        let (Some(SEED_POLICY_MAGIC), Some(ranks)) = (number(0), number(4)) else { return true };
        let mut is_wrong = ranks > MOST_RANKS;
        self.weights.resize(ranks.min(MOST_RANKS) as usize, None);
        for (rank, last_good) in self.weights.iter_mut().enumerate() {
            let (Some(weight), Some(version)) = (number(8 + 8 * rank), number(12 + 8 * rank)) else { return true };
            let weight = f32::from_bits(weight);
            if weight == 0.0 && version == 0 {
                *last_good = None;
            } else if (0.0..=1.0).contains(&weight) {
                *last_good = Some(weight);
            } else {
                is_wrong = true;
            }
        }
        is_wrong
    }
}

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let folder = Folder::new();
    let path = folder.file(NAME);
    let (mut table, mut model) = (SeedPolicy::new(&path), Model::default());
    let mut steering = Steering::new(folder.file("none"), &path);
    let mut said = 0;
    for _ in 0..MOST_STEPS {
        if input.is_empty() {
            break;
        }
        change(&folder, &mut input);
        let before = (table.revision(), weights(&table));
        // A second sentence waits for the next poll.
        let sentences: Vec<String> = std::iter::from_fn(|| table.poll()).take(2 * KINDS).collect();
        for sentence in &sentences {
            assert_helpful(sentence, &path);
            assert_advice(sentence);
        }
        let file = fs::read(&path).ok();
        said = if file.is_some() { said + sentences.len() } else { 0 };
        assert!(said <= KINDS, "each kind of trouble is said once: {sentences:?}");
        let is_wrong = model.follow(file.as_deref());
        assert!(if is_wrong { said > 0 } else { sentences.is_empty() }, "{sentences:?} of {file:?}");
        assert_eq!(weights(&table), model.weights, "{file:?}");
        assert_eq!(table.exists(), file.is_some());
        assert_eq!(before.0 != table.revision(), before.1 != model.weights, "the revision follows the weights");
        assert_eq!((table.weight(table.ranks()), table.weight(u32::MAX)), (None, None));
        for sentence in steering.poll(UNIX_EPOCH) {
            assert_helpful(&sentence, &path);
            assert_advice(&sentence);
        }
        orders(&mut steering, &model);
    }
}

/// Changes the file: another one, none, some bytes of it, its size.
fn change(folder: &Folder, input: &mut Input<'_>) {
    let path = folder.file(NAME);
    let in_place = || OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let in_place = || in_place().expect("the file can be opened");
    match input.u8() % 8 {
        // A table of some entries, and a number of ranks that may be another.
        0 | 1 => {
            let (ranks, entries) = (input.u8(), input.u8() % 16);
            let ranks = if ranks < 128 { u32::from(ranks) } else { input.u32() };
            let head = [SEED_POLICY_MAGIC.to_le_bytes(), ranks.to_le_bytes()].concat();
            folder.put(NAME, &[&head, input.take(8 * usize::from(entries))].concat());
        }
        2 => {
            let length = usize::from(input.u8());
            folder.put(NAME, input.take(length));
        }
        // An agent sets the weight of a rank.
        3 | 4 => {
            let (rank, weight, version) = (u64::from(input.u8() % 16), input.u32(), u32::from(input.u8()));
            let entry = [weight.to_le_bytes(), version.to_le_bytes()].concat();
            in_place().write_all_at(&entry, 8 + 8 * rank).expect("the file can be written");
        }
        5 => {
            let (at, length) = (u64::from(input.u8()), usize::from(input.u8() % 16));
            in_place().write_all_at(input.take(length), at).expect("the file can be written");
        }
        6 => in_place().set_len(u64::from(input.u16()) % MOST_BYTES).expect("the file can be cut"),
        _ => drop(fs::remove_file(&path)),
    }
}

fn weights(table: &SeedPolicy) -> Vec<Option<f32>> {
    (0..table.ranks()).map(|rank| table.weight(rank)).collect()
}

/// Checks that `railweave policy init` takes the number of ranks that a sentence advises.
fn assert_advice(sentence: &str) {
    let Some((_, ranks)) = sentence.split_once("--ranks ") else { return };
    let digits = ranks.split(|letter: char| !letter.is_ascii_digit()).next().unwrap_or_default();
    let is_taken = digits.parse().is_ok_and(|ranks: u32| (1..=MOST_RANKS).contains(&ranks));
    assert!(is_taken, "a table cannot have this many ranks: {sentence}");
}

/// Checks the orders for the first ranks, for one that is in no table, and for one that is not known.
fn orders(steering: &mut Steering, model: &Model) {
    for peer_rank in (0..16).chain([MOST_RANKS, u32::MAX]).map(Some).chain([None]) {
        let subject = Subject { peer_host: "node3", peer_rank, rails: &["eth0", "eth1", "eth2"], ..Subject::default() };
        let weight = peer_rank.and_then(|rank| model.weights.get(rank as usize).copied().flatten());
        let order = steering.decide(&subject);
        assert_eq!(order.is_some(), weight.is_some(), "{peer_rank:?}");
        let (Some(order), Some(weight)) = (order, weight) else { continue };
        let weights = order.weights.expect("a table orders weights");
        assert_eq!((order.policy, order.drained), (None, 0));
        assert_eq!((weights.iter().sum::<u32>(), weights[2..].iter().sum::<u32>()), (1_000_000, 0));
        assert!((f64::from(weights[1]) / 1e6 - f64::from(weight)).abs() < 1e-6, "{weights:?} for {weight}");
        let one_rail = Subject { rails: &["eth0"], ..subject };
        assert_eq!(steering.decide(&one_rail), None, "one rail has nothing to share");
    }
}
