"""From photo files to descriptors: streamed, in constant memory, resumable; bad photos are listed and never stop it."""

from sareloc.descriptors.boxes import describe_boxes, receptive_field_px
from sareloc.descriptors.describing import Described, Descriptors, describe, describe_all

__all__ = ["Described", "Descriptors", "describe", "describe_all", "describe_boxes", "receptive_field_px"]
