"""From images to descriptors and local features: `Encoder`; `describe` collects the descriptors of many photos."""

from typing import TYPE_CHECKING

from sareloc import lazy_names
from sareloc.encode.encoder import Encoded, Encoder

if TYPE_CHECKING:
    from sareloc.encode.descriptors import Descriptors, describe, describe_boxes, receptive_field_px
    from sareloc.encode.occlusion import occlusion_map

__all__ = ["Descriptors", "Encoded", "Encoder", "describe", "describe_boxes", "occlusion_map", "receptive_field_px"]

__getattr__ = lazy_names(
    __name__,
    {
        "descriptors": "Descriptors describe describe_boxes receptive_field_px",
        "occlusion": "occlusion_map",
    },
)
