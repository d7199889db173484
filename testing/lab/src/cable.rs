//! Cables between guests: their properties, and the commands that give a guest's port these properties.

use crate::step::Packets;
use serde::Deserialize;

/// Filters, as instructions of the classic BPF (bpf(4)), for `tc` (tc-bpf(8)): how many there are, and each one's code,
/// jumps and value. They return 2, the kernel's TC_ACT_SHOT, for a packet to drop, and otherwise -1, TC_ACT_UNSPEC.
const EVERY_PACKET: &str = "1,6 0 0 2,";
/// At byte 23 of an Ethernet frame is IPv4's protocol. Of TCP (6), packets of up to 141 bytes have at most the header
/// of a lane's frame. Of UDP (17), the port of RoCE (4791) is at 36, and the opcode at 42: 17 is an acknowledgement.
const ACKNOWLEDGEMENTS: &str = "11,48 0 0 23,21 0 2 6,128 0 0 0,37 6 5 141,21 0 5 17,40 0 0 36,21 0 3 4791,48 0 0 42,\
                                21 0 1 17,6 0 0 2,6 0 0 4294967295,";

/// A cable between two guests, the same in both directions; or one that is plugged in at one end only.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cable {
    /// The guests that it joins, or the one guest that it is plugged into.
    #[serde(default = "first_two")]
    pub(crate) between: Vec<usize>,
    /// Its rate in Mbit/s; without it, as much as the emulation can carry.
    rate_mbit: Option<f64>,
    /// KiB that may pass faster than the rate after a pause.
    #[serde(default = "burst")]
    burst_kib: u32,
    /// The delay of each packet, in milliseconds.
    #[serde(default)]
    delay_ms: f64,
    /// The percentage of packets that are lost, at random.
    #[serde(default)]
    loss_percent: f64,
}

/// A guest's port at one end of a cable. The guest's first cable is in its port `eth0`, which is the RDMA device
/// `rxe0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    /// The cable.
    pub(crate) cable: usize,
    /// The guest.
    pub(crate) guest: usize,
    /// The port's number in the guest: the number of the guest's cables that come before this one.
    pub(crate) index: usize,
}

impl Cable {
    /// Fails with a sentence if a value is impossible with this many guests.
    pub(crate) fn check(&self, guests: usize) -> Result<(), String> {
        let between = &self.between;
        let is_possible = match between[..] {
            [only] => only < guests,
            [a, b] => a != b && a.max(b) < guests,
            _ => false,
        };
        if !is_possible {
            return Err(format!(
                "between = {between:?} is not possible; it needs one or two of the {guests} guests, from 0"
            ));
        }
        if let Some(rate) = self.rate_mbit.filter(|rate| !(0.1..=100_000.0).contains(rate)) {
            return Err(format!("rate_mbit = {rate} is not possible; allowed: 0.1 to 100000"));
        }
        if !(8..=65_536).contains(&self.burst_kib) {
            return Err(format!("burst_kib = {} is not possible; allowed: 8 to 65536", self.burst_kib));
        }
        if !(0.0..=10_000.0).contains(&self.delay_ms) {
            return Err(format!("delay_ms = {} is not possible; allowed: 0 to 10000", self.delay_ms));
        }
        if !(0.0..=100.0).contains(&self.loss_percent) {
            return Err(format!("loss_percent = {} is not possible; allowed: 0 to 100", self.loss_percent));
        }
        Ok(())
    }

    /// Fails with a sentence if the cable cannot get this rate in Mbit/s while it carries something.
    pub(crate) fn check_rate(&self, mbit: f64) -> Result<(), String> {
        if self.rate_mbit.is_none() {
            return Err("it has no rate_mbit that a step could change".to_owned());
        }
        if !(0.1..=100_000.0).contains(&mbit) {
            return Err(format!("mbit = {mbit} is not possible; allowed: 0.1 to 100000"));
        }
        Ok(())
    }

    /// Returns its rate in Mbit/s, if it has one.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.rate_mbit
    }

    /// Returns the shell command that gives the packets sent from `port` another rate in Mbit/s. What waits in the
    /// queue stays there.
    pub(crate) fn change_rate(&self, port: Port, mbit: f64) -> String {
        let (index, kbit, burst) = (port.index, (mbit * 1000.0).round(), self.burst_kib);
        format!("tc qdisc change dev eth{index} root handle 1: tbf rate {kbit}kbit burst {burst}kb limit 8mb\n")
    }

    /// Returns the shell commands that shape the packets sent from `port`; `loss`, in percent, overrides the cable's
    /// own.
    pub(crate) fn shape(&self, port: Port, loss: Option<f64>) -> String {
        let Self { rate_mbit, burst_kib, delay_ms, loss_percent, .. } = self;
        let (index, loss) = (port.index, loss.unwrap_or(*loss_percent));
        let mut commands = format!("tc qdisc del dev eth{index} root 2>/dev/null || true\n") + &port.hear();
        let mut parent = "root".to_owned();
        if let Some(rate) = rate_mbit {
            let kbit = (rate * 1000.0).round();
            commands += &format!(
                "tc qdisc add dev eth{index} {parent} handle 1: tbf rate {kbit}kbit burst {burst_kib}kb limit 8mb\n"
            );
            parent = "parent 1:1".to_owned();
        }
        if *delay_ms > 0.0 || loss > 0.0 {
            // The limit is in packets; a long delay needs many.
            commands += &format!(
                "tc qdisc add dev eth{index} {parent} handle 2: netem delay {}us loss {loss}% limit 20000\n",
                (delay_ms * 1000.0).round()
            );
        }
        commands
    }
}

