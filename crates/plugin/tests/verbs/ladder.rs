//! The ladder: connections between devices whose own ports do not reach each other.

use std::time::{Duration, Instant};

use railweave_abi::net::PTR_HOST;
use railweave_fabric_verbs::sys;
use railweave_nccl_host::net::NetApi;

use crate::common::{
    Pair, alone, each, in_namespace, info_lines, ip, listen, start, until, until_carrier, warnings, warnings_with,
};
use crate::machine::{EVEN, FUSED, ONE_PORT, ROCE, finish, machine, strict, with};

/// A machine with two ports, of which those named here connect no queue pair.
fn broken(devices: &str) -> String {
    let fault = |device: &&str| format!("'modify_qp/RTR@{device}:*:EINVAL'");
    let faults: Vec<_> = ["mlx5_0", "mlx5_1"].iter().filter(|device| devices.contains(**device)).map(fault).collect();
    strict(&format!("faults = [{}]\n{ROCE}", faults.join(", ")))
}

/// Returns the lines of level INFO that contain all of these words.
fn info_with(words: &[&str]) -> Vec<String> {
    info_lines().into_iter().filter(|text| words.iter().all(|word| text.contains(word))).collect()
}

#[test]
fn another_port_takes_the_place_of_one_that_brings_up_no_rail() {
    alone(&with(&[("NCCL_DEBUG", "INFO")]), || {
        let fake = machine(&broken("mlx5_0"));
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        pair.exchange(1, 300_000);
        let said = info_with(&["the ports of device mlx5_0 do not reach ", "other ports of the two hosts take"]);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].ends_with(": 10.1.0.1 - 10.1.0.1"), "{said:?}");
        // Said once for each peer.
        let again = Pair::open(&net, &net, 0);
        again.exchange(2, 300_000);
        assert_eq!(info_with(&["take their place"]).len(), 1);
        // A failure that costs no time does not keep later connections from their own port.
        assert_eq!(warnings_with(&["rail 0 to ", "is left out: QP transition"]).len(), 2, "{:?}", warnings());
        pair.close();
        again.close();
        finish(&fake, net);
    });
}

/// TCP over loopback in place of RDMA.
const HYBRID: [(&str, &str); 2] = [("RAILWEAVE_HYBRID", "1"), ("NCCL_SOCKET_IFNAME", "lo")];

#[test]
fn tcp_carries_what_rdma_does_not() {
    alone(&with(&HYBRID), || {
        let fake = machine(&broken("mlx5_0 mlx5_1"));
        let (_plugin, net) = start();
        for device in 0..2 {
            let properties = net.properties(device).unwrap();
            assert_eq!(properties.ptr_support, PTR_HOST, "TCP takes no GPU memory");
        }
        let pair = Pair::open(&net, &net, 0);
        pair.exchange(1, 300_000);
        pair.exchange(2, 0);
        let again = Pair::open(&net, &net, 1);
        again.exchange(3, 5_000_000);
        let said = warnings_with(&[
            "TCP carries the connections of device mlx5_0 to ",
            "costs speed",
            "no rail to ",
            "127.0.0.1 - ",
        ]);
        assert_eq!(said.len(), 1, "{:?}", warnings());
        pair.close();
        again.close();
        finish(&fake, net);
    });
}

#[test]
fn without_leave_to_use_tcp_the_first_error_is_the_one_reported() {
    // Devices that take GPU memory, or a user who wants RDMA and nothing else.
    each(
        &["", "dma_buf = false\n"],
        |_| with(&HYBRID[1..]),
        |habit| {
            let description = broken("mlx5_0 mlx5_1").replace("[[device]]\n", &format!("[[device]]\n{habit}"));
            let fake = machine(&description);
            let (_plugin, net) = start();
            let (listening, mut handle) = listen(&net, 0);
            until("connect's failure", || net.connect(0, &mut handle).err());
            assert_eq!(warnings_with(&["connect: no rail to "]).len(), 1, "{:?}", warnings());
            assert_eq!(warnings_with(&["TCP carries"]).len(), 0);
            net.close_listen(listening).unwrap();
            finish(&fake, net);
        },
    );
}

/// Half a second, so that a test need not wait longer.
const HASTY: (&str, &str) = ("RAILWEAVE_PROBE_TIMEOUT", "0.5");

#[test]
fn a_rail_that_brings_nothing_through_is_left_out_and_the_other_carries_on() {
    alone(&with(&[FUSED, EVEN, HASTY]), || {
        let fake = machine(&strict(ROCE));
        let (_plugin, net) = start();
        // The queue pairs come up, as over a cable that leads elsewhere, but no packet does.
        fake.cut("mlx5_0", 1).unwrap();
        let pair = Pair::open(&net, &net, 0);
        pair.exchange(1, 300_000);
        let said =
            warnings_with(&["rail 0 to ", "no packet of 4096 bytes came through in 0.5 s", "UDP port 4791", "MTU"]);
        assert_eq!(said.len(), 2, "each end says it: {:?}", warnings());
        pair.close();
        finish(&fake, net);
    });
}

