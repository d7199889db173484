//! A peer that is not the plugin and can stop at any point of the control protocol.

use super::in_time;
use railweave_fabric::{LaneEndpoint, LinkLayer, Step};
use railweave_nccl_host::net::Handle as HandleBytes;
use railweave_transport::{
    Frame, Handle, HandleAddress, Hello, LanePreface, Lanes, Message, Offer, PREFACE_BYTES, PROTOCOL_VERSION,
    PortOffer, Preface, ProcessId, Pulse, RailAnswer, RailLanes, Token, Ways,
};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

/// A stranger's process id in the protocol.
const OWN: ProcessId = ProcessId([9; 16]);

/// The protocol versions that the plugin speaks.
pub(crate) const OUR_VERSIONS: (u16, u16) = (PROTOCOL_VERSION, PROTOCOL_VERSION);

/// One socket to the control port, and the handle of its process.
pub(crate) struct Stranger {
    pub(crate) socket: TcpStream,
    handle: Handle,
    input: Vec<u8>,
    /// The other side's network, mode and fabrics, which this side uses too.
    same: (u64, u8, u8),
    /// The link layer and address of the port that this side offers.
    pub(crate) port: (LinkLayer, Ipv4Addr),
}

/// The values used until the other side's HELLO arrives.
const OVER_TCP: (u64, u8, u8) = (0, 1, 1);
const PORT: (LinkLayer, Ipv4Addr) = (LinkLayer::Tcp, Ipv4Addr::new(127, 0, 0, 9));

