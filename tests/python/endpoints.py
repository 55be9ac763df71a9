"""Two endpoints of one process, for tests."""

import numpy as np

import weightcast as wc

SETTINGS = {"bind": "127.0.0.1", "lease": 2}
PATIENCE = 30


class Pair:
    """Two endpoints, connected: `a` has opened the connection."""

    def __init__(self) -> None:
        self.a = wc.Endpoint(role="a", settings=SETTINGS)
        self.b = wc.Endpoint(role="b", rank=1, settings=SETTINGS)
        self.to_b = self.a.connect(self.b.addresses, role="b", rank=1, timeout=PATIENCE)
        self.to_a = self.b.accept(PATIENCE)

    def shared(self, memory) -> tuple[wc.Region, wc.RemoteRegion]:
        """Memory of b, and how a sees it."""
        region = self.b.register(memory)
        return region, self.to_b.import_region(region.descriptor)

    def close(self) -> None:
        self.a.close()
        self.b.close()


def pattern(size: int, seed: int = 0) -> np.ndarray:
    """Random bytes, the same for the same seed."""
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)
