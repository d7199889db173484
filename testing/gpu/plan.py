"""The plan of the check: the runs, each with its settings and collectives."""

from __future__ import annotations

from dataclasses import dataclass, field

RANKS = 2

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")

# The data that crosses the busiest path in one direction, as a share of a collective's bytes, as in NCCL's own tests
# with two ranks. In send_recv both ranks send all bytes, one after the other, so both directions count.
BUS_SHARES = {"all_reduce": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5, "all_to_all": 0.5, "send_recv": 2.0}

KIB, MIB = 1 << 10, 1 << 20

# Bytes of a collective: the smallest, some that no split divides evenly, and the largest. All hold whole float32 values
# for two ranks.
SIZES = (8, KIB + 8, 64 * KIB, MIB + 24, 16 * MIB, 64 * MIB, 256 * MIB)

BOTH = ("float32", "bfloat16")

# The parts of NCCL whose log lines are read. TUNING logs a line per collective, which would cost time in the bench.
LOG_QUIET = {"NCCL_DEBUG_SUBSYS": "INIT,NET,BOOTSTRAP,ENV"}
LOG_FULL = {"NCCL_DEBUG_SUBSYS": "INIT,NET,BOOTSTRAP,ENV,TUNING"}


@dataclass(frozen=True)
class Run:
    """Two processes that start with these settings; NCCL reads them once."""

    name: str
    why: str
    settings: dict[str, str] = field(default_factory=dict)
    collectives: tuple[str, ...] = COLLECTIVES
    # Bytes of the largest collective.
    largest: int = 16 * MIB
    # The types of the trained models.
    train: tuple[str, ...] = ()
    # The number of groups of ranks that live in the processes, one after the other.
    lives: int = 1
    # True if --quick includes it.
    quick: bool = False
    # The oldest NCCL that knows the settings.
    oldest: tuple[int, int, int] = (2, 18, 0)

    def sizes(self, quick: bool) -> list[int]:
        """Returns the sizes to try, in bytes."""
        largest = min(self.largest, 16 * MIB) if quick else self.largest
        return [size for size in SIZES if size <= largest]

    def cells(self) -> list[tuple[str, str]]:
        """Returns each collective with each type."""
        return [(collective, element) for element in BOTH for collective in self.collectives]

    def rows(self, backend: str) -> list[str]:
        """Returns the names of this run's rows."""
        names = [row_name(self.name, collective, element) for collective, element in self.cells()]
        names += [row_name(self.name, "train", element) for element in self.train]
        names += [row_name(self.name, "reload")] if self.lives > 1 else []
        # gloo knows no plugin and writes no log.
        last = ["end"] if backend == "gloo" else ["rails", "end", "log"]
        return [row_name(self.name, "start"), *names, *(row_name(self.name, name) for name in last)]


def forced(algorithm: str, protocol: str, **more) -> Run:
    """Returns a run with only this algorithm and this protocol."""
    return Run(
        f"{protocol}-{algorithm}".lower(),
        f"NCCL_ALGO={algorithm} NCCL_PROTO={protocol}",
        {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol},
        # Only all_reduce has trees; NCCL refuses all other collectives if nothing else is allowed.
        collectives=("all_reduce",) if algorithm == "Tree" else COLLECTIVES,
        **more,
    )


def channels(count: int, **more) -> Run:
    """Returns a run with this many channels."""
    settings = {"NCCL_MIN_NCHANNELS": str(count), "NCCL_MAX_NCHANNELS": str(count)}
    return Run(f"channels-{count}", f"NCCL_MIN_NCHANNELS=NCCL_MAX_NCHANNELS={count}", settings, **more)


RUNS = (
    Run("default", "NCCL's own choice of everything", largest=256 * MIB, train=BOTH, quick=True),
    forced("Ring", "Simple", largest=64 * MIB),
    forced("Tree", "Simple", largest=256 * MIB, quick=True),
    # LL carries four bytes of data in eight, at most 32 KiB at a time: NCCL itself uses it only for small messages.
    forced("Ring", "LL", largest=2 * MIB, quick=True),
    forced("Tree", "LL", largest=16 * MIB),
    forced("Ring", "LL128", largest=16 * MIB, quick=True),
    forced("Tree", "LL128", largest=64 * MIB),
    channels(1),
    channels(8, largest=64 * MIB),
    Run(
        "bootstrap",
        "NCCL_OOB_NET_ENABLE=1",
        {"NCCL_OOB_NET_ENABLE": "1"},
        largest=64 * KIB,
        oldest=(2, 23, 0),
    ),
    Run(
        "again",
        "all communicators are destroyed and made again, for which NCCL unloads and loads the plugin",
        collectives=("all_reduce",),
        largest=2 * MIB,
        lives=4,
        quick=True,
    ),
)

# The part that gloo can do, in sizes for a CPU.
GLOO = Run("default", "everything that does not need NCCL", largest=16 * MIB, train=BOTH, quick=True)

# One rank of this run is killed. PyTorch must report NCCL's error instead of ending the process itself.
ABORT = Run(
    "abort",
    "one rank is killed in a collective",
    {
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
        "RAILWEAVE_PEER_TIMEOUT": "5",
    },
)
ABORT_ROW = "killed rank"

# The transports that are timed next to each other; figures are compared with those of the last.
TRANSPORTS = (
    Run("railweave", "the plugin over its rails", LOG_QUIET),
    Run(
        "railweave-one-rail",
        "the plugin over the address that Socket uses",
        LOG_QUIET | {"RAILWEAVE_RAILS": "127.0.0.1/32"},
    ),
    Run("Socket", "NCCL's own socket transport", LOG_QUIET | {"NCCL_NET_PLUGIN": "none", "NCCL_NET": "Socket"}),
)

# The timed collectives and their bytes.
TIMED = (
    ("all_reduce", 8),
    ("all_reduce", 64 * KIB),
    ("all_reduce", MIB),
    ("all_reduce", 16 * MIB),
    ("all_reduce", 256 * MIB),
    ("all_gather", 16 * MIB),
    ("reduce_scatter", 16 * MIB),
    ("all_to_all", 16 * MIB),
    ("send_recv", 16 * MIB),
)
TIMED_QUICK = (("all_reduce", 8), ("all_reduce", MIB), ("all_reduce", 16 * MIB))

# The number of rounds in which each transport is timed, in turns, and the approximate seconds of a round.
ROUNDS, ROUNDS_QUICK = 5, 3
ROUND_SECONDS = 0.2


def row_name(*parts: str) -> str:
    """Returns the name of a row, which --only matches."""
    return "/".join(parts)


def timed(quick: bool) -> dict[tuple[str, int], str]:
    """Returns the timed collectives and their bytes, with the names of their rows."""
    cells = TIMED_QUICK if quick else TIMED
    return {cell: row_name("bench", cell[0], size_text(cell[1])) for cell in cells}


def names(backend: str, quick: bool) -> list[str]:
    """Returns the names of all rows."""
    runs = [GLOO] if backend == "gloo" else [run for run in RUNS if run.quick or not quick]
    return [name for run in runs for name in run.rows(backend)] + [row_name("abort", ABORT_ROW), *timed(quick).values()]


def size_text(size: int) -> str:
    """Returns a number of bytes as people write it."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            whole, rest = divmod(size, unit)
            return f"{whole} {name}" + (f" + {rest} B" if rest else "")
    return f"{size} B"