impl Port {
    /// Returns the ports of all `cables`, in their order.
    pub(crate) fn all(cables: &[Cable]) -> Vec<Self> {
        let mut ports: Vec<Self> = Vec::new();
        for (cable, Cable { between, .. }) in cables.iter().enumerate() {
            for guest in between.iter().copied() {
                let index = ports.iter().filter(|port| port.guest == guest).count();
                ports.push(Self { cable, guest, index });
            }
        }
        ports
    }

    /// Returns the shell commands that set up the port: its address, and RDMA on it unless it is in a namespace.
    pub(crate) fn set_up(self, in_namespace: bool) -> String {
        let Self { cable, guest, index } = self;
        // An active MTU of 4096 bytes, plus RDMA's own headers.
        let plain = format!(
            "ip link set eth{index} mtu 4200 up\n\
             ip address add 10.0.{cable}.{}/24 dev eth{index}\n",
            guest + 1
        );
        if in_namespace { plain } else { format!("{plain}rdma link add rxe{index} type rxe netdev eth{index}\n") }
    }

    /// Returns the shell commands by which packets that come to this port are dropped. At the port that sends them, the
    /// kernel would tell the sender.
    pub(crate) fn drop_packets(self, packets: Packets) -> String {
        let (index, filter) = match packets {
            Packets::All => (self.index, EVERY_PACKET),
            Packets::Acks => (self.index, ACKNOWLEDGEMENTS),
        };
        format!(
            "{}tc qdisc add dev eth{index} clsact\n\
             tc filter add dev eth{index} ingress protocol all bpf bytecode '{filter}' direct-action\n",
            self.hear()
        )
    }

    /// Returns the shell command that ends this.
    fn hear(self) -> String {
        format!("tc qdisc del dev eth{} clsact 2>/dev/null || true\n", self.index)
    }

    /// Returns the shell command that takes the port up or down, which reports it as pulled cables do.
    pub(crate) fn switch(self, up: bool) -> String {
        format!("ip link set eth{} {}\n", self.index, if up { "up" } else { "down" })
    }

    /// Returns its hardware address.
    pub(crate) fn mac(self) -> String {
        format!("52:54:00:00:{:02x}:{:02x}", self.cable, self.guest)
    }
}

fn first_two() -> Vec<usize> {
    vec![0, 1]
}

fn burst() -> u32 {
    64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(between: &[usize]) -> Cable {
        Cable { between: between.to_vec(), rate_mbit: None, burst_kib: 64, delay_ms: 0.0, loss_percent: 0.0 }
    }

    #[test]
    fn guests_count_their_own_ports() {
        let cables = [plain(&[0, 1]), plain(&[1, 2]), plain(&[2, 0]), plain(&[1])];
        let indices: Vec<_> = Port::all(&cables).iter().map(|port| (port.guest, port.index)).collect();
        assert_eq!(indices, [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (0, 1), (1, 2)]);
        let port = Port { cable: 1, guest: 2, index: 0 };
        assert!(port.set_up(false).contains("10.0.1.3/24 dev eth0"), "{}", port.set_up(false));
        assert!(port.set_up(false).contains("rxe0") && !port.set_up(true).contains("rxe0"));
        assert_eq!(port.switch(false), "ip link set eth0 down\n");
    }

    #[test]
    fn a_cable_is_shaped_only_as_far_as_it_says() {
        let port = Port { cable: 0, guest: 0, index: 3 };
        let del = "tc qdisc del dev eth3 root 2>/dev/null || true\ntc qdisc del dev eth3 clsact 2>/dev/null || true\n";
        assert_eq!(plain(&[0, 1]).shape(port, None), del);
        let rated = Cable { rate_mbit: Some(0.5), ..plain(&[0, 1]) };
        let tbf = "tc qdisc add dev eth3 root handle 1: tbf rate 500kbit burst 64kb limit 8mb\n";
        assert_eq!(rated.shape(port, None), format!("{del}{tbf}"));
        let netem = "tc qdisc add dev eth3 parent 1:1 handle 2: netem delay 0us loss 100% limit 20000\n";
        assert_eq!(rated.shape(port, Some(100.0)), format!("{del}{tbf}{netem}"));
        let lossy = Cable { delay_ms: 1.5, loss_percent: 2.0, ..plain(&[0, 1]) };
        assert!(lossy.shape(port, None).ends_with("root handle 2: netem delay 1500us loss 2% limit 20000\n"));
        assert!(!lossy.shape(port, Some(0.0)).contains("loss 2%"));
        assert!(port.drop_packets(Packets::All).contains("dev eth3 ingress protocol all bpf bytecode '1,6 0 0 2,'"));
        for filter in [EVERY_PACKET, ACKNOWLEDGEMENTS] {
            let (count, instructions) = filter.trim_end_matches(',').split_once(',').unwrap();
            assert_eq!(instructions.split(',').count().to_string(), count, "{filter}");
        }
        let change = "tc qdisc change dev eth3 root handle 1: tbf rate 20000kbit burst 64kb limit 8mb\n";
        assert_eq!(rated.change_rate(port, 20.0), change);
    }
}
