"""From images to descriptors and local features: `Encoder`; `describe` collects the descriptors of many photos."""

from sareloc.encode.descriptors import Descriptors, describe, describe_boxes, receptive_field_px
from sareloc.encode.encoder import Encoded, Encoder
from sareloc.encode.occlusion import occlusion_map

__all__ = ["Descriptors", "Encoded", "Encoder", "describe", "describe_boxes", "occlusion_map", "receptive_field_px"]
