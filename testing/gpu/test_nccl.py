"""NCCL's log is read as NCCL writes it, and every problem in it is noticed."""

import os
import tempfile
import unittest
from pathlib import Path

import nccl
from refusal import Refusal

HEAD = "host:4711:4712 [0] NCCL INFO "

# The texts are those of NCCL 2.28.9's library and of our plugin.
GOOD = [
    HEAD + "NCCL_NET_PLUGIN set by environment to /lib/railweave.so",
    HEAD + "NET/Plugin: Loaded net plugin railweave (v11)",
    HEAD + "Successfully loaded external network plugin /lib/railweave.so",
    HEAD + "NET/Railweave : device lo@127.0.0.1+lo@127.0.0.2 over 127.0.0.1, 127.0.0.2 (20000 Mbit/s)",
    HEAD + "Initialized NET plugin railweave",
    HEAD + "Assigned NET plugin railweave to comm",
    HEAD + "Using network railweave",
    "NCCL version 2.28.9+cuda13.0",
    HEAD + "2 coll channels, 0 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer",
    HEAD + "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/railweave/0",
    HEAD + "Channel 00/0 : 0[0] -> 1[0] [send] via NET/railweave/0/Shared",
    HEAD + "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
]

V2_28 = (2, 28, 9)


def problems(lines: list[str], version=V2_28, network="railweave", settings=None) -> list[str]:
    return nccl.problems(nccl.read_log("\n".join(lines)), version, network, settings or {})


def without(text: str) -> list[str]:
    return [line for line in GOOD if text not in line]


class TheLog(unittest.TestCase):
    def test_a_good_one_has_no_problems(self):
        self.assertEqual(problems(GOOD), [])

    def test_it_is_read_in_full(self):
        log = nccl.read_log("\n".join(GOOD))
        self.assertEqual((log.version, log.api, log.networks), ("2.28.9", 11, {"railweave"}))
        self.assertEqual((log.paths, log.channels), ({"NET/railweave"}, {2}))
        self.assertEqual((log.used, log.devices), ({("RING", "LL")}, {"lo@127.0.0.1+lo@127.0.0.2"}))

    def test_a_fallback_is_noticed(self):
        fallen = [
            line.replace("network railweave", "network Socket").replace("NET/railweave", "NET/Socket") for line in GOOD
        ]
        self.assertEqual(len(problems(fallen)), 2)
        self.assertEqual(problems(fallen, network="Socket"), [])

    def test_another_path_beside_the_network_is_noticed(self):
        for path in ("SHM/direct", "P2P/CUMEM", "NET/IB/0"):
            found = problems([*GOOD, f"{HEAD}Channel 01/0 : 0[0] -> 1[0] [send] via {path}"])
            self.assertRegex("".join(found), "^channels go via ")

    def test_an_empty_log_is_no_good_log(self):
        self.assertEqual(len(problems([])), 4)

    def test_a_plugin_that_is_loaded_too_seldom_or_too_often_is_noticed(self):
        load = next(line for line in GOOD if "Loaded net plugin" in line)
        log = nccl.read_log("\n".join([*GOOD, load]))
        self.assertEqual(nccl.problems(log, V2_28, "railweave", {}, lives=2), [])
        for lives in (1, 3):
            found = nccl.problems(log, V2_28, "railweave", {}, lives)
            self.assertEqual(found, [f"NCCL loaded the plugin 2 times, not {lives}"])

    def test_releases_that_keep_the_plugin_load_it_once(self):
        for version, api in (((2, 26, 2), 10), ((2, 27, 7), 10)):
            lines = [
                line.replace("(v11)", f"(v{api})").replace("2.28.9", nccl.version_text(version)) for line in GOOD
            ]
            log = nccl.read_log("\n".join(lines))
            self.assertEqual(nccl.problems(log, version, "railweave", {}, lives=4), [])

    def test_each_line_that_matters_is_missed(self):
        for text, complaint in (
            ("Loaded net plugin", "loaded with API None, not v11"),
            ("Using network", "Using network railweave"),
            ("Channel", "via nothing"),
            ("NET/Railweave : device", "names no device"),
        ):
            self.assertIn(complaint, "".join(problems(without(text))))

    def test_an_older_api_than_both_know_is_noticed(self):
        older = [line.replace("(v11)", "(v8)") for line in GOOD]
        self.assertIn("loaded with API v8, not v11", "".join(problems(older)))

    def test_a_release_that_is_silent_about_its_own_api_is_understood(self):
        silent = [line for line in without("Loaded net plugin") if "NCCL version" not in line]
        self.assertEqual(problems(silent, (2, 21, 5)), [])
        self.assertIn("API v7, not None", "".join(problems([*silent, GOOD[1].replace("v11", "v7")], (2, 21, 5))))

    def test_another_release_than_the_one_asked_for_is_noticed(self):
        self.assertIn("NCCL 2.28.9 ran, not 2.28.3", problems(GOOD, (2, 28, 3)))

    def test_the_number_of_channels_must_be_the_one_asked_for(self):
        self.assertEqual(problems(GOOD, settings={"NCCL_MAX_NCHANNELS": "2"}), [])
        self.assertIn("not 8", "".join(problems(GOOD, settings={"NCCL_MAX_NCHANNELS": "8"})))

    def test_the_bootstrap_must_use_the_plugin_when_asked(self):
        settings = {"NCCL_OOB_NET_ENABLE": "1"}
        with_sockets = [*GOOD, HEAD + "Bootstrap: Using lo:127.0.0.1<0>"]
        self.assertEqual(problems(with_sockets, settings=settings), ["the bootstrap did not use the plugin"])
        with_plugin = [*with_sockets, HEAD + "Bootstrap: Using lo@127.0.0.1+lo@127.0.0.2:1"]
        self.assertEqual(problems(with_plugin, settings=settings), [])

    def test_warnings_are_kept(self):
        line = "host:1:2 [0] net.cc:12 NCCL WARN NET/Railweave : the peer closed the connection"
        self.assertEqual(nccl.read_log(line).warnings, ["NET/Railweave : the peer closed the connection"])


