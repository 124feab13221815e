"""What torch.hub finds here: `torch.hub.load(REPOSITORY, "sareloc")` or "sareloc_fast", then `model.encode(images)`."""

import pathlib as _pathlib
import sys as _sys

dependencies = ["torch", "numpy", "scipy", "PIL", "safetensors"]

# The package lies in src/ and imports its parts when they are used: it must stay findable after torch.hub is done.
_source = str(_pathlib.Path(__file__).resolve().parent / "src")
if _source not in _sys.path:
    _sys.path.append(_source)


def sareloc(name_or_path="default", device="cpu"):  # type: ignore[no-untyped-def]
    """A model that says which photos show the same place: `encode` turns images into unit descriptors.

    name_or_path: the name of a model that comes with sareloc, or the path of a checkpoint. device: where it runs.
    """
    from sareloc.models import load_model as _load_model

    return _load_model(name_or_path, device)


def sareloc_fast(device="cpu"):  # type: ignore[no-untyped-def]
    """The small model, for machines without a GPU; see `sareloc`."""
    return sareloc("fast", device)
