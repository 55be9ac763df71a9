"""Slowness that comes with how workers are started: small chunks, many tiny tensors.

Workers of a job are started again, with the cause and without it. The controller stays, and remembers.
"""

import random

from explain_tally import ANY_TRAINER, USUAL, Tally
from scene import Scene, talking

TCP = {"WEIGHTCAST_TRANSPORT": "tcp"}
BIG = (4, 4096, 1024)  # Tensors, rows, columns: 64 MiB of float32.
USUAL_TENSORS = (4, 1024, 1024)  # 16 MiB, as the tiny ones.
ELEMENTS = 4 * 1024 * 1024
SMALLEST = 4096  # Bytes of a chunk.


class RestartableScene(Scene):
    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__(shape=shape, settings=TCP)
        self._shape = shape

    def restart(
        self,
        role: str = "",
        *,
        shape: tuple[int, int, int] | None = None,
        settings: dict[str, dict[str, str]] | None = None,
    ) -> None:
        """All workers of this role, or all; then an update that makes their plan.

        settings: of a worker, by its name.
        """
        names = [name for name in self.workers if name.startswith(role)]
        for name in names:  # They leave, each by itself.
            self.workers[name].process.stdin.close()
        for name in names:
            self.workers[name].wait(30)
            self.workers[name].close()
        trainers = len(self.of("trainer"))
        for name in names:
            kind, which = name.split()
            where = [which, trainers] if kind == "trainer" else [which, "F32"]
            own = (settings or {}).get(name, {})
            arguments = [kind, self.address, *where, *(shape or self._shape)]
            self.workers[name] = talking(*arguments, prefix=[], env={**self._env, **own})
        for name in names:
            self.workers[name].hear("registered")
        self.update()


def run_with_small_chunks(chance: random.Random, runs: int, tally: Tally) -> None:
    """One trainer sends in the smallest chunks that there are, and the other in those of 1 MiB.

    With 16 KiB an update takes two to three times as long, which is not always called slow.
    """
    scene = RestartableScene(BIG)
    try:
        _usual(scene, tally)
        for _ in range(runs):
            victim = chance.choice(["trainer 0", "trainer 1"])
            scene.restart("trainer", settings={victim: {"WEIGHTCAST_CHUNK": f"{SMALLEST}"}})
            tally.planted([("small_chunks", victim, SMALLEST)], scene.update())
            scene.restart("trainer")
            _usual(scene, tally)
    finally:
        scene.close()


def run_with_tiny_tensors(chance: random.Random, runs: int, tally: Tally) -> None:
    """The bytes are the same, in tensors of 256 bytes to 1 KiB. All trainers have them: any may be named."""
    scene = RestartableScene(USUAL_TENSORS)
    try:
        _usual(scene, tally)
        for _ in range(runs):
            columns = chance.choice([64, 128, 256])
            scene.restart(shape=(ELEMENTS // columns, 1, columns))
            tally.planted([("tiny_tensors", ANY_TRAINER, columns)], scene.update())
            scene.restart()
            _usual(scene, tally)
    finally:
        scene.close()


def _usual(scene: Scene, tally: Tally) -> None:
    """Before the first that is planted, and between two: plans are made for each, and take long."""
    for _ in range(USUAL):
        tally.left_alone(scene.update())
