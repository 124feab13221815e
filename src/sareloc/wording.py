"""Counts in sentences: "1 photo", "2 photos", "7 rows (a, b, c, d, e, ...)"."""

from __future__ import annotations

import re
from collections.abc import Sequence

SHOWN = 5  # values quoted behind a count


def plural(count: int, what: str, verb: tuple[str, str] | None = None) -> str:
    """A count with its noun, and a verb of the same number: "1 photo is", "1,200 photos are".

    Args:
        count: how many.
        what: the noun in the singular; its plural ends in s, or ies after a consonant and y.
        verb: its forms for one and for several, such as ("is", "are"); default: no verb.
    """
    one = count == 1
    several = f"{what[:-1]}ies" if re.search("[^aeiou]y$", what) else f"{what}s"
    return f"{count:,} {what if one else several}" + ("" if verb is None else f" {verb[0] if one else verb[1]}")


def counted(values: Sequence[str], what: str) -> str:
    """A count with the first values, for a note: "7 rows (a, b, c, d, e, ...)"."""
    more = ", ..." if len(values) > SHOWN else ""
    return f"{plural(len(values), what)} ({', '.join(values[:SHOWN])}{more})"
