"""NCCL's settings, in its environment, and the meaning of its log."""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from refusal import Refusal

PLUGIN = "railweave"

# The oldest release in which NCCL_HOSTID alone is known to make two processes on one GPU look like two hosts.
OLDEST = (2, 18, 0)

# The first release whose NCCL_NET_PLUGIN takes a path.
TAKES_PATH = (2, 21, 0)

# The first release that logs a line about the plugin even if the plugin has the newest API that it knows.
SAYS_NEWEST = (2, 24, 0)

# The first release that logs the algorithm and protocol of each collective.
SAYS_PROTOCOL = (2, 24, 0)

# Releases from the first on, but before the second, keep the plugin loaded when the last communicator ends; the others
# do not (the default of NCCL_NET_PLUGIN_REF_COUNT in NCCL's src/plugin/net.cc).
KEEPS_LOADED = ((2, 26, 0), (2, 28, 0))

# The newest net API of each release, from the first release that has it.
APIS = (
    ((2, 13, 0), 6),
    ((2, 19, 0), 7),
    ((2, 20, 0), 8),
    ((2, 24, 0), 9),
    ((2, 26, 0), 10),
    ((2, 28, 0), 11),
    ((2, 30, 0), 12),
)

# Prefixes of variables that are not inherited: the check must not depend on the user's settings.
OWNED = ("NCCL_", "TORCH_NCCL_", "RAILWEAVE_", "MPIB_")

Version = tuple[int, int, int]


def version_text(version: Version) -> str:
    return ".".join(map(str, version))


def decode_version(code: int) -> Version:
    """Returns the release that ncclGetVersion's number stands for; releases before 2.9 encode it differently."""
    if code < 10000:
        return code // 1000, code // 100 % 10, code % 100
    return code // 10000, code // 100 % 100, code % 100


def newest_api(version: Version) -> int:
    """Returns the newest known net API that this release asks a plugin for; 0 if there is none."""
    return max((api for first, api in APIS if version >= first), default=0)


def find_library(path: Path) -> Path:
    """Finds libnccl.so.2 at `path`, or in the folder `path` as NCCL's packages lay it out; refuses anything else."""
    places = [
        path,
        path / "libnccl.so.2",
        path / "lib" / "libnccl.so.2",
        path / "nvidia" / "nccl" / "lib" / "libnccl.so.2",
    ]
    for place in places:
        if place.is_file():
            return place.resolve()
    raise Refusal(f"--nccl {path} has no libnccl.so.2; give the file, or the folder of an unpacked nvidia-nccl package")


def library_version(library: Path) -> Version:
    """Returns the release of `library`, as the library itself reports it; refuses other libraries."""
    code = ctypes.c_int()
    try:
        ctypes.CDLL(str(library)).ncclGetVersion(ctypes.byref(code))
    except (OSError, AttributeError) as error:
        raise Refusal(f"--nccl {library} is not NCCL's library ({error}); give a libnccl.so.2") from None
    return decode_version(code.value)


def check_plugin(path: Path) -> None:
    """Refuses any library but Railweave's plugin."""
    if not path.is_file():
        raise Refusal(f"--plugin {path}: there is no such file; cargo xtask dist builds it into target/dist/lib")
    try:
        library = ctypes.CDLL(str(path.resolve()))
        # A table begins with its name.
        name = ctypes.c_char_p.in_dll(library, f"ncclNetPlugin_v{APIS[-1][1]}").value
    except OSError as error:
        raise Refusal(
            f"--plugin {path} is not a library that this machine can load ({error}); give {PLUGIN}'s .so"
        ) from None
    except ValueError:
        raise Refusal(f"--plugin {path} has no ncclNetPlugin_v{APIS[-1][1]}, so it is not {PLUGIN}'s plugin") from None
    if name != PLUGIN.encode():
        raise Refusal(f"--plugin {path} is the plugin {name!r}; only {PLUGIN}'s can be checked") from None


def inherited(environment: dict[str, str]) -> dict[str, str]:
    """Returns the environment without the settings that the check owns."""
    return {name: value for name, value in environment.items() if not name.startswith(OWNED)}


