//! Both sides of a set-up, over rails whose lanes are sockets, and over rails that both ends connect.

mod new_lanes;
mod plain;
mod probes;

use std::os::unix::net::UnixStream;

use railweave_fabric::{Fault, LaneEndpoint, RailSet, SettingId};

use self::plain::{Plain, Port, Writes};
use super::*;
use crate::message::Incarnation;
use crate::{Cause, ConnectionConfig, ConnectionEnd, Lanes, RailLanes, RecvConnection, SendConnection, Ways};

const DEADLINE_NS: u64 = 1000;
const TOKEN: Token = Token([7; 16]);

/// Both ends of a set-up, and everything that they have asked for.
struct Ends<const SOCKETS: bool> {
    connector: Connector<Plain<SOCKETS>>,
    acceptor: Acceptor<Plain<SOCKETS>>,
    /// The messages that have crossed.
    messages: Vec<Message>,
    dials: Vec<Dial>,
    sender: Option<Result<SendConnection<Plain<SOCKETS>>, Cause>>,
    receiver: Option<Result<RecvConnection<Plain<SOCKETS>>, Cause>>,
    events: [Vec<(RailId, LeftOut)>; 2],
    /// The names of the rails that were left out.
    names_left_out: Vec<String>,
    /// The writes over the first port of each end.
    writes: [Writes; 2],
}

impl<const SOCKETS: bool> Ends<SOCKETS> {
    /// Begins a set-up in which the first ports of both ends go together, and so on.
    fn new(from: &[Port<SOCKETS>], to: &[Port<SOCKETS>]) -> Self {
        Self::by(Step::Subnet, 0, from, to)
    }

    /// Begins the same set-up, whose pairs were found by this step of the ladder. The last `others` of the connector's
    /// ports do not belong to its device, and have no pair.
    fn by(step: Step, others: u8, from: &[Port<SOCKETS>], to: &[Port<SOCKETS>]) -> Self {
        let ports = |ports: &[Port<SOCKETS>]| ports.iter().cloned().map(Port::offered).collect();
        let (config, receiver) = (ConnectionConfig::default(), "the receiver".to_owned());
        let wanted = Wanted { nonce: 1, ways: Ways { others, ..Ways::default() } };
        let mut connector =
            Connector::new(config.clone(), ports(from), wanted, receiver, DEADLINE_NS, |_| Arc::default());
        let Some(Action::Send(Message::Offer(offer))) = connector.poll_action() else { panic!("no offer") };
        let pair = |port| AcceptPairing { connector_port: port, acceptor_port: port };
        let pairings: Vec<_> = (0..from.len() as u8 - others).map(pair).collect();
        let (pairings, sender) = (Ok((step, &pairings[..])), "the sender".to_owned());
        let acceptor =
            Acceptor::new(config, ports(to), &offer, pairings, TOKEN, sender, DEADLINE_NS, |_| Arc::default());
        Self {
            connector,
            acceptor,
            messages: Vec::new(),
            dials: Vec::new(),
            sender: None,
            receiver: None,
            events: [Vec::new(), Vec::new()],
            names_left_out: Vec::new(),
            writes: [from, to].map(|ports| Arc::clone(&ports[0].writes)),
        }
    }

    /// Carries messages both ways until there are none.
    fn exchange(&mut self) {
        loop {
            let of_connector: Vec<_> = std::iter::from_fn(|| self.connector.poll_event()).collect();
            let of_acceptor: Vec<_> = std::iter::from_fn(|| self.acceptor.poll_event()).collect();
            for (end, event) in
                of_connector.into_iter().map(|it| (0, it)).chain(of_acceptor.into_iter().map(|it| (1, it)))
            {
                let Event::RailLeftOut { rail, name, reason } = event else { panic!("{event:?}") };
                self.names_left_out.push(name.to_string());
                self.events[end].push((rail, reason));
            }
            match (self.connector.poll_action(), self.acceptor.poll_action()) {
                (None, None) => return,
                (connector, acceptor) => {
                    match connector {
                        Some(Action::Send(message)) => {
                            self.messages.push(message.clone());
                            self.acceptor.handle_message(message);
                        }
                        Some(Action::Dial(dial)) => self.dials.push(dial),
                        Some(Action::Ready(made)) => self.sender = Some(Ok(*made)),
                        Some(Action::Failed(error)) => self.sender = Some(Err((*error).clone())),
                        None => {}
                    }
                    match acceptor {
                        Some(Action::Send(message)) => {
                            self.messages.push(message.clone());
                            self.connector.handle_message(message);
                        }
                        Some(Action::Dial(_)) => panic!("only the connector dials"),
                        Some(Action::Ready(made)) => self.receiver = Some(Ok(*made)),
                        Some(Action::Failed(error)) => self.receiver = Some(Err((*error).clone())),
                        None => {}
                    }
                }
            }
        }
    }

