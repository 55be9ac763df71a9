"""The reinforcement-learning loop with Ray: actors that train, actors that generate, weightcast between them.

python examples/ray_loop.py --config examples/rl_sort.json  # options: python -m weightcast.rl --help

Trainers have a process group among themselves; an inference actor has none. When its process dies, Ray starts
it again (max_restarts), and it gets the present weights and goes on. Needs: pip install 'weightcast[rl]' ray
Ray is started on this machine, unless RAY_ADDRESS names a cluster.
"""

import dataclasses
import os
import secrets
import socket
import sys

import ray

import weightcast as wc
from weightcast.rl.options import Options, parse


def free_address() -> str:
    """host:port of this node that nobody has."""
    host = ray.util.get_node_ip_address()
    with socket.create_server((host, 0)) as probe:
        return f"{host}:{probe.getsockname()[1]}"


@ray.remote(num_cpus=1)
class TrainerActor:
    def free_addresses(self, count: int) -> list[str]:
        return [free_address() for _ in range(count)]

    def run(self, options: Options, rank: int, master: str) -> None:
        """As torchrun would start this rank."""
        from weightcast.rl.start import run

        host, port = master.rsplit(":", 1)
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(options.num_training)}
        os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": port}
        run(options)


@ray.remote(num_cpus=1, max_restarts=3, max_task_retries=3)
class InferenceActor:
    def process(self) -> int:
        return os.getpid()

    def run(self, options: Options) -> int:
        """Until the trainers end the run. Returns the process that got so far."""
        from weightcast.rl.start import run

        print(f"{options.engine} is process {os.getpid()}", flush=True)
        run(options)
        return os.getpid()


def start_ray(processes: int) -> None:
    # One token for all processes of the run: weightcast listens to nobody else.
    token = os.environ.setdefault("WEIGHTCAST_TOKEN", secrets.token_hex(32))
    local = {"num_cpus": processes, "object_store_memory": 100_000_000, "include_dashboard": False}
    ray.init(
        runtime_env={"env_vars": {"WEIGHTCAST_TOKEN": token}},
        **({} if "RAY_ADDRESS" in os.environ else local),
    )


def train(options: Options, controller: str) -> list[str]:
    """Runs the loop. Returns the names of engines that had to be started again."""
    trainers = [TrainerActor.remote() for _ in range(options.num_training)]
    master, queue = ray.get(trainers[0].free_addresses.remote(2))
    options = dataclasses.replace(options, controller=controller, rollout_queue=queue)
    names = [f"engine-{index}" for index in range(options.num_inference)]
    engines = [InferenceActor.remote() for _ in names]
    processes = ray.get([engine.process.remote() for engine in engines])
    serving = [
        engine.run.remote(dataclasses.replace(options, role="inference", engine=name))
        for engine, name in zip(engines, names, strict=True)
    ]
    learning = dataclasses.replace(options, role="trainer")
    ray.get([trainer.run.remote(learning, rank, master) for rank, trainer in enumerate(trainers)])
    # Engines end with the trainers, but one that Ray is just starting would look for them in vain.
    ended, _ = ray.wait(serving, num_returns=len(serving), timeout=2 * options.lease)
    return [
        name
        for name, process, one in zip(names, processes, serving, strict=True)
        if one in ended and ray.get(one) != process
    ]


def main() -> None:
    options = parse(sys.argv[1:])
    options.output = options.output or "runs/ray"
    for name in ("output", "plots", "checkpoint_dir", "export_hf", "prompts"):
        if path := getattr(options, name):  # Actors work in folders of their own.
            setattr(options, name, os.path.abspath(path))
    start_ray(options.num_training + options.num_inference)
    listen = f"{ray.util.get_node_ip_address()}:0"
    with wc.Controller(listen, settings=options.controller_settings()) as controller:
        again = train(options, controller.address)
    ray.shutdown()
    print(f"done; started again: {', '.join(again) or 'nobody'}; report in {options.output}")


if __name__ == "__main__":
    main()
