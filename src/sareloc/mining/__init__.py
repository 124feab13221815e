"""Mining: which photos make a tuple. Geography says who may be positive or negative, descriptors say who is hard.

A tuple is one query, its positive (the nearest in descriptor space among the photos taken at the same place) and its
hardest negatives (the nearest in descriptor space among a random pool of photos taken elsewhere). Everything here is
a pure function of arrays; randomness comes in by argument.
"""

from sareloc.mining.neighbourhoods import Neighbourhoods, check_minable, find_neighbourhoods, join_neighbourhoods
from sareloc.mining.pools import no_memory
from sareloc.mining.tuples import Tuples, mine, similarity

__all__ = [
    "Neighbourhoods",
    "Tuples",
    "check_minable",
    "find_neighbourhoods",
    "join_neighbourhoods",
    "mine",
    "no_memory",
    "similarity",
]
