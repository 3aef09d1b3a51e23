def tripled(number: int) -> int:
    return 3 * number


def step(number: int) -> int:
    """A task's function, in a plain module."""
    return tripled(number) + 1
