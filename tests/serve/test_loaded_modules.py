"""The service loads what answering needs: nothing of training, figures or other optional packages, and what only few
requests or other commands need when it is used."""

from __future__ import annotations

import subprocess
import sys

FOREIGN = (
    "sareloc.adapt",
    "sareloc.city",
    "sareloc.cluster",
    "sareloc.datasets",
    "sareloc.evaluation",
    "sareloc.export",
    "sareloc.figures",
    "sareloc.losses",
    "sareloc.milvus",
    "sareloc.training",
    "matplotlib",
)
LATER = (
    # photos that are added
    "sareloc.maps.config",
    "sareloc.maps.examine",
    "sareloc.maps.writer",
    "sareloc.photos.finding",
    "sareloc.photos.sidecars",
    "sareloc.photos.tables",
    # positions that are written into photos
    "sareloc.localize.formats",
    "sareloc.photos.containers",
    "sareloc.photos.write_geotags",
    # videos, tracks, heat maps, calibrations
    "sareloc.encode.occlusion",
    "sareloc.localize.calibration",
    "sareloc.localize.clock",
    "sareloc.localize.photo_calibration",
    "sareloc.photos.tracks",
    "sareloc.photos.videos",
    # models of other architectures, published ones, worker processes
    "sareloc.loading.worker",
    "sareloc.models.dinov2",
    "sareloc.models.heads",
    "sareloc.models.published",
    "sareloc.models.whitening",
)
MOST = 70
"""Modules of the package that a service loads before its first request; less is better."""
LOADED = """
import sys
import sareloc.serve.app
print(*sys.modules)
"""


def test_the_service_loads_what_answering_needs() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "sareloc.serve.service" in loaded
    assert [name for name in loaded if name.startswith((*FOREIGN, *LATER))] == []
    own = [name for name in loaded if name.split(".")[0] == "sareloc"]
    assert len(own) <= MOST, own
