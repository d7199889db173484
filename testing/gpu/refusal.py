"""What keeps the check from starting."""


class Refusal(Exception):
    """One sentence: the thing, its value, what is allowed, and what to try."""
