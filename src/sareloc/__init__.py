"""sareloc says where a photo was taken by finding the same place in a map of geotagged photos.

Importing this package has no effect and imports neither torch nor any extra: each public name is fetched from its
module when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sareloc.errors import SarelocError as SarelocError

__version__ = "0.1.0"

_HOME = {
    "SarelocError": "sareloc.errors",
}
__all__ = ["__version__", *sorted(_HOME)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """Fetch a public name from its module (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'sareloc' has no attribute {name!r}: it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
