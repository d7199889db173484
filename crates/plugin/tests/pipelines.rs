//! Many transfers at once: both ways, tested in any order, up to the limit of a connection and no further.

mod common;

use common::{Buffer, Pair, Random, TWO_RAILS, alone, each, noise, start, until, warnings};
use railweave_nccl_host::net::Request;

const IN_FLIGHT: usize = 32;
const LARGEST: usize = 200_000;

/// One place of a pipeline: a buffer on each side, and the transfer in progress between them.
struct Place {
    from: Buffer,
    to: Buffer,
    message: Vec<u8>,
    send: Option<Request>,
    recv: Option<Request>,
    sizes: (Option<i32>, Option<i32>),
}

/// One direction of traffic.
struct Pipeline<'a> {
    pair: Pair<'a>,
    places: Vec<Place>,
    random: Random,
    posted: usize,
    sent: usize,
    done: usize,
    messages: usize,
}

impl<'a> Pipeline<'a> {
    fn new(pair: Pair<'a>, seed: u64, messages: usize) -> Self {
        let place = |_| Place {
            from: pair.outgoing(&[0; LARGEST]),
            to: pair.incoming(LARGEST),
            message: Vec::new(),
            send: None,
            recv: None,
            sizes: (None, None),
        };
        let places = (0..IN_FLIGHT).map(place).collect();
        Self { pair, places, random: Random::new(seed), posted: 0, sent: 0, done: 0, messages }
    }

    /// Posts a message in every free place, then tests every request once, in random order. Returns false once all is
    /// done.
    fn advance(&mut self) -> bool {
        while self.posted < self.messages && self.places[self.posted % IN_FLIGHT].recv.is_none() {
            let place = &mut self.places[self.posted % IN_FLIGHT];
            if place.send.is_some() {
                break;
            }
            let bytes = self.random.below(LARGEST + 1) >> (self.random.below(4) * 4);
            place.message = noise(self.random.next(), bytes);
            place.from.write(&place.message);
            place.to.clear();
            place.recv = self.pair.try_irecv(&[place.to.part(1)], false).unwrap();
            assert!(place.recv.is_some(), "there is room for {IN_FLIGHT} receives");
            self.posted += 1;
        }
        while self.sent < self.posted {
            let place = &mut self.places[self.sent % IN_FLIGHT];
            place.send = self.pair.try_isend(&place.from, place.message.len(), 1).unwrap();
            if place.send.is_none() {
                break;
            }
            self.sent += 1;
        }
        let mut order: Vec<usize> = (0..IN_FLIGHT).collect();
        self.random.shuffle(&mut order);
        order.into_iter().for_each(|index| self.test(index));
        self.done < self.messages
    }

    fn test(&mut self, index: usize) {
        let place = &mut self.places[index];
        if let (Some(send), None) = (&place.send, place.sizes.0) {
            place.sizes.0 = self.pair.test_send(send).unwrap();
        }
        if let (Some(recv), None) = (&place.recv, place.sizes.1) {
            place.sizes.1 = self.pair.test_recv(recv).unwrap().map(|sizes| sizes[0]);
        }
        if let (Some(sent), Some(received)) = place.sizes {
            assert_eq!((sent, received), (place.message.len() as i32, place.message.len() as i32));
            place.to.assert_holds(&place.message);
            (place.send, place.recv, place.sizes) = (None, None, (None, None));
            self.done += 1;
        }
    }
}

#[test]
fn thirty_two_in_flight_both_ways_arrive_whole_whatever_the_order_of_tests() {
    let settings = [vec![TWO_RAILS], vec![TWO_RAILS, ("RAILWEAVE_LANES", "3")]];
    each(&settings, Vec::clone, |_| {
        let (plugin, first) = start();
        let second = plugin.init(2, None).unwrap();
        let mut there = Pipeline::new(Pair::open(&first, &second, 0), 1, 600);
        let mut back = Pipeline::new(Pair::open(&second, &first, 0), 2, 600);
        until("both directions", || {
            let (there, back) = (there.advance(), back.advance());
            (!there && !back).then_some(())
        });
        assert!(warnings().is_empty());
        there.pair.close();
        back.pair.close();
    });
}

#[test]
fn ranks_in_threads_of_their_own_do_not_disturb_one_another() {
    alone(&[TWO_RAILS], || {
        let (plugin, _first) = start();
        std::thread::scope(|scope| {
            for rank in 0..4 {
                let plugin = &plugin;
                scope.spawn(move || {
                    let net = plugin.init(rank, None).unwrap();
                    let mut pipeline = Pipeline::new(Pair::open(&net, &net, 0), rank, 150);
                    until("the pipeline", || (!pipeline.advance()).then_some(()));
                    pipeline.pair.close();
                });
            }
        });
        assert!(warnings().is_empty());
    });
}

#[test]
fn a_receive_gets_no_request_while_all_places_are_taken_and_gets_one_again_after() {
    // Buffers per receive, and the receives that a connection holds: at most 256, with at most 512 buffers in all.
    each(
        &[(1, 256), (2, 256), (8, 64)],
        |_| vec![TWO_RAILS],
        |(buffers, places)| {
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            let (from, to) = (pair.outgoing(&noise(1, 64)), pair.incoming(64));
            let parts: Vec<_> = (0..*buffers).map(|tag| to.part(tag)).collect();
            let mut recvs = Vec::new();
            until("a full connection", || {
                recvs.extend(pair.try_irecv(&parts, false).unwrap());
                // Over TCP the sending end acknowledges CTS only when it is called. No receive has this tag, so nothing
                // is sent.
                assert!(pair.try_isend(&from, 64, -1).unwrap().is_none());
                (recvs.len() == *places).then_some(())
            });
            for _ in 0..100 {
                assert!(pair.try_irecv(&parts, false).unwrap().is_none());
            }
            let send = || (0..*buffers).map(|tag| pair.isend(&from, 64, tag)).collect::<Vec<_>>();
            let first = recvs.remove(0);
            pair.finish_beside(recvs.last(), &send(), &[first]);
            recvs.push(pair.irecv(&parts));
            assert!(pair.try_irecv(&parts, false).unwrap().is_none());
            while !recvs.is_empty() {
                let next = recvs.remove(0);
                pair.finish_beside(recvs.last(), &send(), &[next]);
            }
            assert!(warnings().is_empty());
        },
    );
}

#[test]
fn a_send_gets_no_request_before_its_receive_is_posted() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let message = noise(4, 30_000);
        let (from, to) = (pair.outgoing(&message), pair.incoming(30_000));
        for _ in 0..1000 {
            assert!(pair.try_isend(&from, 30_000, 7).unwrap().is_none());
        }
        assert_eq!(pair.transfer(&from, 30_000, &to), (30_000, 30_000));
        to.assert_holds(&message);
        for _ in 0..1000 {
            assert!(pair.try_isend(&from, 30_000, 7).unwrap().is_none());
        }
        pair.exchange(1, 1000);
    });
}
