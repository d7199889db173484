"""The collectives between two ranks: their inputs, and their expected results by a plain computation on the CPU."""

from __future__ import annotations

import torch
import torch.distributed as dist

from plan import RANKS

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# Elements on either side of each output that no collective may touch; this number keeps the output aligned.
GUARD = 128


class Values:
    """The numbers that each rank contributes: seeded, and the same in every process.

    They are integers of at most 63, so that the sum of two is exact even in bfloat16, whose integers are exact to 256.
    """

    # The number of places at which a collective's numbers may start. The place depends on the seed, so that stale data
    # of an earlier collective is noticed.
    STARTS = 4093

    def __init__(self, largest: int):
        """Makes numbers for collectives of at most `largest` bytes."""
        # bfloat16 needs most elements; the rest is for the starts.
        count = largest // 2 + self.STARTS
        self.ranks = []
        for rank in range(RANKS):
            generator = torch.Generator().manual_seed(1000 + rank)
            self.ranks.append(torch.randint(0, 64, (count,), dtype=torch.uint8, generator=generator))

    def of(self, rank: int, seed: int, count: int) -> torch.Tensor:
        """Returns `count` numbers of `rank` for the collective with `seed`, as bytes."""
        start = seed * 131 % self.STARTS
        return self.ranks[rank][start : start + count]


class Collective:
    """One collective, ready to run any number of times."""

    def __init__(self, name: str, element: torch.dtype, size: int, rank: int, values: Values, seed: int, device: str):
        """`size` is that of the whole data in bytes, as in NCCL's own tests: for all_gather the output."""
        self.name, self.rank = name, rank
        count = size // element.itemsize
        part = count // RANKS
        ins, outs = {
            "all_reduce": (count, count),
            "all_gather": (part, count),
            "reduce_scatter": (count, part),
            "all_to_all": (count, count),
            "send_recv": (count, count),
        }[name]
        numbers = [values.of(each, seed, ins) for each in range(RANKS)]
        self.expected = self._expect(numbers, part).to(element)
        self.input = numbers[rank].to(element).to(device)
        self.guarded = torch.full((outs + 2 * GUARD,), float("nan"), dtype=element, device=device)
        self.output = self.guarded[GUARD : GUARD + outs]
        if name == "all_reduce":
            self.output.copy_(self.input)

    def _expect(self, numbers: list[torch.Tensor], part: int) -> torch.Tensor:
        mine = slice(self.rank * part, (self.rank + 1) * part)
        return {
            "all_reduce": lambda: sum(numbers),
            "all_gather": lambda: torch.cat(numbers),
            "reduce_scatter": lambda: sum(numbers)[mine],
            "all_to_all": lambda: torch.cat([each[mine] for each in numbers]),
            "send_recv": lambda: numbers[1 - self.rank],
        }[self.name]()

    def run(self) -> None:
        """Runs it once; on a GPU it may still be in progress afterwards."""
        if self.name == "all_reduce":
            dist.all_reduce(self.output)
        elif self.name == "all_gather":
            dist.all_gather_into_tensor(self.output, self.input)
        elif self.name == "reduce_scatter":
            dist.reduce_scatter_tensor(self.output, self.input)
        elif self.name == "all_to_all":
            dist.all_to_all_single(self.output, self.input)
        else:
            for sender in range(RANKS):
                if sender == self.rank:
                    dist.send(self.input, 1 - self.rank)
                else:
                    dist.recv(self.output, 1 - self.rank)

    def damage(self) -> None:
        """Changes one byte of the result, as a broken transport could: a trial of the check."""
        data = self.output.view(torch.uint8)
        data[data.numel() // 2] ^= 1

    def difference(self) -> str | None:
        """Returns the defect of the result, or None if every bit is as computed on the CPU."""
        host = self.guarded.cpu()
        result = host[GUARD : GUARD + self.expected.numel()]
        sides = torch.cat([host[:GUARD], host[GUARD + self.expected.numel() :]])
        if not torch.equal(bits(sides), bits(torch.full_like(sides, float("nan")))):
            return "memory next to the output was written"
        return difference(result, self.expected)


def difference(result: torch.Tensor, expected: torch.Tensor) -> str | None:
    """Compares bit by bit; returns the first difference and the number of elements that differ."""
    if torch.equal(bits(result), bits(expected)):
        return None
    wrong = (bits(result) != bits(expected)).nonzero()
    first = int(wrong[0])
    return (
        f"element {first} of {expected.numel()} is {result[first].item()}, not {expected[first].item()}; "
        f"elements that differ: {len(wrong)}"
    )


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the same memory as integers, for which NaN is a value like any other."""
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])
