"""What the service counts, in the text format that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
PHOTOS = (1, 2, 4, 8, 16, 32)
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]


class Count:
    """A number that only rises, for each combination of labels."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str]) -> None:
        self.name, self.help, self.labels = name, help_text, tuple(labels)
        self.values: Counter[Labels] = Counter()

    def add(self, *labels: str, by: int = 1) -> None:
        """Count so many more."""
        self.values[labels] += by

    def lines(self) -> Iterator[str]:
        """As Prometheus reads it."""
        yield from _head(self.name, self.help, "counter")
        for labels, value in sorted(self.values.items()):
            yield f"{self.name}{_braces(self.labels, labels)} {value}"


class Histogram:
    """How often a value came up to each bound, for each combination of labels."""

    def __init__(self, name: str, help_text: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        self.name, self.help, self.labels = name, help_text, tuple(labels)
        self.bounds = tuple(bounds)
        self.counts: defaultdict[Labels, list[int]] = defaultdict(lambda: [0] * (len(self.bounds) + 1))
        self.sums: defaultdict[Labels, float] = defaultdict(float)

    def observe(self, value: float, *labels: str) -> None:
        """One more value."""
        self.counts[labels][bisect_left(self.bounds, value)] += 1
        self.sums[labels] += value

    def lines(self) -> Iterator[str]:
        """As Prometheus reads it: counts up to each bound, their sum, their number."""
        yield from _head(self.name, self.help, "histogram")
        for labels, counts in sorted(self.counts.items()):
            total = 0
            for bound, count in zip((*self.bounds, "+Inf"), counts, strict=True):
                total += count
                yield f"{self.name}_bucket{_braces((*self.labels, 'le'), (*labels, str(bound)))} {total}"
            yield f"{self.name}_sum{_braces(self.labels, labels)} {self.sums[labels]}"
            yield f"{self.name}_count{_braces(self.labels, labels)} {total}"


class Metrics:
    """All that is counted. Written to by the event loop alone."""

    def __init__(self) -> None:
        self.requests = Count("sareloc_requests_total", "Requests answered.", ("method", "route", "status"))
        self.seconds = Histogram("sareloc_request_seconds", "From request to answer.", SECONDS, ("route",))
        self.photos = Count("sareloc_photos_total", "Photos asked about, by what came of them.", ("outcome",))
        self.batches = Histogram("sareloc_batch_photos", "Photos given to the model at once.", PHOTOS)
        self._gauges: list[tuple[str, str, Callable[[], float]]] = []

    def watch(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """Show a value of the moment."""
        self._gauges.append((name, help_text, value))

    def text(self) -> str:
        """Everything, as Prometheus reads it."""
        lines = [line for one in (self.requests, self.seconds, self.photos, self.batches) for line in one.lines()]
        for name, help_text, value in self._gauges:
            lines += [*_head(name, help_text, "gauge"), f"{name} {value()}"]
        return "\n".join(lines) + "\n"


def _head(name: str, help_text: str, kind: str) -> tuple[str, str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"


def _braces(names: Sequence[str], values: Sequence[str]) -> str:
    pairs = (f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{','.join(pairs)}}}" if names else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
