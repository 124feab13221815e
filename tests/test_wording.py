"""Counts in sentences."""

from __future__ import annotations

import pytest

from sareloc.wording import counted, plural


@pytest.mark.parametrize(
    ("count", "what", "expected"),
    [
        (0, "photo", "0 photos"),
        (1, "photo", "1 photo"),
        (1200, "360° photo", "1,200 360° photos"),
        (1, "query", "1 query"),
        (2, "query", "2 queries"),
        (2, "day", "2 days"),
    ],
)
def test_a_noun_has_the_number_of_its_count(count: int, what: str, expected: str) -> None:
    assert plural(count, what) == expected


def test_a_verb_has_the_number_of_its_count() -> None:
    assert [plural(count, "row", ("is", "are")) for count in (1, 2)] == ["1 row is", "2 rows are"]


def test_of_many_values_the_first_five_are_quoted() -> None:
    assert counted(["a"], "row") == "1 row (a)"
    assert counted(list("abcdef"), "row") == "6 rows (a, b, c, d, e, ...)"
