"""CONTRIBUTING.md names tables and commands that exist; what it says of times and sizes was measured."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXT = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())


def test_every_name_is_in_the_file_that_the_table_gives() -> None:
    named = re.findall(r"`(\w+)` in `([^` ]+)`", TEXT)
    assert len(named) > 10
    assert [(name, path) for name, path in named if not re.search(rf"\b{name}\b", (ROOT / path).read_text())] == []


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([\w-]+)`", TEXT)) <= targets


AMOUNT = re.compile(
    r"\b(?:\d[\d.,]* ?|(?:one|two|three|four|five|six|seven|eight|nine|ten|half an?) )"
    r"(?:s|ms|seconds?|minutes?|hours?|[kMGT]i?B|gigabytes?|megabytes?)\b"
)


def test_times_and_sizes_are_in_the_table_of_what_was_measured() -> None:
    before, heading, rest = (ROOT / "CONTRIBUTING.md").read_text().partition("### Measured\n")
    assert heading
    table, _, after = rest.partition("\n## ")
    assert AMOUNT.findall(before) + AMOUNT.findall(after) == []
    rows = [line for line in table.splitlines() if AMOUNT.search(line)]
    assert rows
    assert [row for row in rows if not re.search(r"\| `[^`|]+` \| \d{4}-\d\d-\d\d \|$", row)] == []