    /// Gives each end its socket of a lane that was dialled.
    fn join(&mut self, dial: Dial) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let rail = dial.rail.index() as u8;
        assert_eq!(self.acceptor.awaits_lane(rail, dial.lane.0), Ok(()));
        assert_eq!(self.acceptor.handle_lane(rail, dial.lane.0, theirs.into()), Ok(()));
        self.connector.handle_dialled(dial.rail, dial.lane, Ok(ours.into()));
        self.exchange();
    }

    /// Returns the numbers of the rails of both ends, once both have a connection.
    fn made(&self) -> [Vec<usize>; 2] {
        let (Some(Ok(sender)), Some(Ok(receiver))) = (&self.sender, &self.receiver) else { panic!("not made") };
        [sender.rails(), receiver.rails()].map(|rails| rails.iter().map(|rail| rail.index).collect())
    }

    fn failures(&self) -> [Option<HandshakeFailure>; 2] {
        let failure = |cause: &Cause| match cause {
            Cause::Handshake { failure, .. } => failure.clone(),
            other => panic!("{other:?}"),
        };
        let sender = self.sender.as_ref().and_then(|made| made.as_ref().err());
        let receiver = self.receiver.as_ref().and_then(|made| made.as_ref().err());
        [sender.map(failure), receiver.map(failure)]
    }

    fn names(&self) -> Vec<&'static str> {
        self.messages.iter().map(Message::name).collect()
    }
}

fn rail(index: usize) -> RailId {
    RailId::new(index).expect("a connection has 8 rails")
}

fn left_out(index: usize, reason: LeftOut) -> (RailId, LeftOut) {
    (rail(index), reason)
}

/// Two ports at each end; the ends wish for different numbers of lanes.
fn sockets() -> Ends<true> {
    Ends::new(&[Port::new(1, 2), Port::new(2, 3)], &[Port::new(11, 4), Port::new(12, 1)])
}

#[test]
fn each_lane_that_is_a_socket_is_dialled_once_and_the_last_completes_the_connection() {
    let mut ends = sockets();
    ends.exchange();
    assert_eq!(ends.names(), ["ANSWER", "LANES", "LANES"]);
    // The smaller wish counts: 2 lanes, and 1.
    let lanes = [(0, 0, [1, 11]), (0, 1, [1, 11]), (1, 0, [2, 12])];
    let dial = |(index, lane, ends): (usize, u8, [u8; 2])| {
        let [local, remote] = ends.map(|number| Port::<true>::new(number, 1).address().into());
        Dial { rail: rail(index), lane: LaneId(lane), local, remote, token: TOKEN, incarnation: Incarnation::default() }
    };
    assert_eq!(ends.dials, lanes.map(dial));
    assert_eq!(ends.acceptor.token(), TOKEN);
    for dial in ends.dials.clone() {
        assert!(ends.sender.is_none() && ends.receiver.is_none());
        ends.connector.go_on(0);
        ends.acceptor.go_on(0);
        ends.exchange();
        assert_eq!(ends.names().len(), 3, "a lane is missing");
        ends.join(dial);
    }
    assert_eq!(ends.messages.last(), Some(&Message::Ready { usable: 0b11 }));
    assert_eq!(ends.made(), [vec![0, 1], vec![0, 1]]);
    assert_eq!([ends.connector.timeout_ns(), ends.acceptor.timeout_ns()], [None; 2]);
    assert!(!ends.connector.may_block() && !ends.acceptor.may_block());
}

