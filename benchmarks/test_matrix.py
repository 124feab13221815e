"""The tests that run models, under the settings in which processors and machines differ: all must be green in each.

    python -m benchmarks.test_matrix [--only float32,bfloat16] [--processes 2]

Each row is a run of pytest over `PART`: the folders and files in whose tests a network computes, less files of these
folders in which none does, or no numbers are compared (`NO_NETWORK`), and less the tests marked slow or gpu. All rows
but two-threads compute in one thread a process, as `make test` does. The exit status is 1 if a row is red; its output
is printed above the table.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.measuring import about

ROOT = Path(__file__).resolve().parents[1]
PART = (
    "models",
    "encode",
    "export",
    "runtimes",
    "geometry",
    "evaluation",
    "localize",
    "maps",
    "training",
    "cli/test_evaluate_cli.py",
    "cli/test_figure_cli.py",
    "cli/test_localize_cli.py",
    "cli/test_precision_option.py",
    "figures/test_inliers.py",
    "figures/test_query_matches.py",
    "serve/test_answers_over_http.py",
    "serve/test_inliers.py",
    "test_old_artefacts.py",
)
NO_NETWORK = (
    "encode/test_describing_costs.py",
    "evaluation/test_judging.py",
    "localize/test_calibration.py",
    "localize/test_stored_calibration.py",
    "localize/test_walk.py",
    "maps/test_building.py",
    "maps/test_changing_photos.py",
    "maps/test_copying.py",
    "maps/test_edits.py",
    "maps/test_estimates.py",
    "maps/test_gpkg.py",
    "maps/test_hostile_maps.py",
    "maps/test_killed_builds.py",
    "maps/test_map_config.py",
    "maps/test_map_file.py",
    "maps/test_one_connection.py",
    "maps/test_place_map.py",
    "maps/test_stores.py",
    "maps/test_syncing.py",
    "maps/test_upgrading.py",
    "maps/test_upkeep.py",
    "maps/test_video_maps.py",
    "models/test_checkpoint.py",
    "models/test_weights_files.py",
)
INTERRUPTED = ("loading/test_loading.py", "maps/test_copying.py", "maps/test_killed_builds.py")
"""Tests that send or await an interrupt, run by the row background too."""


@dataclass(frozen=True)
class Row:
    """A way to run the tests."""

    about: str
    environment: Mapping[str, str] = field(default_factory=dict)
    background: bool = False
    """Started as a shell starts a job with "&": interrupts are ignored, nothing can be read from the terminal."""
    busy: bool = False
    """Beside programs that keep every core busy."""


ROWS = {
    "automatic": Row("the processor chooses the number format", {"SARELOC_PRECISION": "auto"}),
    "float32": Row("forced float32", {"SARELOC_PRECISION": "float32"}),
    "bfloat16": Row("forced bfloat16", {"SARELOC_PRECISION": "bfloat16"}),
    "avx2": Row("no AVX-512 in torch", {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}),
    "haswell": Row("OpenBLAS for a Haswell", {"OPENBLAS_CORETYPE": "Haswell"}),
    # passive: two processes of two threads that spin while they wait take many times as long on two cores
    "two-threads": Row("two threads a process", {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}),
    "background": Row("a background job", background=True),
    "busy": Row("beside busy programs", busy=True),
}
SETTINGS = {name for row in ROWS.values() for name in row.environment}


@dataclass(frozen=True)
class Outcome:
    """What a run of pytest counted."""

    passed: int
    failed: int
    skipped: int
    seconds: float
    ended: int
    """Exit status of pytest."""

    @property
    def green(self) -> bool:
        """Whether the run was complete and nothing failed."""
        return self.ended == 0 and self.failed == 0 and self.passed > 0


def run_row(row: Row, processes: int) -> tuple[Outcome, str]:
    """Run the part under the settings of a row; returns what was counted, and the output."""
    paths = dict.fromkeys((*PART, *(INTERRUPTED if row.background else ())))
    left_out = [name for name in NO_NETWORK if not (row.background and name in INTERRUPTED)]
    unset = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, keep_busy(row.busy):
        counted = Path(folder) / "counted.xml"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-n", str(processes), "-m", "not slow and not gpu"),
            *("-p", "no:cacheprovider", "--junitxml", str(counted)),
            *(f"--ignore=tests/{name}" for name in left_out),
            *(f"tests/{name}" for name in paths),
        ]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=unset | {"OMP_NUM_THREADS": "1"} | dict(row.environment),
            stdin=subprocess.DEVNULL if row.background else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=ignore_interrupts if row.background else None,
        )
        try:
            output, _ = process.communicate()
        finally:
            process.terminate()
        counts = read_counts(counted)
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    return Outcome(passed, failed, counts["skipped"], time.monotonic() - start, process.returncode), output


def ignore_interrupts() -> None:
    """As the shell does for a job in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)


@contextmanager
def keep_busy(wanted: bool) -> Iterator[None]:
    """One program for each core that never waits, if wanted."""
    cores = (os.cpu_count() or 1) if wanted else 0
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def read_counts(file: Path) -> dict[str, int]:
    """tests, failures, errors and skipped of pytest's report; zeros if it wrote none."""
    names = ("tests", "failures", "errors", "skipped")
    if not file.is_file():
        return dict.fromkeys(names, 0)
    suites = list(ElementTree.parse(file).iter("testsuite"))
    return {name: sum(int(suite.get(name, 0)) for suite in suites) for name in names}


def table(outcomes: Mapping[str, Outcome]) -> str:
    """The rows with their counts, in Markdown."""
    lines = ["| row | settings | passed | failed | skipped | s | |", "|---|---|---|---|---|---|---|"]
    for name, found in outcomes.items():
        row = ROWS[name]
        settings = " ".join(f"`{key}={value}`" for key, value in row.environment.items()) or row.about
        colour = "green" if found.green else f"red (pytest ended with {found.ended})"
        lines.append(
            f"| {name} | {settings} | {found.passed:,} | {found.failed:,} | {found.skipped:,} | {found.seconds:.0f} "
            f"| {colour} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ROWS), help=f"rows, separated by commas: {', '.join(ROWS)}")
    parser.add_argument("--processes", type=int, default=2, help="processes of pytest; default: 2")
    given = parser.parse_args()
    chosen = given.only.split(",")
    if unknown := [name for name in chosen if name not in ROWS]:
        parser.error(f"unknown row {unknown[0]!r}: known are {', '.join(ROWS)}")
    outcomes: dict[str, Outcome] = {}
    for name in chosen:
        print(f"{name}: {ROWS[name].about} ...", file=sys.stderr, flush=True)
        outcomes[name], output = run_row(ROWS[name], given.processes)
        if not outcomes[name].green:
            print(f"--- {name} ---\n{output}", flush=True)
    print(table(outcomes))
    print(f"\n{sum(found.seconds for found in outcomes.values()) / 60:.1f} minutes\n")
    print(json.dumps(about()))
    return 0 if all(found.green for found in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
