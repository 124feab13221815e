"""The structure of the package in numbers: files, names, how far a command reaches, what an entry point loads.

    python -m benchmarks.house [--src PATH] [--json]

--src: a folder that holds a `sareloc` package, so that two versions can be compared; default: src/ of this repository.

What is counted
---------------
Source (read with `ast`, nothing is imported):

- lines: of all .py files; functions: methods and nested functions too, `def` line to last line.
- importer: a module with an import statement for another, anywhere in its code. `from package import name` counts for
  the submodule `name` if there is one, else for the package.
- twice: file names (except `__init__`) in more than one package; public classes and functions at module level that more
  than one module defines.

Walks (measured with `sys.setprofile` and `threading.setprofile`, each in a fresh process): one command, from the call
of its function to its return, on photos drawn here, with the packaged model `fast`, on the CPU. Only code of the
package is counted. What runs while a module is imported is not counted (`<module>` frames and everything under them),
nor is the parsing of the command line. Photos are decoded in this process (`--workers 0`), because other processes are
not traced.

- files, functions: distinct ones that ran; lambdas and comprehensions belong to the function around them.
- changes: take the functions in the order of their first call; how often the next one is in another file.
- video: `map build` of a video with a GPX track.
- one more photo: `Localizer.localize` once the model and the map are open and one photo has been localized.
- POST /localize: the first answer of a service that has started, without the server's sockets.
- training step: the part of `train` between its first and its second optimizer step.

Reads (each in a fresh process, without tracing): how often a photo is opened (audit events of `open`, of any kind) and
decoded (Pillow's `load` of an image whose pixels are still in its file) when a map of 24 photos is built, the most of
all photos; and as a query. Local features are computed in both.

Entry points: the modules of the package in `sys.modules` after the import, in a fresh process.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SMALL = 60  # lines; a module below it with a single importer could be part of that importer
SIDE = 96  # pixels of the drawn photos
STEP_M = 30.0  # metres between two drawn places: farther than the radius of negatives
ONE_MORE = "localize, one more photo"
POST = "POST /localize"
ENTRY_POINTS = {  # the first of the statements that can be executed
    "import sareloc": ("import sareloc",),
    "command line": ("import sareloc.cli",),
    "web app": ("import sareloc.serve.app", "import sareloc.web.app"),
    "Localizer": ("from sareloc import Localizer",),
    "train": ("from sareloc import train",),
}

INNER = re.compile(r"(\.<locals>\.<\w+>)+$")  # of a lambda or comprehension: it belongs to the function around it

Counts = dict[str, Any]
Function = tuple[str, str]  # file, qualified name


# ---------------------------------------------------------------- source


def module_name(path: Path, src: Path) -> str:
    parts = path.relative_to(src).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(tree: ast.Module, package: str, known: set[str]) -> Iterator[str]:
    """The modules among `known` that a module imports; package: the one it belongs to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                found = f"{source}.{alias.name}" if f"{source}.{alias.name}" in known else source
                if found in known:
                    yield found


