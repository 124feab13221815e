"""Vector indexes: descriptors under ids, searched by Euclidean distance; exact, or sharded and approximate."""

from sareloc.index.exact import ExactIndex, Hits, Index, IndexInfo
from sareloc.index.sharded import ShardedIndex

__all__ = ["ExactIndex", "Hits", "Index", "IndexInfo", "ShardedIndex"]
