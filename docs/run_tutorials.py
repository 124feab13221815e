"""Run every command of the tutorials, in order, and write what they print into the pages.

    python docs/run_tutorials.py FOLDER [--check] [--pages index map dashcam]

Commands are the lines that start with `$ ` in blocks marked `console`; they run in FOLDER, a new one. The lines below
a command, up to the next command or the end of the block, are replaced by its output, progress bars left out. A
command that fails ends the run with its message. `sareloc serve` runs in the background until the next `sareloc serve`
or the end of its page. With --check the pages stay as they are. The repository's folder examples is linked into FOLDER.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

PAGES = ("index", "map", "serve", "train", "evaluate", "panoramas", "dashcam", "track", "sidecars")
BLOCK = re.compile(r"(?<=```console\n).*?(?=```)", re.DOTALL)
SERVICE = "http://127.0.0.1:8000/health"


class Shell:
    """Runs commands in one folder; `export NAME=...` sets a variable for the commands after it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.service: subprocess.Popen[str] | None = None
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "100",
        }

    def run(self, command: str) -> str:
        """What the command prints on both streams; raises SystemExit if it fails."""
        print(f"$ {command}", flush=True)
        if command.startswith("sareloc serve"):
            return self.serve(command)
        if command.startswith("export "):
            name = command.removeprefix("export ").partition("=")[0]
            self.environment[name] = subprocess.check_output(["bash", "-c", f"{command}; printf %s ${name}"], text=True)
            return ""
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if ran.returncode:
            raise SystemExit(f"{command}\n{ran.stdout}\nexit status {ran.returncode}")
        return without_progress(ran.stdout)

    def serve(self, command: str) -> str:
        """Start the service, wait until it answers, and return its first line."""
        self.stop()
        self.service = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.folder, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert self.service.stdout is not None
        line = self.service.stdout.readline()
        for _ in range(600):
            try:
                urlopen(SERVICE).close()
                break
            except (URLError, ConnectionError):
                if self.service.poll() is not None:
                    raise SystemExit(f"{command}\n{line}{self.service.stdout.read()}") from None
                time.sleep(0.1)
        return line

    def stop(self) -> None:
        """End the service, if one runs."""
        if self.service is not None:
            self.service.terminate()
            self.service.communicate()
            self.service = None


def without_progress(printed: str) -> str:
    """The printed lines without progress bars and empty lines."""
    lines = (line.split("\r")[-1].rstrip() for line in printed.split("\n"))
    return "".join(f"{line}\n" for line in lines if line and not re.search(r"\d+%\|", line))


def main() -> None:
    """Run all pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--pages", nargs="+", choices=PAGES, default=PAGES, help="those after map need index and map")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    examples = args.folder / "examples"
    if not examples.is_symlink():
        examples.symlink_to(Path(__file__).resolve().parents[1] / "examples")
    shell = Shell(args.folder)

    def filled(block: re.Match[str]) -> str:
        commands = [line[2:] for line in block[0].splitlines() if line.startswith("$ ")]
        return "".join(f"$ {command}\n{shell.run(command)}" for command in commands)

    for page in (Path(__file__).parent / "tutorials" / f"{name}.md" for name in args.pages):
        text = BLOCK.sub(filled, page.read_text())
        shell.stop()
        if not args.check:
            page.write_text(text)


if __name__ == "__main__":
    main()
