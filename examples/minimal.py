"""Two trainer processes, two inference processes, numpy arrays: versions move, and every byte is checked.

python examples/minimal.py
"""

import multiprocessing as mp

import numpy as np

import weightcast as wc

TRAINERS, ENGINES, VERSIONS = 2, 2, 3
SHAPES = {"embedding": (4096, 256), "layer.0.weight": (1024, 1024), "layer.0.bias": (1024,)}


def weights(version: int) -> dict[str, np.ndarray]:
    """What every trainer holds at this version; stands in for training."""
    rng = np.random.default_rng(version)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}


def train(controller: str, rank: int) -> None:
    arrays = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    with wc.Trainer(controller, rank=rank, world_size=TRAINERS) as trainer:
        trainer.register(arrays)
        for version in range(1, VERSIONS + 1):
            for name, value in weights(version).items():
                arrays[name][...] = value
            stats = trainer.publish(version).wait(timeout=60)
            if rank == 0:
                print(f"version {version}: {stats.bytes / 1e6:.1f} MB in {stats.seconds * 1e3:.1f} ms")


def infer(controller: str, index: int, checked: mp.Queue) -> None:
    arrays = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    with wc.Inference(controller, engine=f"engine-{index}") as worker:
        worker.register(arrays)
        while worker.version.number < VERSIONS:
            version = worker.wait(timeout=60)
            expected = weights(version.number)
            assert all(np.array_equal(arrays[name], expected[name]) for name in SHAPES)
            checked.put((index, version.number))


def main() -> None:
    mp.set_start_method("spawn")
    checked: mp.Queue = mp.Queue()
    # min_engines: the first version waits until both engines are there.
    with wc.Controller("127.0.0.1:0", settings={"min_engines": ENGINES}) as controller:
        address = controller.address
        workers = [mp.Process(target=infer, args=(address, index, checked)) for index in range(ENGINES)]
        workers += [mp.Process(target=train, args=(address, rank)) for rank in range(TRAINERS)]
        for worker in workers:
            worker.daemon = True  # It ends with this process, whatever happens.
            worker.start()
        for worker in workers:
            worker.join(120)
        if any(worker.exitcode != 0 for worker in workers):
            raise SystemExit("a worker failed")
    count = 0
    while not checked.empty():
        checked.get()
        count += 1
    print(f"bit-exact: {count} versions checked by {ENGINES} engines")


if __name__ == "__main__":
    main()