def through_plugin(plugin: Path, version: Version, rails: str, folder: Path) -> dict[str, str]:
    """Returns settings that leave NCCL only the plugin between two ranks; the links that they need go to `folder`."""
    # Releases that take no path look for libnccl-net-NAME.so on the library path. 2.28 and 2.29 forget the name when
    # they unload the plugin with the last communicator (NCCL's src/plugin/net.cc), and then look for libnccl-net.so.
    for name in (f"libnccl-net-{PLUGIN}.so", "libnccl-net.so"):
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(plugin)
    folders = [str(folder.resolve()), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {
        "NCCL_NET_PLUGIN": PLUGIN if version < TAKES_PATH else str(plugin),
        "LD_LIBRARY_PATH": ":".join(folders),
        "NCCL_NET": PLUGIN,
        "RAILWEAVE_RAILS": rails,
    }


def as_own_host(rank: int, log: Path) -> dict[str, str]:
    """Returns settings that make rank `rank` look like a host of its own, and write its log to `log`."""
    return {
        # Two hosts share no GPU, no NVLink and no memory: this allows two ranks on one GPU, and leaves only the
        # network.
        "NCCL_HOSTID": f"check-host-{rank}",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        # A GPU of an NVLink domain knows the other members, whatever the host says.
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_NVLS_ENABLE": "0",
        # Networking from the GPU starts NCCL's own InfiniBand transport alongside the plugin.
        "NCCL_GIN_ENABLE": "0",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": str(log),
    }


@dataclass
class Log:
    """The content of NCCL's log of one process."""

    version: str = ""
    networks: set[str] = field(default_factory=set)
    api: int | None = None
    loads: int = 0
    paths: set[str] = field(default_factory=set)
    channels: set[int] = field(default_factory=set)
    used: set[tuple[str, str]] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)
    bootstrap: set[str] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)
    telling: list[str] = field(default_factory=list)


def read_log(text: str) -> Log:
    """Reads the log of NCCL 2.18 to 2.30 at NCCL_DEBUG=INFO."""
    log = Log()
    for line in text.splitlines():
        message = line.partition(" NCCL INFO ")[2] or line
        if found := re.search(r"NCCL version (\d+\.\d+\.\d+)", line):
            log.version = found[1]
        elif found := re.match(rf"NET/Plugin: Loaded net plugin {PLUGIN} \(v(\d+)\)", message):
            log.api = int(found[1])
            log.loads += 1
        elif found := re.match(r"Using network (\S+)", message):
            log.networks.add(found[1])
        elif found := re.match(r"Channel \d+(?:/\d+)? : .* via (\w+(?:/\w+)?)", message):
            log.paths.add(found[1])
            continue
        elif found := re.match(r"(\d+) coll channels", message):
            log.channels.add(int(found[1]))
        elif found := re.match(r"\w+: \d+ Bytes -> Algo (\w+) proto (\w+)", message):
            log.used.add((found[1].upper(), found[2].upper()))
            continue
        elif found := re.match(r"NET/Railweave : device (\S+) over", message):
            log.devices.add(found[1])
        elif found := re.match(r"Bootstrap: Using (\S+):-?\d+$", message):
            log.bootstrap.add(found[1])
        elif " NCCL WARN " in line or "NET/Railweave" in message:
            if " NCCL WARN " in line:
                log.warnings.append(line.partition(" NCCL WARN ")[2])
        elif not re.match(
            r"NET/Plugin|Successfully loaded external network|(Initialized|Assigned) NET plugin", message
        ):
            continue
        log.telling.append(line)
    return log


def problems(log: Log, version: Version, network: str, settings: dict[str, str], lives: int = 1) -> list[str]:
    """Returns the deviations of the log from the request; none if all is well.

    `lives` is the number of times that the process has had communicators after having had none.
    """
    found = []
    if log.version and log.version != version_text(version):
        found.append(f"NCCL {log.version} ran, not {version_text(version)}")
    if log.networks != {network}:
        found.append(
            f'the log has no "Using network {network}"' + (f" but {sorted(log.networks)}" if log.networks else "")
        )
    if log.paths != {f"NET/{network}"}:
        found.append(f"channels go via {sorted(log.paths) or 'nothing'}, not only via NET/{network}")
    if network == PLUGIN:
        wanted = newest_api(version) if version >= SAYS_NEWEST else None
        loads = 1 if KEEPS_LOADED[0] <= version < KEEPS_LOADED[1] else lives
        if log.api != wanted:
            found.append(f"the plugin was loaded with API {log.api and f'v{log.api}'}, not {wanted and f'v{wanted}'}")
        elif wanted and log.loads != loads:
            found.append(f"NCCL loaded the plugin {log.loads} times, not {loads}")
        if not log.devices:
            found.append("the plugin names no device")
    channels = settings.get("NCCL_MAX_NCHANNELS")
    if channels and log.channels != {int(channels)}:
        found.append(f"{sorted(log.channels)} channels were used, not {channels}")
    if settings.get("NCCL_OOB_NET_ENABLE") == "1" and not log.bootstrap & log.devices:
        found.append("the bootstrap did not use the plugin")
    return found


def not_exercised(log: Log, version: Version, settings: dict[str, str]) -> str | None:
    """Returns the requested algorithm and protocol if they were not used, according to the log of rank 0."""
    algorithm, protocol = settings.get("NCCL_ALGO", "").upper(), settings.get("NCCL_PROTO", "").upper()
    if version < SAYS_PROTOCOL or not (algorithm or protocol):
        return None
    if any(algorithm in ("", each) and protocol in ("", other) for each, other in log.used):
        return None
    used = ", ".join(f"{each}/{other}" for each, other in sorted(log.used)) or "nothing"
    return f"{algorithm or 'any'}/{protocol or 'any'} was asked for, and the log shows {used}"
