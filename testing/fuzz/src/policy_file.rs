//! The policy file of Railweave: any bytes.
//!
//! A file is taken whole or refused with one sentence. An order of one that is taken keeps the promises of
//! docs/policy.md, a refused one changes no order, and neither a comment nor a later heartbeat changes any.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use railweave_telemetry::{Order, Policy, PolicyFile, RAILS, Subject};

use crate::file::{Folder, assert_helpful};
use crate::input::Input;

/// The most bytes of a file that is put together from words.
const MOST_BYTES: usize = 1 << 16;

/// The times at which a file is read, in seconds since 1970.
const TIMES_S: [u64; 4] = [1_790_000_000, 1_790_000_040, 1_789_999_000, 0];

/// Parts of files, by their numbers in an input.
pub(crate) const WORDS: &[&str] = &[
    "railweave-policy 1\n",
    "written 1790000000\n",
    "ttl 30\n",
    "ttl forever\n",
    "\n",
    " ",
    "any",
    "job=4711",
    "rank=0-7",
    "peer=node3,node4",
    "peer=node9*",
    "device=mlx5_0+*",
    "rail=mlx5_2",
    "rail=0",
    "rail=1,7",
    " -> ",
    "weights 80,20",
    "weights 1,0,0,0,0,0,0,1000000",
    "policy static",
    "policy speed",
    "policy adaptive",
    "drain",
    "only",
    "# a comment\n",
    ",",
    "*",
    "=",
    "-",
    "18446744073709551615",
    "4294967295",
    "\u{a0}",
    "\u{1b}",
];

/// The order of the file that was good before.
const BEFORE: &str = "railweave-policy 1\nttl forever\nany -> weights 3,5\n";
const WEIGHTS_BEFORE: Option<[u32; RAILS]> = Some([3, 5, 0, 0, 0, 0, 0, 0]);

const PORTS: [&str; 9] = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "eth0", "", "10.0.0.1", "\u{1b}", "mlx5_8"];

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let at_s = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
    let now = at_s(input.choose(&TIMES_S));
    let content = if input.u8().is_multiple_of(2) { input.rest().to_vec() } else { from_words(&mut input) };
    let folder = Folder::new();

    folder.put("policy", &content);
    let mut fresh = PolicyFile::new(folder.file("policy"));
    let refusal = fresh.poll(now);
    assert_eq!(fresh.is_in_force(), refusal.is_none(), "a file is in force, or a sentence says why it is not");
    refusal.iter().for_each(|sentence| assert_helpful(sentence, fresh.path()));
    assert_quiet(&mut fresh, now);
    let orders = orders(&fresh);
    assert!(fresh.is_in_force() || orders.iter().all(Option::is_none), "a file that is not in force orders nothing");

    // The same file after a good one.
    folder.put("other", BEFORE.as_bytes());
    let mut second = PolicyFile::new(folder.file("other"));
    assert_eq!(second.poll(now), None);
    let revision = second.revision();
    folder.put("other", &content);
    let sentence = second.poll(now);
    sentence.iter().for_each(|sentence| assert_helpful(sentence, second.path()));
    assert_quiet(&mut second, now);
    assert_eq!(sentence.is_some(), refusal.is_some());
    if refusal.is_some_and(|refusal| refusal.ends_with("(it orders nothing)")) {
        let sentence = sentence.unwrap_or_default();
        assert!(sentence.ends_with("(the last good file holds)"), "{sentence}");
        assert!(second.is_in_force() && second.revision() == revision, "a file that is wrong changes no order");
        assert!(self::orders(&second).iter().all(|order| order.is_some_and(|order| order.weights == WEIGHTS_BEFORE)));
    } else {
        assert_eq!((self::orders(&second), second.is_in_force()), (orders.clone(), fresh.is_in_force()));
    }

    if fresh.is_in_force() {
        let revision = fresh.revision();
        folder.put("policy", &[&content, &b"\n# a comment"[..]].concat());
        assert_quiet(&mut fresh, now);
        assert_eq!((self::orders(&fresh), fresh.revision()), (orders, revision), "a comment orders nothing");
    }
    // Its time to live is over, if it has one.
    if let Some(sentence) = fresh.poll(at_s(1 << 40)) {
        assert_helpful(&sentence, fresh.path());
        assert!(!fresh.is_in_force());
    }
    fs::remove_file(fresh.path()).expect("the file is there");
    assert_quiet(&mut fresh, now);
    assert!(!fresh.exists() && !fresh.is_in_force() && self::orders(&fresh).iter().all(Option::is_none));
}

/// Puts a file together: a byte from 128 on is a word by its number, a lower one the length of the text behind it.
fn from_words(input: &mut Input<'_>) -> Vec<u8> {
    let mut content = Vec::new();
    while !input.is_empty() && content.len() < MOST_BYTES {
        match usize::from(input.u8()) {
            which @ 128.. => content.extend(WORDS[(which - 128) % WORDS.len()].as_bytes()),
            length => content.extend(input.take(length)),
        }
    }
    content
}

fn assert_quiet(policy: &mut PolicyFile, now: SystemTime) {
    assert_eq!(policy.poll(now), None, "everything is said once");
}

/// Returns the orders for connections of all kinds, and checks them.
fn orders(policy: &PolicyFile) -> Vec<Option<Order>> {
    let known = Subject {
        job: "4711",
        rank: Some(5),
        peer_host: "node3",
        peer_rank: Some(9),
        device: "mlx5_0+mlx5_1",
        rails: &PORTS,
    };
    let subjects = [
        Subject::default(),
        known,
        Subject { rank: Some(u32::MAX), rails: &PORTS[..2], ..known },
        Subject { rails: &PORTS[2..3], peer_host: "node91", ..known },
        Subject { rails: &[], ..known },
        Subject { job: "", rank: None, device: "", rails: &PORTS[1..], ..known },
    ];
    let decide = |subject: &Subject<'_>| {
        let order = policy.decide(subject);
        order.iter().for_each(|order| check(order, subject));
        order
    };
    subjects.iter().map(decide).collect()
}

fn check(order: &Order, subject: &Subject<'_>) {
    if let Some(weights) = order.weights {
        assert!(weights.iter().any(|weight| *weight > 0), "one weight at least is not 0");
        assert!(weights.iter().all(|weight| *weight <= 1_000_000), "{weights:?}");
        assert_eq!(order.policy, None, "weights or a policy");
    }
    let policies = [None, Some(Policy::Static), Some(Policy::Speed), Some(Policy::Adaptive)];
    assert!(policies.contains(&order.policy), "{:?}", order.policy);
    let all = (1_u16 << subject.rails.len().min(RAILS)) - 1;
    let drained = u16::from(order.drained);
    assert!(drained & !all == 0 && (drained == 0 || drained != all), "{drained:b} of {all:b} carry no data");
}
