"""Where descriptors live and are searched: one small contract, exact and approximate engines behind it."""

from sareloc.index.exact import ExactEngine
from sareloc.index.protocol import Engine, EngineInfo, Hits
from sareloc.index.sharded import ApproximateEngine

__all__ = ["ApproximateEngine", "Engine", "EngineInfo", "ExactEngine", "Hits"]