#[test]
fn lanes_say_the_keys_of_what_the_peer_writes_to_and_nothing_of_sockets() {
    for byte_counts in [false, true] {
        let counting = Port { byte_counts, ..Port::new(12, 1) };
        let mut ends = Ends::<true>::new(&[Port::new(1, 1), Port::new(2, 1)], &[Port::new(11, 1), counting]);
        ends.exchange();
        let [_, Message::Lanes(from_connector), Message::Lanes(from_acceptor)] = &ends.messages[..] else { panic!() };
        for (lanes, counts, keys) in [(from_connector, false, [11, 21]), (from_acceptor, byte_counts, [111, 121])] {
            let rails = keys.map(|key| RailLanes::Open { key, endpoints: vec![Default::default()] });
            assert_eq!((lanes.byte_counts, &lanes.rails[..]), (counts, &rails[..]), "bytes count if all ports say so");
        }
    }
    let mut ends = Ends::<false>::new(&[Port::new(1, 2)], &[Port::new(11, 2)]);
    ends.exchange();
    let [_, Message::Lanes(lanes), ..] = &ends.messages[..] else { panic!() };
    assert_eq!(lanes.rails, [RailLanes::Open { key: 11, endpoints: vec![LaneEndpoint([1; LaneEndpoint::BYTES]); 2] }]);
}

#[test]
fn a_lane_that_cannot_be_dialled_leaves_its_rail_out() {
    let mut ends = sockets();
    ends.exchange();
    let [first, second, other] = ends.dials[..] else { panic!("{:?}", ends.dials) };
    ends.join(first);
    ends.connector.handle_dialled(second.rail, second.lane, Err("no route".to_owned()));
    ends.exchange();
    assert_eq!(ends.connector.parts(), [Port::<true>::new(2, 1).part()]);
    ends.join(other);
    assert_eq!(ends.messages.last(), Some(&Message::Ready { usable: 0b10 }));
    assert_eq!(ends.made(), [vec![1], vec![1]]);
    let undialled = LeftOut::Undialled("no route".to_owned());
    assert_eq!(ends.events, [vec![left_out(0, undialled)], vec![left_out(0, LeftOut::NotReady)]]);
}

#[test]
fn what_is_dialled_for_a_rail_that_is_left_out_already_changes_nothing() {
    let mut ends = sockets();
    ends.exchange();
    let [first, second, other] = ends.dials[..] else { panic!("{:?}", ends.dials) };
    ends.connector.handle_dialled(first.rail, first.lane, Err("no route".to_owned()));
    let (ours, _theirs) = UnixStream::pair().expect("sockets");
    ends.connector.handle_dialled(second.rail, second.lane, Ok(ours.into()));
    assert!(ends.sender.is_none(), "the other rail is still dialled");
    ends.join(other);
    assert_eq!(ends.made(), [vec![1], vec![1]]);
    assert_eq!(ends.events[0].len(), 1);
}

#[test]
fn a_connection_without_rails_fails_and_blames_this_host_if_only_it_is_at_fault() {
    for (is_deaf, fault) in [(true, Fault::Local), (false, Fault::Peer)] {
        let mut ends = Ends::<true>::new(&[Port { is_deaf, ..Port::new(1, 1) }], &[Port::new(11, 1)]);
        ends.exchange();
        let dial = ends.dials[0];
        let (ours, _theirs) = UnixStream::pair().expect("sockets");
        let socket = if is_deaf { Ok(ours.into()) } else { Err("no route".to_owned()) };
        ends.connector.handle_dialled(dial.rail, dial.lane, socket);
        ends.exchange();
        let [Some(failure), Some(HandshakeFailure::GaveUp(_))] = ends.failures() else { panic!() };
        assert!(
            matches!(failure, HandshakeFailure::NoRail { failed_here, .. } if failed_here == is_deaf),
            "{failure:?}"
        );
        assert_eq!(failure.fault(), fault);
    }
}

#[test]
fn a_rail_that_one_end_cannot_open_is_left_out_at_both() {
    let full = |number| Port { is_full: true, ..Port::new(number, 1) };
    let mut ends = Ends::<true>::new(
        &[full(1), Port::new(2, 1), Port::new(3, 1)],
        &[Port::new(11, 1), Port::new(12, 1), full(13)],
    );
    ends.exchange();
    let [dial] = ends.dials[..] else { panic!("{:?}", ends.dials) };
    ends.join(dial);
    assert_eq!(ends.made(), [vec![1], vec![1]]);
    let says = |number| LeftOut::PeerSays { reason: full(number).refusal().to_string(), is_of_way: false };
    let failed = |number| LeftOut::Failed(full(number).refusal());
    assert_eq!(ends.events[0], [left_out(0, failed(1)), left_out(2, says(13))]);
    assert_eq!(ends.events[1], [left_out(0, says(1)), left_out(2, failed(13))]);
}

