//! Messages over every kind of connection: devices, rails, lanes, groups, pipelines, and ports with limits.

use std::io::Write as _;

use railweave_fake_ibverbs::build_without;
use railweave_nccl_host::net::{NetApi, Request};
use railweave_nccl_host::{LoadedNet, Plugin};

use crate::common::{Buffer, Pair, Random, alone, each, noise, start, until, warnings};
use crate::machine::{EVEN, FUSED, INFINIBAND, ROCE, finish, library, machine, with};

/// Returns the bytes of messages that each rail carried, in the order of the ports.
fn bytes_of_rails(plugin: &Plugin) -> Vec<u64> {
    let mut rails = plugin.rail_counters().expect("the plugin counts");
    rails.sort_by(|one, other| one.local.cmp(&other.local));
    rails.iter().map(|rail| rail.data_bytes).collect()
}

fn names(net: &LoadedNet) -> Vec<String> {
    (0..net.devices().unwrap()).map(|device| net.properties(device).unwrap().name).collect()
}

/// Sizes around every boundary at which messages are split differently.
const SIZES: [usize; 26] = [
    0, 1, 63, 64, 65, 127, 128, 129, 255, 256, 8191, 8192, 8193, 65_535, 65_536, 65_537, 131_071, 131_072, 1_000_001,
    1_048_575, 1_048_576, 1_048_577, 3_000_000, 8_388_608, 8_388_609, 25_000_000,
];

/// The limit of a port's messages in bytes: the shortest among the known adapters.
const SHORTEST: &str = "max_message = 0x800000\n";

/// Moves a message of each size over one connection, and checks every byte in it and around it.
fn every_size(pair: &Pair<'_>) {
    let message = noise(3, *SIZES.last().unwrap());
    let (from, mut to) = (pair.outgoing(&message), pair.incoming(message.len() + 500));
    for bytes in SIZES.into_iter().chain(SIZES.into_iter().rev()) {
        assert_eq!(pair.transfer(&from, bytes, &to), (bytes as i32, bytes as i32));
        to.assert_holds(&message[..bytes]);
        to.clear();
    }
    pair.release_outgoing(from);
    pair.release_incoming(to);
}

#[test]
fn each_port_is_a_device_and_the_machine_may_stand_in_a_file() {
    let path = std::env::temp_dir().join(format!("railweave-machine-{}", std::process::id()));
    let file = path.to_str().unwrap().to_owned();
    // Every process of the test runs this line; the scenario's process has its own path.
    std::fs::File::create(&path).unwrap().write_all(ROCE.as_bytes()).unwrap();
    alone(&with(&[("RAILWEAVE_TEST_MACHINE", &file)]), || {
        let fake = railweave_fake_ibverbs::FakeVerbs::load(library().as_ref()).unwrap();
        let (plugin, net) = start();
        assert_eq!(names(&net), ["mlx5_0", "mlx5_1"]);
        for device in [0, 1] {
            let pair = Pair::open(&net, &net, device);
            every_size(&pair);
            let lanes = fake.queue_pairs();
            assert!(lanes.iter().all(|lane| lane.device == format!("mlx5_{device}")));
            pair.close();
        }
        assert_eq!(bytes_of_rails(&plugin).len(), 2);
        finish(&fake, net);
        assert!(warnings().is_empty());
    });
    let _ = std::fs::remove_file(&path);
}

/// The split follows the speeds that the ports report.
const BY_SPEED: (&str, &str) = ("RAILWEAVE_POLICY", "speed");

#[test]
fn ports_become_one_device_as_the_settings_say_and_share_by_weight() {
    // The settings, the device's name, and the part of the bytes that the first port carries.
    type Settings = &'static [(&'static str, &'static str)];
    let cases: [(Settings, &str, f64); 6] = [
        (&[FUSED, BY_SPEED], "mlx5_0+mlx5_1", 0.8),
        (&[BY_SPEED, ("MPIB_HCA_SOUT", "mlx5_0"), ("MPIB_HCA_SUP", "mlx5_1")], "mlx5_0+mlx5_1", 0.8),
        (&[FUSED, BY_SPEED, ("RAILWEAVE_RAILS", "mlx5_1,mlx5_0")], "mlx5_1+mlx5_0", 0.8),
        (&[FUSED, ("RAILWEAVE_WEIGHTS", "80,20")], "mlx5_0+mlx5_1", 0.8),
        (&[FUSED, ("RAILWEAVE_RAILS", "mlx5_1,mlx5_0"), ("RAILWEAVE_WEIGHTS", "80,20")], "mlx5_1+mlx5_0", 0.2),
        (&[FUSED, EVEN], "mlx5_0+mlx5_1", 0.5),
    ];
    each(
        &cases,
        |(settings, ..)| with(settings),
        |(_, name, share)| {
            let fake = machine(ROCE);
            let (plugin, net) = start();
            assert_eq!(names(&net), [*name]);
            let pair = Pair::open(&net, &net, 0);
            every_size(&pair);
            pair.close();
            let bytes = bytes_of_rails(&plugin);
            let total: u64 = bytes.iter().sum();
            assert_eq!((bytes.len(), total), (2, 2 * SIZES.iter().sum::<usize>() as u64));
            let error = bytes[0] as f64 / total as f64 - share;
            assert!(error.abs() < 0.01, "{bytes:?}");
            finish(&fake, net);
            assert!(warnings().is_empty());
        },
    );
}

