"""weightcast moves new weights from trainers straight into inference engines.

trainer = wc.Trainer("head:29750", rank=rank, world_size=n)
trainer.register(model)
trainer.publish(step).wait()

worker = wc.Inference("head:29750", engine="rollout-0")
worker.register(model)
version = worker.wait()
"""

from ._weightcast import (
    EngineState,
    EngineStats,
    RankStats,
    RouteStats,
    UpdateStats,
    Version,
    library_version,
    set_log_level,
)
from .engine_control import EngineControl
from .errors import (
    Cancelled,
    Corrupt,
    Error,
    Exhausted,
    Fenced,
    InvalidArgument,
    OutOfBounds,
    PeerDead,
    Permission,
    ProtocolError,
    TimedOut,
    Unavailable,
    UpdateAborted,
)
from .shards import Shard
from .workers import Controller, Inference, Trainer, Update, allocate

__version__ = library_version()

__all__ = [
    "Cancelled",
    "Controller",
    "Corrupt",
    "EngineControl",
    "EngineState",
    "EngineStats",
    "Error",
    "Exhausted",
    "Fenced",
    "Inference",
    "InvalidArgument",
    "OutOfBounds",
    "PeerDead",
    "Permission",
    "ProtocolError",
    "RankStats",
    "RouteStats",
    "Shard",
    "TimedOut",
    "Trainer",
    "Unavailable",
    "Update",
    "UpdateAborted",
    "UpdateStats",
    "Version",
    "allocate",
    "set_log_level",
]