#[test]
fn an_acceptor_awaits_one_open_socket_for_each_lane_and_a_connector_none() {
    let mut ends = sockets();
    let asked = |ends: &Ends<true>| {
        [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)].map(|(rail, lane)| ends.acceptor.awaits_lane(rail, lane))
    };
    let none = [0, 0, 0, 1, 2].map(|rail| Err(LaneRefused::NotAwaited(rail)));
    assert_eq!(asked(&ends), none, "it has not sent its lanes");
    ends.exchange();
    let beyond = Err(LaneRefused::NoSuchLane { rail: 0, lanes: 2 });
    assert_eq!(asked(&ends), [Ok(()), Ok(()), beyond.clone(), Ok(()), none[4].clone()]);
    let (first, ours) = UnixStream::pair().expect("sockets");
    assert_eq!(ends.acceptor.handle_lane(0, 0, ours.into()), Ok(()));
    assert_eq!(asked(&ends), [Err(LaneRefused::HasSocket), Ok(()), beyond.clone(), Ok(()), none[4].clone()]);
    let second = || UnixStream::pair().expect("sockets").1.into();
    assert_eq!(ends.acceptor.handle_lane(0, 0, second()), Err(LaneRefused::HasSocket));
    assert_eq!(ends.acceptor.handle_lane(0, 2, second()), beyond);
    drop(first);
    assert_eq!(ends.acceptor.awaits_lane(0, 0), Ok(()), "the peer has closed its socket");
    assert_eq!(ends.acceptor.handle_lane(0, 0, second()), Ok(()));
    for index in [0, 1] {
        let here = Err(LaneRefused::DialledHere(index));
        assert_eq!(ends.connector.awaits_lane(index, 0), here);
        assert_eq!(ends.connector.handle_lane(index, 0, second()), here);
    }
    ends.acceptor.handle_message(Message::Bye(None));
    assert_eq!(asked(&ends), none, "the handshake has ended");
    let mut exchanged = Ends::<false>::new(&[Port::new(1, 2)], &[Port { pauses: &[1], ..Port::new(11, 2) }]);
    exchanged.exchange();
    assert_eq!(exchanged.acceptor.awaits_lane(0, 0), Err(LaneRefused::NotAwaited(0)), "its lanes are no sockets");
}

#[test]
fn a_socket_that_cannot_be_used_is_refused() {
    let deaf = Port { is_deaf: true, ..Port::new(11, 1) };
    let mut ends = Ends::<true>::new(&[Port::new(1, 1)], std::slice::from_ref(&deaf));
    ends.exchange();
    let socket = UnixStream::pair().expect("sockets").1.into();
    assert_eq!(ends.acceptor.handle_lane(0, 0, socket), Err(LaneRefused::Unusable(deaf.refusal())));
}

#[test]
fn a_rail_is_not_ready_before_all_its_sockets_have_come() {
    let mut ends = sockets();
    ends.exchange();
    let socket = || UnixStream::pair().expect("sockets").1.into();
    ends.acceptor.handle_lane(0, 0, socket()).expect("it is awaited");
    ends.acceptor.handle_lane(1, 0, socket()).expect("it is awaited");
    ends.acceptor.handle_message(Message::Ready { usable: 0b11 });
    ends.exchange();
    let wrong = HandshakeFailure::WrongRailSet { message: "READY", named: RailSet::from_bits(0b11), rails: 2 };
    assert_eq!(ends.failures()[1], Some(wrong));
}

#[test]
fn each_step_of_the_peer_has_until_the_deadline_and_not_longer() {
    let failed = |steps: fn(&mut Ends<true>), expected: [HandshakeFailure; 2]| {
        let mut ends = sockets();
        steps(&mut ends);
        for (deadline_ns, is_moved) in [(DEADLINE_NS, false), (2 * DEADLINE_NS, true)] {
            if is_moved {
                ends.connector.set_deadline(deadline_ns);
                ends.acceptor.set_deadline(deadline_ns);
            }
            assert_eq!([ends.connector.timeout_ns(), ends.acceptor.timeout_ns()], [Some(deadline_ns); 2]);
            ends.connector.handle_timeout(deadline_ns - 1);
            ends.acceptor.handle_timeout(deadline_ns - 1);
        }
        let mut other = sockets();
        std::mem::swap(&mut ends.acceptor, &mut other.acceptor);
        ends.connector.handle_timeout(2 * DEADLINE_NS);
        other.acceptor.handle_timeout(2 * DEADLINE_NS);
        assert_eq!([ends.connector.timeout_ns(), other.acceptor.timeout_ns()], [None; 2]);
        ends.exchange();
        other.exchange();
        assert_eq!([ends.failures()[0].clone(), other.failures()[1].clone()], expected.map(Some));
    };
    let late = HandshakeFailure::Late;
    failed(|_| {}, [late(Awaited::Answer), late(Awaited::Lanes)]);
    failed(Ends::exchange, [late(Awaited::Sockets), late(Awaited::Ready)]);
}