#[test]
fn every_kind_of_lane_and_port_carries_every_size() {
    // The machine and the settings.
    let limited = |limits: &str, port: &str| {
        ROCE.replace(
            "[[device.port]]\n",
            &format!(
                "{limits}[[device.port]]\n\
        {port}"
            ),
        )
    };
    type Settings = &'static [(&'static str, &'static str)];
    let cases: Vec<(String, Settings)> = vec![
        (ROCE.to_owned(), &[("RAILWEAVE_LANES", "3")]),
        (ROCE.to_owned(), &[("RAILWEAVE_LANES", "1,3"), ("RAILWEAVE_SPLIT_DATA_ON_LANES", "1")]),
        // This many lanes need more completions than one of the known adapters has and, without a shared receive queue,
        // most of what any of them has.
        (limited("max_cqe = 32767\n", ""), &[("RAILWEAVE_LANES", "16"), ("RAILWEAVE_SPLIT_DATA_ON_LANES", "1")]),
        (
            limited("max_srq = 0\nmax_cqe = 32767\n", ""),
            &[("RAILWEAVE_LANES", "16"), ("RAILWEAVE_SPLIT_DATA_ON_LANES", "1")],
        ),
        (ROCE.to_owned(), &[("RAILWEAVE_BYTE_COUNTS", "0")]),
        (limited("byte_counts = false\n", ""), &[("RAILWEAVE_BYTE_COUNTS", "0")]),
        (limited("max_srq = 0\n", ""), &[("RAILWEAVE_LANES", "3")]),
        (limited("max_inline = 0\n", ""), &[]),
        (limited("", SHORTEST), &[]),
        (limited("max_srq = 0\nmax_inline = 0\n", SHORTEST), &[("NCCL_IB_ADAPTIVE_ROUTING", "1")]),
        (INFINIBAND.to_owned(), &[]),
        (INFINIBAND.to_owned(), &[("NCCL_IB_AR_THRESHOLD", "100000"), ("RAILWEAVE_LANES", "2")]),
        (INFINIBAND.to_owned(), &[("RAILWEAVE_LANES", "2"), ("RAILWEAVE_SPLIT_DATA_ON_LANES", "1")]),
        (INFINIBAND.replace("[[device.port]]\n", "[[device.port]]\ngrh_required = true\n"), &[EVEN]),
    ];
    each(
        &cases,
        |(_, settings)| with(&[&[FUSED], *settings].concat()),
        |(description, _)| {
            let fake = machine(description);
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            every_size(&pair);
            pair.close();
            finish(&fake, net);
            assert!(warnings().is_empty());
        },
    );
}

#[test]
fn an_older_library_carries_every_size() {
    let older = build_without(&["ibv_reg_mr_iova2", "ibv_query_ece", "ibv_set_ece", "_ibv_query_gid_ex"]);
    let older = older.to_str().unwrap();
    alone(&[&with(&[])[..], &[("NCCL_IBVERBS_LIB", older), FUSED]].concat(), || {
        let older = std::env::var("NCCL_IBVERBS_LIB").unwrap();
        let fake = railweave_fake_ibverbs::FakeVerbs::load(older.as_ref()).unwrap();
        fake.describe(Some(ROCE)).unwrap();
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        every_size(&pair);
        pair.close();
        finish(&fake, net);
        assert!(warnings().is_empty());
    });
}

#[test]
fn groups_are_filled_by_tag_over_two_rails() {
    each(
        &["0", "1"],
        |striped| with(&[FUSED, EVEN, ("RAILWEAVE_LANES", "2"), ("RAILWEAVE_SPLIT_DATA_ON_LANES", striped)]),
        |_| {
            let fake = machine(ROCE);
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            let mut random = Random::new(11);
            for count in (1..=8).cycle().take(40) {
                let messages: Vec<Vec<u8>> = (0..count)
                    .map(|_| noise(random.next(), [0, 1, 128, 1000, 8192, 70_001, 300_000][random.below(7)]))
                    .collect();
                let from: Vec<Buffer> = messages.iter().map(|message| pair.outgoing(message)).collect();
                let to: Vec<Buffer> = messages.iter().map(|message| pair.incoming(message.len() + 50)).collect();
                let parts: Vec<_> = to.iter().enumerate().map(|(tag, buffer)| buffer.part(tag as i32)).collect();
                let recv = pair.irecv(&parts);
                let mut order: Vec<usize> = (0..count).collect();
                random.shuffle(&mut order);
                let sends: Vec<_> =
                    order.iter().map(|&tag| pair.isend(&from[tag], messages[tag].len(), tag as i32)).collect();
                let (_, received) = pair.finish(&sends, &[recv]);
                for (tag, message) in messages.iter().enumerate() {
                    assert_eq!(received[0][tag], message.len() as i32);
                    to[tag].assert_holds(message);
                }
                from.into_iter().for_each(|buffer| pair.release_outgoing(buffer));
                to.into_iter().for_each(|buffer| pair.release_incoming(buffer));
            }
            pair.close();
            finish(&fake, net);
            assert!(warnings().is_empty());
        },
    );
}

