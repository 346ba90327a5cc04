"""One training interface over one process, DDP, DeepSpeed ZeRO-1/2/3 and FSDP2."""

from editfoundry.training.sharding.build import build_engine, engine_kind, make_accelerator
from editfoundry.training.sharding.engine import Average, Engine, Kind

__all__ = ["Average", "Engine", "Kind", "build_engine", "engine_kind", "make_accelerator"]
