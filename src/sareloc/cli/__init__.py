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
