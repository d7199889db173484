"""The comparison notices every kind of damage, and its expected results follow the collectives' definitions."""

import copy
import unittest

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest("needs PyTorch") from error

import training
from collectives import GUARD, TYPES, Collective, Values, difference
from plan import COLLECTIVES, RANKS

VALUES = Values(4096)


def done(name: str, element: torch.dtype, rank: int) -> Collective:
    """A collective whose output holds the expected result."""
    collective = Collective(name, element, 1032, rank, VALUES, 5, "cpu")
    collective.output.copy_(collective.expected)
    return collective


class Comparison(unittest.TestCase):
    def test_the_right_result_passes(self):
        for name in COLLECTIVES:
            for element in TYPES.values():
                self.assertIsNone(done(name, element, 1).difference())

    def test_one_wrong_bit_anywhere_is_noticed(self):
        for element in TYPES.values():
            collective = done("all_gather", element, 0)
            data = collective.output.view(torch.uint8)
            for place in range(data.numel()):
                data[place] ^= 1 << place % 8
                self.assertRegex(
                    collective.difference(), f"^element {place // element.itemsize} of .*; elements that differ: 1$"
                )
                data[place] ^= 1 << place % 8

    def test_the_planted_damage_is_noticed(self):
        for name in COLLECTIVES:
            collective = done(name, torch.bfloat16, 0)
            collective.damage()
            self.assertIn("elements that differ: 1", collective.difference())

    def test_an_output_that_nobody_wrote_is_noticed(self):
        for name in COLLECTIVES:
            collective = Collective(name, torch.float32, 1032, 0, VALUES, 5, "cpu")
            self.assertRegex(collective.difference(), "^element 0 of ")

    def test_a_write_beside_the_output_is_noticed(self):
        for place in (0, GUARD - 1, -GUARD, -1):
            collective = done("reduce_scatter", torch.float32, 0)
            collective.guarded[place] = 1
            self.assertEqual(collective.difference(), "memory next to the output was written")

    def test_the_last_collective_is_not_taken_for_the_next(self):
        first, second = (Collective("all_to_all", torch.float32, 1032, 0, VALUES, seed, "cpu") for seed in (5, 6))
        self.assertIsNotNone(difference(first.expected, second.expected))


class Expectation(unittest.TestCase):
    def test_it_is_what_two_ranks_compute_element_by_element(self):
        count = 6
        ins = [[float(value) for value in VALUES.of(rank, 5, count)] for rank in range(RANKS)]
        half = count // 2
        sums = [a + b for a, b in zip(*ins)]
        wanted = {
            "all_reduce": [sums, sums],
            "all_gather": [ins[0][:half] + ins[1][:half]] * 2,
            "reduce_scatter": [sums[:half], sums[half:]],
            "all_to_all": [ins[0][:half] + ins[1][:half], ins[0][half:] + ins[1][half:]],
            "send_recv": [ins[1], ins[0]],
        }
        for name in COLLECTIVES:
            for rank in range(RANKS):
                collective = Collective(name, torch.float32, count * 4, rank, VALUES, 5, "cpu")
                self.assertEqual(collective.expected.tolist(), wanted[name][rank], name)

    def test_sums_are_exact_in_bfloat16(self):
        largest = torch.tensor([63.0]).to(torch.bfloat16)
        self.assertEqual((largest + largest).item(), 126)
        self.assertLessEqual(int(max(each.max() for each in VALUES.ranks)), 63)


class Training(unittest.TestCase):
    def setUp(self):
        self.begin, self.end = torch.zeros(4), torch.tensor([1.0, -1.0, 0.5, 0.0])

    def test_the_same_bits_are_not_apart(self):
        self.assertEqual(training.apart(self.end.clone(), self.end, self.begin), 0)

    def test_a_changed_parameter_is_too_far_apart(self):
        result = self.end.clone()
        result[2] += 0.01
        self.assertGreater(training.apart(result, self.end, self.begin), training.MOST_APART[torch.float32])

    def test_not_a_number_is_never_near(self):
        result = self.end.clone()
        result[0] = float("nan")
        self.assertFalse(training.apart(result, self.end, self.begin) <= 1)

    def test_gradients_of_one_rank_alone_are_too_far_apart(self):
        begin = training.Transformer()
        data = training.batches("cpu")
        all_ranks, one_rank = copy.deepcopy(begin), copy.deepcopy(begin)
        training.steps(all_ranks, lambda step: training.average_of_all(all_ranks, data[step]))
        training.steps(one_rank, lambda step: training.backward(one_rank, data[step][0]))
        share = training.apart(*map(training.parameters, (one_rank, all_ranks, begin)))
        self.assertGreater(share, 2 * max(training.MOST_APART.values()))


if __name__ == "__main__":
    unittest.main()
