"""The reason why the check cannot start."""


class Refusal(Exception):
    """One sentence: the thing, its value, what is allowed, and what to try."""
