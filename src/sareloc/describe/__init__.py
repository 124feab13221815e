"""From photo files to descriptors: streamed, in constant memory, resumable; bad photos are listed and never stop it."""

from sareloc.describe.describing import (
    Described,
    Descriptors,
    describe,
    describe_all,
    describe_boxes,
    receptive_field_px,
)

__all__ = ["Described", "Descriptors", "describe", "describe_all", "describe_boxes", "receptive_field_px"]
