"""The command line: a table of commands, each loaded when it is called.

A command parses, calls one function of the library and prints. The table holds module paths rather than functions so
that `sareloc --help` imports neither torch nor anything else that takes time.
"""

from __future__ import annotations

import sys

from cyclopts import App

from sareloc import __version__
from sareloc.errors import SarelocError

app = App(name="sareloc", help="Say where a photo was taken: learn, map, localize.", version=__version__)

data = App(name="data", help="Datasets: check one, or draw a city.")
data.command("sareloc.cli.data:check", name="check", help="Counts, extent, positives, missing and unreadable files.")
data.command("sareloc.cli.draw:draw", name="draw", help="Draw a city and write it as a dataset.")
app.command(data)
app.command("sareloc.cli.train:train_command", name="train", help="Train a model on a dataset.")
app.command("sareloc.cli.evaluate:evaluate_command", name="evaluate", help="How well a model finds a dataset's places.")


def main() -> None:
    """Run the command line; an error of ours is one line on standard error and exit status 1."""
    try:
        app()
    except SarelocError as error:
        print(f"sareloc: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("sareloc: stopped", file=sys.stderr)
        sys.exit(130)
