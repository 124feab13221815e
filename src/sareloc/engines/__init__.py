"""Where descriptors live and are searched: one small contract, exact and approximate engines behind it."""

from sareloc.engines.approximate import ApproximateEngine
from sareloc.engines.contract import Engine, EngineInfo, Hits
from sareloc.engines.exact import ExactEngine

__all__ = ["ApproximateEngine", "Engine", "EngineInfo", "ExactEngine", "Hits"]
