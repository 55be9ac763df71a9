"""weightcast moves new weights from trainers straight into inference engines.

trainer = wc.Trainer("head:29750", rank=rank, world_size=n)
trainer.register(model)
trainer.publish(step).wait()

worker = wc.Inference("head:29750", engine="rollout-0")
worker.register(model)
version = worker.wait()

The data plane alone, for anything else:

with wc.Endpoint() as endpoint:
    connection = endpoint.connect("10.0.0.1:4711")
    remote = connection.import_region(connection.take_notice())
    connection.write(endpoint.register(array), remote).wait()
"""

from ._weightcast import (
    EngineState,
    EngineStats,
    Identity,
    RankStats,
    Region,
    RegionSlice,
    RemoteRegion,
    RemoteSlice,
    RouteStats,
    UpdateStats,
    Version,
    job_token,
    library_version,
    newer,
    set_log_level,
)
from .controller import Controller
from .digest import ShardDigest, combine_digests
from .endpoint import Connection, Endpoint, Transfer
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
from .memory import allocate
from .shards import Mesh, Shard, layout_bytes
from .workers import Inference, ReceivedGroup, Trainer, Update

__version__ = library_version()

__all__ = [
    "Cancelled",
    "Connection",
    "Controller",
    "Corrupt",
    "Endpoint",
    "EngineControl",
    "EngineState",
    "EngineStats",
    "Error",
    "Exhausted",
    "Fenced",
    "Identity",
    "Inference",
    "InvalidArgument",
    "Mesh",
    "OutOfBounds",
    "PeerDead",
    "Permission",
    "ProtocolError",
    "RankStats",
    "ReceivedGroup",
    "Region",
    "RegionSlice",
    "RemoteRegion",
    "RemoteSlice",
    "RouteStats",
    "Shard",
    "ShardDigest",
    "TimedOut",
    "Trainer",
    "Transfer",
    "Unavailable",
    "Update",
    "UpdateAborted",
    "UpdateStats",
    "Version",
    "allocate",
    "combine_digests",
    "job_token",
    "layout_bytes",
    "newer",
    "set_log_level",
]