#[test]
fn lanes_that_cannot_be_connected_yet_are_retried_after_the_longest_pause() {
    let port = |number, pauses| Port { pauses, ..Port::new(number, 1) };
    let mut ends = Ends::<false>::new(&[port(1, &[]), port(2, &[7])], &[port(11, &[1, 4]), port(12, &[3])]);
    ends.acceptor.go_on(0);
    ends.connector.go_on(0);
    assert_eq!(ends.acceptor.pause(), None, "there is nothing to connect yet");
    ends.exchange();
    let milliseconds = |pause: Option<Duration>| pause.map(|pause| pause.as_millis());
    assert_eq!(ends.names(), ["ANSWER", "LANES"]);
    for pause in [3, 4] {
        assert_eq!(milliseconds(ends.acceptor.pause()), Some(pause));
        ends.acceptor.go_on(0);
        ends.exchange();
    }
    assert_eq!((ends.names(), ends.acceptor.pause()), (vec!["ANSWER", "LANES", "LANES"], None));
    assert_eq!(milliseconds(ends.connector.pause()), Some(7));
    assert!(ends.sender.is_none());
    ends.connector.go_on(0);
    assert_eq!(ends.connector.pause(), None);
    ends.exchange();
    assert_eq!(ends.made(), [vec![0, 1], vec![0, 1]]);
    assert!(ends.connector.may_block() && ends.acceptor.may_block());
    assert_eq!(ends.dials, []);
}

#[test]
fn a_rail_that_is_not_connected_in_time_is_left_out_and_the_others_go_on() {
    for is_late_here in [true, false] {
        let late = |number, is_late| Port { pauses: if is_late { &[1; 9] } else { &[] }, ..Port::new(number, 1) };
        let from = [late(1, is_late_here), Port::new(2, 1)];
        let to = [late(11, !is_late_here), Port::new(12, 1)];
        let mut ends = Ends::<false>::new(&from, &to);
        ends.exchange();
        if is_late_here {
            ends.connector.handle_timeout(DEADLINE_NS);
            assert_eq!(ends.connector.pause(), None);
        } else {
            ends.acceptor.handle_timeout(DEADLINE_NS);
            assert_eq!(ends.acceptor.pause(), None);
        }
        ends.exchange();
        assert_eq!(ends.made(), [vec![1], vec![1]]);
        let refusal = if is_late_here { from[0].refusal() } else { to[0].refusal() };
        let late = left_out(0, LeftOut::TooLate { last: Some(refusal), limit: SettingId::HandshakeTimeout });
        assert_eq!(ends.events[usize::from(!is_late_here)], [late]);
    }
}

#[test]
fn a_set_up_fails_if_none_of_its_rails_is_connected_in_time() {
    let late = |number| Port { pauses: &[1; 9], ..Port::new(number, 1) };
    let expected = |number| {
        let reason = LeftOut::TooLate { last: Some(late(number).refusal()), limit: SettingId::HandshakeTimeout };
        Some(HandshakeFailure::Unconnected(reason))
    };
    let mut ends = Ends::<false>::new(&[late(1)], &[Port::new(11, 1)]);
    ends.exchange();
    ends.connector.handle_timeout(DEADLINE_NS);
    ends.exchange();
    assert_eq!(ends.failures()[0], expected(1));
    let mut ends = Ends::<false>::new(&[Port::new(1, 1)], &[late(11)]);
    ends.exchange();
    ends.acceptor.handle_timeout(DEADLINE_NS);
    ends.exchange();
    // The connector learns the reason, and that it concerns the way.
    let late = LeftOut::TooLate { last: Some(late(11).refusal()), limit: SettingId::HandshakeTimeout };
    let says = LeftOut::PeerSays { reason: late.to_string(), is_of_way: true };
    assert_eq!(ends.events, [vec![left_out(0, says.clone())], vec![left_out(0, late)]]);
    assert_eq!(ends.failures()[0], Some(HandshakeFailure::NoRail { failed_here: false, first: says }));
}