/// A place of a pipeline: a buffer on each side, and the transfer in progress between them.
struct Place {
    from: Buffer,
    to: Buffer,
    message: Vec<u8>,
    send: Option<Request>,
    recv: Option<Request>,
}

/// One direction of traffic, with the number of messages posted, sent and done so far.
struct Line<'a> {
    pair: &'a Pair<'a>,
    places: Vec<Place>,
    posted: usize,
    sent: usize,
    done: usize,
}

/// Messages in progress in each direction.
const DEEP: usize = 32;
const LARGEST: usize = 400_000;

impl<'a> Line<'a> {
    fn new(pair: &'a Pair<'a>) -> Self {
        let place = |_| Place {
            from: pair.outgoing(&[0; LARGEST]),
            to: pair.incoming(LARGEST),
            message: Vec::new(),
            send: None,
            recv: None,
        };
        Self { pair, places: (0..DEEP).map(place).collect(), posted: 0, sent: 0, done: 0 }
    }

    /// Posts and sends as much as there are places for.
    fn post(&mut self, random: &mut Random, messages: usize) {
        while self.posted < messages {
            let place = &mut self.places[self.posted % DEEP];
            if place.send.is_some() || place.recv.is_some() {
                break;
            }
            place.message = noise(random.next(), random.below(LARGEST + 1) >> (random.below(4) * 4));
            place.from.write(&place.message);
            place.to.clear();
            place.recv = self.pair.try_irecv(&[place.to.part(1)], false).unwrap();
            assert!(place.recv.is_some(), "there is room for {DEEP} receives");
            self.posted += 1;
        }
        while self.sent < self.posted {
            let place = &mut self.places[self.sent % DEEP];
            place.send = self.pair.try_isend(&place.from, place.message.len(), 1).unwrap();
            if place.send.is_none() {
                break;
            }
            self.sent += 1;
        }
    }

    /// Tests everything in progress, in random order.
    fn test(&mut self, random: &mut Random) {
        let mut order: Vec<usize> = (0..DEEP).collect();
        random.shuffle(&mut order);
        for index in order {
            let place = &mut self.places[index];
            let pair = self.pair;
            place.send.take_if(|send| pair.test_send(send).unwrap().is_some());
            let received = place.recv.as_ref().and_then(|recv| pair.test_recv(recv).unwrap());
            if let Some(sizes) = received {
                assert_eq!(sizes[0], place.message.len() as i32);
                place.to.assert_holds(&place.message);
                place.recv = None;
                self.done += 1;
            }
        }
    }

    fn is_over(&self, messages: usize) -> bool {
        self.done == messages && self.places.iter().all(|place| place.send.is_none())
    }

    fn release(self) {
        for place in self.places {
            self.pair.release_outgoing(place.from);
            self.pair.release_incoming(place.to);
        }
    }
}

/// Keeps many messages of random sizes in progress in both directions.
fn pipelines(pairs: &[Pair<'_>; 2], messages: usize) {
    let mut random = Random::new(5);
    let mut lines = pairs.each_ref().map(Line::new);
    until("all pipelined messages", || {
        for line in &mut lines {
            line.post(&mut random, messages);
            line.test(&mut random);
        }
        lines.iter().all(|line| line.is_over(messages)).then_some(())
    });
    lines.into_iter().for_each(Line::release);
}

#[test]
fn deep_pipelines_move_both_ways_at_once() {
    type Settings = &'static [(&'static str, &'static str)];
    let cases: [(&str, Settings); 4] = [
        (ROCE, &[FUSED]),
        (ROCE, &[FUSED, EVEN, ("RAILWEAVE_LANES", "3"), ("RAILWEAVE_SPLIT_DATA_ON_LANES", "1")]),
        (INFINIBAND, &[FUSED]),
        // No adapter limits messages to so few bytes. The limit needs longer queues than most adapters have.
        (
            "[[device]]\nname = 'small'\nprofile = 'plain'\nmax_srq = 0\nmax_qp_wr = 32769\n\
            [[device.port]]\nmax_message = 0x40000\n",
            &[],
        ),
    ];
    each(
        &cases,
        |(_, settings)| with(settings),
        |(description, _)| {
            let fake = machine(description);
            let (plugin, first) = start();
            let second = plugin.init(2, None).unwrap();
            let pairs = [Pair::open(&first, &second, 0), Pair::open(&second, &first, 0)];
            pipelines(&pairs, 400);
            pairs.into_iter().for_each(Pair::close);
            first.finalize().unwrap();
            finish(&fake, second);
            assert!(warnings().is_empty());
        },
    );
}
