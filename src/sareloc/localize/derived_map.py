"""Maps searched by other descriptors than their files hold: made from those at one moment, kept in memory."""

from __future__ import annotations

from sareloc.engines import Engine
from sareloc.errors import MapError
from sareloc.place_map import PlaceMap


class DerivedMap(PlaceMap):
    """The photos of a map under descriptors that were made from its own; the file stays as it is.

    `engine`: the new descriptors under the map's ids. `made`: what was done with the old ones, as a word for messages.
    """

    def __init__(self, place_map: PlaceMap, engine: Engine, made: str) -> None:
        vars(self).update(vars(place_map))
        self._photos = place_map.in_memory.searched_by(engine)
        self._made = made

    def refresh(self) -> None:
        """Refused: the descriptors are those of one moment."""
        raise MapError(
            f"the {self._made} descriptors of map {self.path} are of one moment: refresh the map that they were made "
            "of, and make them again"
        )