#[test]
fn a_rail_whose_lanes_cannot_be_connected_is_left_out() {
    let deaf = Port { is_deaf: true, ..Port::new(1, 1) };
    let mut ends = Ends::<false>::new(&[deaf.clone(), Port::new(2, 1)], &[Port::new(11, 1), Port::new(12, 1)]);
    ends.exchange();
    assert_eq!(ends.made(), [vec![1], vec![1]]);
    let failed = left_out(0, LeftOut::Failed(deaf.refusal()));
    assert_eq!(ends.events, [vec![failed], vec![left_out(0, LeftOut::NotReady)]]);
}

#[test]
fn a_set_up_uses_the_parts_of_its_rails_until_it_ends() {
    let mut ends = sockets();
    assert_eq!(ends.acceptor.parts(), [], "no rail is open");
    ends.exchange();
    assert_eq!(ends.connector.parts(), [1, 2].map(|number| Port::<true>::new(number, 1).part()));
    assert_eq!(ends.acceptor.parts(), [11, 12].map(|number| Port::<true>::new(number, 1).part()));
    ends.connector.handle_message(Message::Bye(None));
    ends.acceptor.handle_message(Message::Bye(None));
    assert_eq!((ends.connector.parts(), ends.acceptor.parts()), (vec![], vec![]));
}

#[test]
fn memory_is_registered_for_each_rail_until_it_is_left_out() {
    let (from, to) = ([Port::new(1, 1), Port::new(2, 1)], [Port::new(11, 1), Port::new(12, 1)]);
    let mut ends = Ends::<true>::new(&from, &to);
    let registered = || [&from, &to].map(|ports| [0, 1].map(|port| ports[port].registered()));
    assert_eq!(registered(), [[0; 2]; 2], "an offer alone costs nothing");
    ends.exchange();
    assert_eq!(registered(), [[2; 2]; 2], "CTS and records");
    let [first, second] = ends.dials[..] else { panic!("{:?}", ends.dials) };
    ends.connector.handle_dialled(first.rail, first.lane, Err("no route".to_owned()));
    assert_eq!(registered(), [[0, 2], [2, 2]]);
    ends.join(second);
    assert_eq!(ends.made(), [vec![1], vec![1]]);
    assert_eq!(registered(), [[0, 2], [0, 2]]);
    (ends.sender, ends.receiver) = (None, None);
    assert_eq!(registered(), [[0; 2]; 2]);
}

#[test]
fn a_set_up_that_has_ended_waits_for_nothing() {
    let late = |number| Port { pauses: &[1; 9], ..Port::new(number, 1) };
    let mut ends = Ends::<false>::new(&[Port::new(1, 1)], &[late(11)]);
    ends.exchange();
    assert!(ends.acceptor.pause().is_some());
    ends.acceptor.handle_message(Message::Bye(None));
    ends.acceptor.go_on(0);
    ends.acceptor.handle_message(Message::Bye(None));
    assert_eq!((ends.acceptor.pause(), ends.acceptor.timeout_ns()), (None, None));
    ends.exchange();
    assert_eq!(ends.failures()[1], Some(HandshakeFailure::Closed));
    let mut ends = Ends::<false>::new(&[late(1)], &[Port::new(11, 1)]);
    ends.exchange();
    assert!(ends.connector.pause().is_some());
    ends.connector.handle_message(Message::Refuse { fault: Fault::Local, of_rails: false, reason: "no".to_owned() });
    ends.connector.go_on(0);
    assert_eq!((ends.connector.pause(), ends.connector.timeout_ns()), (None, None));
}

#[test]
fn lanes_of_another_number_than_agreed_are_refused_by_both() {
    let lanes = |count| {
        let open = RailLanes::Open { key: 1, endpoints: vec![Default::default(); count] };
        Message::Lanes(Lanes { byte_counts: false, stream: 0, rails: vec![open; 2] })
    };
    let mut ends = sockets();
    let Some(Action::Send(answer)) = ends.acceptor.poll_action() else { panic!("no answer") };
    ends.connector.handle_message(answer);
    ends.connector.handle_message(lanes(2));
    ends.acceptor.handle_message(lanes(2));
    let mut acceptor = sockets();
    std::mem::swap(&mut ends.acceptor, &mut acceptor.acceptor);
    ends.exchange();
    acceptor.exchange();
    let wrong = Some(HandshakeFailure::WrongLanes { rail: rail(1), lanes: 2, agreed: 1 });
    assert_eq!((ends.failures()[0].clone(), acceptor.failures()[1].clone()), (wrong.clone(), wrong));
}
