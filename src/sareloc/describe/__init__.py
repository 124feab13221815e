"""From photo files to descriptors: in constant memory, resumable; unreadable photos are listed and skipped."""

from sareloc.describe.describing import (
    Described,
    Descriptors,
    describe,
    describe_all,
    describe_boxes,
    encode_batches,
    receptive_field_px,
)
from sareloc.describe.occlusion import occlusion_map

__all__ = [
    "Described",
    "Descriptors",
    "describe",
    "describe_all",
    "describe_boxes",
    "encode_batches",
    "occlusion_map",
    "receptive_field_px",
]