#[test]
fn the_next_step_of_the_ladder_follows_where_no_rail_brings_anything_through() {
    alone(&with(&[HASTY]), || {
        let fake = machine(&strict(ROCE));
        let (_plugin, net) = start();
        fake.cut("mlx5_0", 1).unwrap();
        let pair = Pair::open(&net, &net, 0);
        pair.exchange(1, 300_000);
        assert_eq!(info_with(&["the ports of device mlx5_0 do not reach "]).len(), 1);
        pair.close();
        finish(&fake, net);
    });
}

#[test]
fn a_step_that_once_worked_is_no_reason_to_fail() {
    alone(&with(&[HASTY]), || {
        let fake = machine(&strict(ROCE));
        let (_plugin, net) = start();
        fake.cut("mlx5_0", 1).unwrap();
        let over_the_other = Pair::open(&net, &net, 0);
        fake.mend("mlx5_0", 1).unwrap();
        fake.cut("mlx5_1", 1).unwrap();
        let over_its_own = Pair::open(&net, &net, 0);
        over_its_own.exchange(1, 300_000);
        fake.mend("mlx5_1", 1).unwrap();
        over_the_other.close();
        over_its_own.close();
        finish(&fake, net);
    });
}

#[test]
fn an_adapter_that_fails_before_the_rails_count_costs_no_more_than_its_own() {
    let fused = [FUSED, EVEN];
    each(
        &[&fused[..], &[]],
        |settings| with(settings),
        |_| {
            let fake = machine(&strict(ROCE));
            let (_plugin, net) = start();
            // The first packets are on their way.
            fake.cut("mlx5_0", 1).unwrap();
            let (listening, mut handle) = listen(&net, 0);
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(400) {
                assert!(net.connect(0, &mut handle).unwrap().is_none(), "no packet comes through");
            }
            fake.raise("mlx5_0", sys::EVENT_DEVICE_FATAL, 0).unwrap();
            let (mut sender, mut receiver) = (None, None);
            until("the connection", || {
                sender = sender.take().or_else(|| net.connect(0, &mut handle).expect("mlx5_1 carries"));
                receiver = receiver.take().or_else(|| net.accept(&listening).unwrap());
                (sender.is_some() && receiver.is_some()).then_some(())
            });
            let first = warnings_with(&["is left out: "]);
            assert_eq!(first.len(), 2, "each end says it: {first:?}");
            // Nor do later connections of the session try it.
            let again = Pair::open(&net, &net, 0);
            again.exchange(1, 300_000);
            again.close();
            net.close_send(sender.unwrap()).unwrap();
            net.close_recv(receiver.unwrap()).unwrap();
            net.close_listen(listening).unwrap();
            let has_failed = |line: &String| line.contains("the device failed");
            let later = warnings_with(&["is left out: "]).split_off(2);
            // Unless an end has seen a packet that was flushed before it heard of the device: the next connection then
            // tries the device, which costs nothing.
            let most = if first.iter().all(has_failed) { 0 } else { 2 };
            assert!(later.len() <= most && later.iter().all(has_failed), "{first:?} {later:?}");
            assert!(first.iter().chain(&later).any(has_failed), "{first:?} {later:?}");
            finish(&fake, net);
        },
    );
}

#[test]
fn a_port_that_the_kernel_does_not_find_costs_the_time_of_the_first_packets() {
    // In each mode, and no longer than that, whatever time a set-up has.
    each(
        &["ports", "fused"],
        |mode| with(&[HASTY, EVEN, ("RAILWEAVE_MODE", *mode), ("RAILWEAVE_HANDSHAKE_TIMEOUT", "3600")]),
        |_| {
            let fake = machine(&format!("faults = ['modify_qp/RTR@mlx5_0:*:ETIMEDOUT']\n{ROCE}"));
            let (_plugin, net) = start();
            let pair = Pair::open(&net, &net, 0);
            pair.exchange(1, 300_000);
            // Later connections do without it from the beginning.
            let again = Pair::open(&net, &net, 0);
            again.exchange(2, 300_000);
            assert_eq!(warnings_with(&["is left out: ", "Handshake timeout"]).len(), 2, "{:?}", warnings());
            again.close();
            pair.close();
            finish(&fake, net);
        },
    );
}

