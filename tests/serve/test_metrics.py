"""What the service counts, as Prometheus reads it."""

from __future__ import annotations

from sareloc.serve.metrics import Count, Histogram, Metrics


def test_counts_by_label() -> None:
    count = Count("asked_total", "Asked.", ("what", "who"))
    count.add("a", 'quote " and \\ and \n')
    count.add("a", "b")
    count.add("a", "b", by=2)
    assert list(count.lines()) == [
        "# HELP asked_total Asked.",
        "# TYPE asked_total counter",
        'asked_total{what="a",who="b"} 3',
        'asked_total{what="a",who="quote \\" and \\\\ and \\n"} 1',
    ]


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = Histogram("took_seconds", "Took.", (0.1, 1.0), ("route",))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value, "/map")
    assert list(histogram.lines())[2:] == [
        'took_seconds_bucket{route="/map",le="0.1"} 2',
        'took_seconds_bucket{route="/map",le="1.0"} 3',
        'took_seconds_bucket{route="/map",le="+Inf"} 4',
        'took_seconds_sum{route="/map"} 7.65',
        'took_seconds_count{route="/map"} 4',
    ]


def test_values_of_the_moment_are_asked_for_when_they_are_shown() -> None:
    metrics, numbers = Metrics(), iter((1, 2))
    metrics.watch("now", "Of the moment.", lambda: next(numbers))
    assert metrics.text().endswith("# TYPE now gauge\nnow 1\n")
    metrics.batches.observe(3)
    later = metrics.text()
    assert later.endswith("now 2\n")
    assert 'sareloc_batch_photos_bucket{le="4"} 1' in later