def count_source(src: Path) -> Counts:
    """What can be seen without running anything."""
    paths = {module_name(path, src): path for path in sorted((src / "sareloc").rglob("*.py"))}
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in paths.items()}
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in paths.items()}
    importers: dict[str, set[str]] = defaultdict(set)
    homes: dict[str, set[str]] = defaultdict(set)
    lengths = []
    for name, tree in trees.items():
        package = name if paths[name].stem == "__init__" else name.rpartition(".")[0]
        for imported in imported_modules(tree, package, set(paths) - {name}):
            importers[imported].add(name)
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
                homes[node.name].add(name)
        lengths += [
            (node.end_lineno or node.lineno) - node.lineno + 1
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
    single = sorted(name for name in paths if len(importers[name]) == 1)
    stems = Counter(path.stem for path in paths.values() if path.stem != "__init__")
    return {
        "files": len(paths),
        "lines": sum(lines.values()),
        "lines_median": statistics.median(lines.values()),
        "lines_largest": max(lines.values()),
        "largest_file": max(lines, key=lambda name: lines[name]),
        "function_lines_median": statistics.median(lengths),
        "one_importer": single,
        "one_importer_small": [name for name in single if lines[name] < SMALL],
        "file_names_twice": sorted(stem for stem, count in stems.items() if count > 1),
        "names_twice": {name: sorted(found) for name, found in sorted(homes.items()) if len(found) > 1},
    }


# ---------------------------------------------------------------- walks


class Trace:
    """Which code of a package runs, in the order of its first call; code under an import is left out."""

    def __init__(self, package: Path) -> None:
        self.functions: dict[Function, None] = {}
        self.between_steps: dict[Function, None] = {}
        self.steps = 0
        self._package = str(package) + os.sep
        self._local = threading.local()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        imports = getattr(self._local, "imports", 0)
        if code.co_name == "<module>":
            self._local.imports = imports + (1 if event == "call" else -1)
        elif event == "call" and not imports:
            if code.co_filename.startswith(self._package):
                function = (code.co_filename, INNER.sub("", code.co_qualname))
                self.functions[function] = None
                if self.steps == 1:
                    self.between_steps[function] = None
            elif code.co_name == "step" and "/torch/optim/" in code.co_filename.replace(os.sep, "/"):
                self.steps += code.co_filename.endswith(("sgd.py", "adamw.py", "adam.py"))

    def run(self, command: Callable[[], Any]) -> None:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            command()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def count_walk(functions: Iterable[Function], package: Path) -> Counts:
    files = [file for file, _ in functions]
    return {
        "files": len(set(files)),
        "functions": len(files),
        "changes": sum(one != other for one, other in pairwise(files)),
        "names": [str(Path(file).relative_to(package)) for file in dict.fromkeys(files)],
    }


def trace_command(src: Path, words: list[str]) -> dict[str, Counts]:
    """Run one command in this process and count what it crossed."""
    from sareloc.cli import app

    package = (src / "sareloc").resolve()
    trace = Trace(package)
    command, bound, _ = app.parse_args(words)
    trace.run(lambda: command(*bound.args, **bound.kwargs))
    walks = {"command": count_walk(trace.functions, package)}
    if trace.between_steps:
        walks["step"] = count_walk(trace.between_steps, package)
    return walks


def trace_post(src: Path, map_path: str, photo: str) -> dict[str, Counts]:
    """What the service crosses to answer one photo."""
    from fastapi.testclient import TestClient

    from sareloc.serve import make_app

    package = (src / "sareloc").resolve()
    trace = Trace(package)
    content = Path(photo).read_bytes()
    crossed: list[Function] = []

    def post() -> None:  # the service starts under the trace, too: a thread is traced from its start
        with TestClient(make_app(map_path, "fast", device="cpu"), base_url="http://127.0.0.1") as client:
            trace.functions.clear()
            client.post("/localize", content=content).raise_for_status()
            crossed.extend(trace.functions)

    trace.run(post)
    return {"command": count_walk(crossed, package)}


def trace_one_more_photo(src: Path, map_path: str, photo: str) -> dict[str, Counts]:
    """What an answer crosses once everything is open."""
    from sareloc import Localizer, PlaceMap, load_model

    package = (src / "sareloc").resolve()
    trace = Trace(package)
    localizer = Localizer(load_model("fast", device="cpu"), PlaceMap(map_path))
    localizer.localize(photo)
    trace.run(lambda: localizer.localize(photo))
    return {"command": count_walk(trace.functions, package)}


def count_reads(photos: Path, words: list[str]) -> Counts:
    """Run a command and count how often the files below a folder are opened and decoded: the most of one file."""
    from PIL import ImageFile

    from sareloc.cli import app

    opens: Counter[str] = Counter()
    decodes, load = 0, ImageFile.ImageFile.load
    below = f"{photos.resolve()}{os.sep}"

    def hook(event: str, details: tuple[Any, ...]) -> None:
        if event == "open" and str(details[0]).startswith(below) and str(details[0]).endswith(".jpg"):
            opens[str(details[0])] += 1

    def counted(image: ImageFile.ImageFile) -> Any:
        nonlocal decodes
        decodes += bool(image.tile)
        return load(image)

    command, bound, _ = app.parse_args(words)
    ImageFile.ImageFile.load = counted  # type: ignore[method-assign, assignment]
    sys.addaudithook(hook)
    command(*bound.args, **bound.kwargs)
    return {"photos": len(opens), "opens": max(opens.values()), "decodes": decodes / len(opens)}


def draw_video(path: Path) -> None:
    """18 frames, one a second, and a track of them beside the video."""
    import av
    import numpy as np

    seconds = range(18)
    with av.open(str(path), "w") as container:
        container.metadata["creation_time"] = "2024-05-01T10:00:00Z"
        stream = container.add_stream("mpeg4", rate=1)
        stream.width, stream.height, stream.pix_fmt = SIDE, SIDE, "yuv420p"
        for second in seconds:
            view = np.random.default_rng(second).integers(0, 256, (6, 6, 3), dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(np.kron(view, np.ones((SIDE // 6, SIDE // 6, 1), dtype=np.uint8)))
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    points = "".join(
        f'<trkpt lat="{52 + second * STEP_M / 111_320}" lon="21"><time>2024-05-01T10:00:{second:02d}Z</time></trkpt>'
        for second in seconds
    )
    head = '<gpx version="1.1" creator="house" xmlns="http://www.topografix.com/GPX/1/1">'
    path.with_suffix(".gpx").write_text(f"{head}<trk><trkseg>{points}</trkseg></trk></gpx>")


def draw_photos(folder: Path, places: int) -> list[tuple[Path, float, float, str, str]]:
    """Photos of places along a street, one of the database and one query each: file, lat, lon, role, split."""
    import numpy as np
    from PIL import Image

    rows = []
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for place in range(places):
            view = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
            for role, shift_m in (("database", 0.0), ("query", 3.0)):
                path = folder / "photos" / split / role / f"{place:03d}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                light = (0.8 if role == "query" else 1.0) * view.astype(np.float32)
                Image.fromarray(light.astype(np.uint8)).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path)
                lat = 52.0 + (place * STEP_M + shift_m) / 111_320
                rows.append((path, lat, 21.0 if split == "train" else 21.1, role, split))
    return rows


def write_table(path: Path, rows: list[tuple[Path, float, float, str, str]]) -> None:
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("file", "lat", "lon", "role", "split"))
        table.writerows((photo.relative_to(path.parent), *rest) for photo, *rest in rows)


def child(src: Path, *arguments: str) -> str:
    """What a fresh Python prints that imports the package from src."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join((str(src), str(ROOT))), CUDA_VISIBLE_DEVICES="")
    done = subprocess.run([sys.executable, *arguments], env=environment, text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


def count_walks(src: Path) -> tuple[dict[str, Counts], dict[str, Counts]]:
    """The walks: four commands, one more photo for an open localizer, the service, one training step. And the reads."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = draw_photos(folder, places=24)
        write_table(folder / "meta.csv", rows)
        database = folder / "photos" / "val" / "database"
        write_table(database / "geotags.csv", [row for row in rows if row[0].parent == database])
        query, map_path = folder / "photos" / "val" / "query" / "003.jpg", folder / "map.gpkg"
        here = ("--workers", "0")
        commands = {
            "map build": ["map", "build", database, "--out", map_path, "--model", "fast", *here],
            "localize": ["localize", map_path, query, "--json", *here],
            "video + track into a map": [
                *("map", "build", folder / "drive.mp4", "--track", folder / "drive.gpx"),
                *("--out", folder / "drive.gpkg", "--model", "fast", *here),
            ],
            ONE_MORE: [ONE_MORE, map_path, query],
            POST: [POST, map_path, query],
            "train": ["train", folder, "--out", folder / "run", "--model", "fast", "--epochs", "1"],
        }
        draw_video(folder / "drive.mp4")
        found = {}
        for walk, words in commands.items():
            report = folder / "walk.json"
            child(src, "-m", "benchmarks.house", "--src", str(src), "--trace", str(report), *map(str, words))
            walks = json.loads(report.read_text())
            found[walk] = walks["command"]
            if walk == "train":
                found["training step"] = walks["step"]
        reads = {}
        again = [folder / "again.gpkg" if word == map_path else word for word in commands["map build"]]
        for name, words in {"map build": again, "query": commands["localize"]}.items():
            report = folder / "reads.json"
            child(src, "-m", "benchmarks.house", "--reads", str(report), str(folder / "photos"), *map(str, words))
            reads[name] = json.loads(report.read_text())
    return found, reads


# ---------------------------------------------------------------- entry points


def loaded_modules(src: Path, statements: tuple[str, ...]) -> list[str]:
    """The modules of the package that a fresh process has loaded after the first statement that can be executed."""
    *others, last = statements
    for statement in others:
        module = statement.split()[-1]
        if (src / Path(*module.split("."))).with_suffix(".py").exists():
            last = statement
    listing = "import json, sys; print(json.dumps(sorted(m for m in sys.modules if m.split('.')[0] == 'sareloc')))"
    return list(json.loads(child(src, "-c", f"{last}\n{listing}").splitlines()[-1]))


# ---------------------------------------------------------------- report


def commit_of(src: Path) -> str | None:
    done = subprocess.run(["git", "-C", src, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or None


def measure(src: Path) -> Counts:
    walks, reads = count_walks(src)
    return {
        "commit": commit_of(src),
        "source": count_source(src),
        "walks": walks,
        "reads": reads,
        "loaded": {name: loaded_modules(src, statements) for name, statements in ENTRY_POINTS.items()},
    }


def table(found: Counts) -> str:
    source = found["source"]
    lines = [
        f"commit {found['commit']}",
        f"{'source files':44s}{source['files']:>8,}",
        f"{'lines':44s}{source['lines']:>8,}",
        f"{'lines of a file, median':44s}{source['lines_median']:>8,.0f}",
        f"{'lines of a file, largest':44s}{source['lines_largest']:>8,}  {source['largest_file']}",
        f"{'lines of a function, median':44s}{source['function_lines_median']:>8,.0f}",
        f"{'modules with one importer':44s}{len(source['one_importer']):>8,}",
        f"{f'  of them below {SMALL} lines':44s}{len(source['one_importer_small']):>8,}",
        f"{'file names that occur twice':44s}{len(source['file_names_twice']):>8,}",
        f"{'public names defined in several modules':44s}{len(source['names_twice']):>8,}",
        "",
        f"{'walk':28s}{'files':>8s}{'functions':>12s}{'changes of file':>18s}",
        *(
            f"{name:28s}{walk['files']:>8,}{walk['functions']:>12,}{walk['changes']:>18,}"
            for name, walk in found["walks"].items()
        ),
        "",
        f"{'a photo is':28s}{'opened':>8s}{'decoded':>12s}",
        *(f"{name:28s}{one['opens']:>8,}{one['decodes']:>12,.0f}" for name, one in found["reads"].items()),
        "",
        f"{'entry point':28s}{'modules':>8s}",
        *(f"{name:28s}{len(modules):>8,}" for name, modules in found["loaded"].items()),
        "",
        "file names that occur twice: " + ", ".join(source["file_names_twice"]),
        "public names defined in several modules: "
        + ", ".join(f"{name} x{len(homes)}" for name, homes in source["names_twice"].items()),
        "one importer, small: " + ", ".join(source["one_importer_small"]),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, default=ROOT / "src")
    parser.add_argument("--json", action="store_true", help="print one JSON object, with all names")
    parser.add_argument("--trace", nargs="+", help=argparse.SUPPRESS)  # a report to write, then a command to trace
    parser.add_argument("--reads", nargs="+", help=argparse.SUPPRESS)  # a report, the photos, a command
    arguments, words = parser.parse_known_args()
    src = arguments.src.resolve()
    if arguments.reads:
        report, photos, *command = arguments.reads
        Path(report).write_text(json.dumps(count_reads(Path(photos), [*command, *words])))
        return
    if arguments.trace:
        report, *command = arguments.trace
        if command[0] == ONE_MORE:
            walks = trace_one_more_photo(src, *command[1:])
        elif command[0] == POST:
            walks = trace_post(src, *command[1:])
        else:
            walks = trace_command(src, [*command, *words])
        Path(report).write_text(json.dumps(walks))
        return
    found = measure(src)
    print(json.dumps(found, indent=1) if arguments.json else table(found))


if __name__ == "__main__":
    main()