/// Gives this process's network an interface with an address, in a subnet of its own. Returns false if the machine does
/// not let it.
fn cable(name: &str, address: &str) -> bool {
    let is_made = ip(&format!("link add {name} type veth peer name {name}far"))
        && ip(&format!("addr add {address}/24 dev {name}"))
        && ip(&format!("link set {name} up"))
        && ip(&format!("link set {name}far up"));
    if is_made {
        until_carrier(name);
    } else {
        eprintln!("skipped: this machine cannot make cables (ip link add type veth)");
    }
    is_made
}

#[test]
fn tcp_passes_over_the_interface_whose_roce_brings_nothing_through() {
    alone(&with(&[HASTY, ("RAILWEAVE_HYBRID", "1"), ("RAILWEAVE_OOB_IF", "rw0")]), || {
        in_namespace("--net", || {
            if !(ip("link set lo up") && cable("rw0", "10.0.0.1")) {
                return;
            }
            let fake = machine(&strict(ONE_PORT));
            let (_plugin, net) = start();
            // A firewall stops RDMA.
            fake.cut("mlx5_0", 1).unwrap();
            let pair = Pair::open(&net, &net, 0);
            pair.exchange(1, 300_000);
            let said = warnings_with(&["TCP carries the connections of device mlx5_0 to ", ": 10.0.0.1 - 10.0.0.1."]);
            assert_eq!(said.len(), 1, "{:?}", warnings());
            pair.close();
            finish(&fake, net);
        });
    });
}

#[test]
fn a_failure_that_says_nothing_of_the_way_costs_later_connections_no_rail() {
    alone(&with(&[FUSED, EVEN, HASTY]), || {
        // The set-up has taken a while when a change of state is refused at once.
        let fake =
            machine(&strict(&format!("faults = ['create_qp:1:400ms', 'modify_qp/RTR@mlx5_0:1:EINVAL']\n{ROCE}")));
        let (_plugin, net) = start();
        let pairs = [(); 2].map(|()| Pair::open(&net, &net, 0));
        let said = info_with(&["a connection sends to "]);
        let has_first = said.iter().map(|line| line.contains("10.0.0.1 - 10.0.0.1")).collect::<Vec<_>>();
        assert_eq!(has_first, [false, true], "{said:?}");
        pairs.into_iter().for_each(Pair::close);
        finish(&fake, net);
    });
}

#[test]
fn rdma_that_has_come_back_is_used_rather_than_tcp() {
    alone(&with(&[&HYBRID[..], &[HASTY]].concat()), || {
        let fake = machine(&strict(ROCE));
        let (_plugin, net) = start();
        let each = |act: &dyn Fn(&str)| ["mlx5_0", "mlx5_1"].iter().for_each(|device| act(device));
        each(&|device| fake.cut(device, 1).unwrap());
        let by_tcp = Pair::open(&net, &net, 0);
        each(&|device| fake.mend(device, 1).unwrap());
        let by_rdma = Pair::open(&net, &net, 0);
        let said = info_with(&["a connection sends to "]);
        let ends = ["127.0.0.1 - 127.0.0.1", "10.0.0.1 - 10.0.0.1"];
        assert!(said.len() == 2 && said.iter().zip(ends).all(|(line, ends)| line.contains(ends)), "{said:?}");
        by_rdma.close();
        by_tcp.close();
        finish(&fake, net);
    });
}

#[test]
fn the_kernels_routes_count_unless_the_user_knows_better() {
    // The ports' addresses are this host's own, so the kernel sends nothing by their ports.
    each(
        &[("1", "10.0.0.1 - 10.0.0.1"), ("0", "10.0.0.1 - 10.1.0.1")],
        |(setting, _)| with(&[("RAILWEAVE_ROUTES", *setting)]),
        |(_, over)| {
            in_namespace("--net", || {
                if !(ip("link set lo up") && cable("rw0", "10.0.0.1") && cable("rw1", "10.1.0.1")) {
                    return;
                }
                let fake = machine(&strict(ROCE));
                let (_plugin, net) = start();
                let (listening, mut handle) = listen(&net, 1);
                let (mut sender, mut receiver) = (None, None);
                until("the connection", || {
                    sender = sender.take().or_else(|| net.connect(0, &mut handle).unwrap());
                    receiver = receiver.take().or_else(|| net.accept(&listening).unwrap());
                    (sender.is_some() && receiver.is_some()).then_some(())
                });
                let said = info_with(&["a connection sends to ", over]);
                assert_eq!(said.len(), 1, "{:?}", info_lines());
                net.close_send(sender.unwrap()).unwrap();
                net.close_recv(receiver.unwrap()).unwrap();
                net.close_listen(listening).unwrap();
                finish(&fake, net);
            });
        },
    );
}
