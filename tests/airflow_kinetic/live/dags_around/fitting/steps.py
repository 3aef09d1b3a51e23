"""A function that a DAG takes from a package beside it."""

from __future__ import annotations


def fit(number: int) -> int:
    from fitting import tables

    print("fits in a package of the bundle")
    return number * tables.FACTOR
