"""A module beside a DAG file: it must travel with the functions that use it."""


def doubled(number: int) -> int:
    return 2 * number