impl Stranger {
    /// Connects to the control port of a handle.
    pub(crate) fn dial(handle: &HandleBytes) -> Self {
        let handle = Handle::decode(&handle.0).expect("the plugin's own handle");
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, handle.control_port)).expect("the control port listens");
        socket.set_read_timeout(Some(railweave_patience::LIMIT)).expect("a timeout can be set");
        socket.set_nodelay(true).expect("TCP has that option");
        Self { socket, handle, input: Vec::new(), same: OVER_TCP, port: PORT }
    }

    /// Returns the handle of a listening stranger.
    pub(crate) fn handle(address: SocketAddr) -> HandleBytes {
        let reached = HandleAddress { address: address.ip(), prefix_len: 8, port: 0 };
        HandleBytes(Self::listening(address.port(), vec![reached]).encode())
    }

    fn listening(control_port: u16, addresses: Vec<HandleAddress>) -> Handle {
        Handle { process: OWN, nonce: 5, control_port, addresses }
    }

    /// Accepts the plugin's session.
    pub(crate) fn accept(listener: &TcpListener) -> Self {
        let (socket, _) = listener.accept().expect("the plugin dials");
        socket.set_read_timeout(Some(railweave_patience::LIMIT)).expect("a timeout can be set");
        Self { socket, handle: Self::listening(0, Vec::new()), input: Vec::new(), same: OVER_TCP, port: PORT }
    }

    /// Reads the preface of the plugin's session.
    pub(crate) fn expect_preface(&mut self) {
        let mut bytes = [0; PREFACE_BYTES];
        in_time(self.socket.read_exact(&mut bytes), "the preface");
        assert_eq!(Preface::decode(&bytes), Ok(Preface::Session));
    }

    /// Accepts the plugin's session and answers its HELLO.
    pub(crate) fn welcome(listener: &TcpListener) -> Self {
        let mut stranger = Self::accept(listener);
        stranger.expect_preface();
        assert!(matches!(stranger.receive(), Message::Hello(_)));
        let hello = stranger.hello(OUR_VERSIONS);
        stranger.send(0, hello);
        stranger
    }

    /// Receives the plugin's offer, which must come next.
    pub(crate) fn offered(&mut self) -> Offer {
        match self.receive() {
            Message::Offer(offer) => offer,
            other => panic!("OFFER follows, not {other:?}"),
        }
    }

    /// Answers an offer with one rail.
    pub(crate) fn answer(&mut self, offer: &Offer) {
        let rails = vec![RailAnswer { connector_port: 0, lanes: 1, port: offer.ports[0] }];
        self.send(1, Message::Answer { token: Token([6; 16]), step: Step::Subnet, rails });
    }

    /// Returns the address of this side.
    pub(crate) fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("a connected socket has an address")
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("the control port reads");
    }

    pub(crate) fn send(&mut self, connection: u32, message: Message) {
        self.write(&Frame { connection, message }.encode());
    }

    /// Receives the next message.
    pub(crate) fn receive(&mut self) -> Message {
        loop {
            if let Some((frame, length)) = Frame::decode(&self.input).expect("the plugin keeps to the protocol") {
                self.input.drain(..length);
                // It says how many messages have come whenever some have.
                if matches!(frame.message, Message::Have(_)) {
                    continue;
                }
                return frame.message;
            }
            let mut chunk = [0; 4096];
            let count = in_time(self.socket.read(&mut chunk), "the plugin's answer");
            assert!(count > 0, "the plugin closed the session");
            self.input.extend_from_slice(&chunk[..count]);
        }
    }

    /// Sends the preface of a session.
    pub(crate) fn begin(&mut self) {
        self.write(&Preface::Session.encode());
    }

    /// Returns a HELLO like the plugin's, with this range of protocol versions.
    pub(crate) fn hello(&self, versions: (u16, u16)) -> Message {
        let (network, mode, fabrics) = self.same;
        let hello = Hello {
            protocol_min: versions.0,
            protocol_max: versions.1,
            features: 0,
            mode,
            fabrics,
            network,
            process: OWN,
            wanted: self.handle.process,
            nonce: [3; 32],
            pid: 4711,
            rank: -1,
            world: -1,
            host: "stranger".to_owned(),
            build: "test".to_owned(),
            control_port: 7,
        };
        Message::Hello(hello.encode())
    }

    /// Opens a session: receives the other side's HELLO and sends its own.
    pub(crate) fn shake_hands(&mut self) {
        self.begin();
        let Message::Hello(theirs) = self.receive() else { panic!("HELLO comes first") };
        let theirs = Hello::decode(&theirs).expect("a HELLO");
        self.same = (theirs.network, theirs.mode, theirs.fabrics);
        let hello = self.hello(OUR_VERSIONS);
        self.send(0, hello);
    }

    /// Offers one port.
    pub(crate) fn ask(&mut self, connection: u32) {
        let bytes = self.asking(connection);
        self.write(&bytes);
    }

    /// Returns the bytes of an offer of one port.
    pub(crate) fn asking(&self, connection: u32) -> Vec<u8> {
        let (link_layer, address) = self.port;
        let port = PortOffer {
            link_layer,
            prefix_len: 8,
            lanes: 1,
            speed_mbps: 10_000,
            mtu: 65_536,
            rail_id: -1,
            plane_id: -1,
            address: address.to_ipv6_mapped(),
        };
        let nonce = self.handle.nonce;
        let offer = Offer { nonce, striped: false, traffic_class: None, ports: vec![port], ways: Ways::default() };
        Frame { connection, message: Message::Offer(offer) }.encode()
    }

    /// Offers one port and receives the answer.
    pub(crate) fn offer(&mut self, connection: u32) -> Token {
        self.ask(connection);
        match self.receive() {
            Message::Answer { token, step, rails } => {
                assert_eq!((step, rails.len()), (Step::Subnet, 1));
                token
            }
            other => panic!("ANSWER follows, not {other:?}"),
        }
    }

    /// Returns true if a part of the next message is here.
    pub(crate) fn has_input(&mut self) -> bool {
        self.socket.set_nonblocking(true).expect("it is a socket");
        let mut chunk = [0; 4096];
        while let Ok(count @ 1..) = self.socket.read(&mut chunk) {
            self.input.extend_from_slice(&chunk[..count]);
        }
        self.socket.set_nonblocking(false).expect("it is a socket");
        while let Ok(Some((Frame { message: Message::Have(_), .. }, length))) = Frame::decode(&self.input) {
            self.input.drain(..length);
        }
        !self.input.is_empty()
    }

    /// Waits until the plugin closes the session; it may still say how many messages have come.
    pub(crate) fn until_closed(&mut self) {
        let mut rest = std::mem::take(&mut self.input);
        in_time(self.socket.read_to_end(&mut rest), "the end of the session");
        let mut rest = &rest[..];
        while !rest.is_empty() {
            match Frame::decode(rest).expect("the plugin keeps to the protocol") {
                Some((Frame { message: Message::Have(_), .. }, length)) => rest = &rest[length..],
                other => panic!("only HAVE comes before the end, not {other:?}"),
            }
        }
    }

    /// Waits until the plugin has read all that was sent.
    pub(crate) fn until_read(&mut self) {
        self.send(0, Message::Ping(Pulse::default()));
        assert!(matches!(self.receive(), Message::Pong(_)), "only the answer to PING is expected");
    }

    /// Returns a stranger whose session with the owner of this handle is up.
    pub(crate) fn greeted(handle: &HandleBytes) -> Self {
        let mut stranger = Self::dial(handle);
        stranger.shake_hands();
        stranger
    }

    /// Sends LANES and receives the other side's.
    pub(crate) fn lanes(&mut self, connection: u32) {
        let rail = RailLanes::Open { key: 1, endpoints: vec![LaneEndpoint::default()] };
        self.send(connection, Message::Lanes(Lanes { byte_counts: false, stream: 0x1000, rails: vec![rail] }));
        assert!(matches!(self.receive(), Message::Lanes(_)));
    }

    /// Sets up an offered connection. Returns its lane, which stays open until it is dropped.
    pub(crate) fn go_on(&mut self, connection: u32, token: Token) -> TcpStream {
        self.lanes(connection);
        let lane = self.lane(token);
        self.send(connection, Message::Ready { usable: 1 });
        self.until_read();
        lane
    }

    /// Dials the one lane of a connection, without a key. Returns the answer.
    pub(crate) fn answer_to_lane(handle: &HandleBytes, token: Token) -> Vec<u8> {
        let mut socket = Self::dial(handle).socket;
        let lane = LanePreface { token, rail: 0, lane: 0, proof: [0; 14] };
        socket.write_all(&Preface::Lane(lane).encode()).expect("the first bytes are taken");
        let mut answer = Vec::new();
        // A reset is an answer too.
        let _ = socket.read_to_end(&mut answer);
        answer
    }

    /// Dials the one lane of the offered rail.
    pub(crate) fn lane(&self, token: Token) -> TcpStream {
        self.try_lane(token).expect("the lane is taken")
    }

    /// Like [`Self::lane`]; returns `None` if the socket is closed without a byte.
    pub(crate) fn try_lane(&self, token: Token) -> Option<TcpStream> {
        let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, self.handle.control_port)).expect("a lane connects");
        let preface = Preface::Lane(LanePreface { token, rail: 0, lane: 0, proof: [0; 14] });
        socket.write_all(&preface.encode()).expect("the control port reads");
        let mut taken = [0; 8];
        socket.set_read_timeout(Some(railweave_patience::LIMIT)).expect("a timeout can be set");
        if in_time(socket.peek(&mut taken), "the answer to a lane") == 0 {
            return None;
        }
        in_time(socket.read_exact(&mut taken), "the rest of the answer to a lane");
        assert_eq!(taken, *b"RWLNTKN1");
        Some(socket)
    }
}