class TheAlgorithm(unittest.TestCase):
    def unused(self, version, **settings):
        return nccl.not_exercised(nccl.read_log("\n".join(GOOD)), version, settings)

    def test_what_was_asked_for_must_be_used(self):
        self.assertIsNone(self.unused(V2_28, NCCL_ALGO="Ring", NCCL_PROTO="LL"))
        self.assertIsNone(self.unused(V2_28))
        self.assertIn("TREE/LL was asked for", self.unused(V2_28, NCCL_ALGO="Tree", NCCL_PROTO="LL"))
        self.assertIn("shows RING/LL", self.unused(V2_28, NCCL_PROTO="LL128"))

    def test_older_releases_do_not_say(self):
        self.assertIsNone(self.unused((2, 21, 5), NCCL_PROTO="LL128"))


class Versions(unittest.TestCase):
    def test_codes_of_ncclGetVersion(self):
        for code, version in ((2708, (2, 7, 8)), (21903, (2, 19, 3)), (23007, (2, 30, 7))):
            self.assertEqual(nccl.decode_version(code), version)

    def test_the_newest_api_of_a_release(self):
        for version, api in (((2, 18, 6), 6), ((2, 19, 3), 7), ((2, 25, 1), 9), ((2, 30, 7), 12), ((2, 40, 0), 12)):
            self.assertEqual(nccl.newest_api(version), api)


class Environment(unittest.TestCase):
    def test_a_release_that_takes_no_path_or_forgets_it_finds_the_plugin_by_name(self):
        with tempfile.TemporaryDirectory() as name:
            folder, plugin = Path(name), Path(name) / "built.so"
            plugin.touch()
            for _ in range(2):
                variables = nccl.through_plugin(plugin, (2, 19, 3), "127.0.0.1/32", folder)
            self.assertEqual(variables["NCCL_NET_PLUGIN"], "railweave")
            self.assertEqual(variables["LD_LIBRARY_PATH"].split(":")[0], name)
            for link in ("libnccl-net-railweave.so", "libnccl-net.so"):
                self.assertEqual((folder / link).resolve(), plugin.resolve())
            variables = nccl.through_plugin(plugin, V2_28, "127.0.0.1/32", folder)
            self.assertEqual(variables["NCCL_NET_PLUGIN"], str(plugin))

    def test_settings_of_who_checks_are_not_inherited(self):
        given = {"NCCL_NET": "IB", "RAILWEAVE_LANES": "4", "MPIB_HCA_SUP": "a", "TORCH_NCCL_DUMP": "1", "PATH": "/bin"}
        self.assertEqual(nccl.inherited(given), {"PATH": "/bin"})

    def test_ranks_are_different_hosts(self):
        hosts = {nccl.as_own_host(rank, Path(os.devnull))["NCCL_HOSTID"] for rank in (0, 1)}
        self.assertEqual(len(hosts), 2)


class Libraries(unittest.TestCase):
    def test_what_is_no_plugin_is_refused_by_name(self):
        here = Path(__file__)
        for path, complaint in ((here.with_name("absent.so"), "no such file"), (here, "not a library")):
            with self.assertRaisesRegex(Refusal, complaint) as refused:
                nccl.check_plugin(path)
            self.assertIn(str(path), str(refused.exception))

    def test_a_folder_is_searched_as_packages_lay_it_out(self):
        with tempfile.TemporaryDirectory() as name:
            library = Path(name).resolve() / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
            with self.assertRaisesRegex(Refusal, "has no libnccl.so.2"):
                nccl.find_library(Path(name))
            library.parent.mkdir(parents=True)
            library.write_text("no library")
            self.assertEqual(nccl.find_library(Path(name)), library)
            with self.assertRaisesRegex(Refusal, "not NCCL's library"):
                nccl.library_version(library)


if __name__ == "__main__":
    unittest.main()
