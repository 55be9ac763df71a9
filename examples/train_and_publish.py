"""Plain PyTorch training that publishes its weights every N steps, and an inference process that follows.

python examples/train_and_publish.py --steps 60 --publish_every 20
"""

import argparse
import multiprocessing as mp

import torch

import weightcast as wc


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """A function to learn: the sum of squares of the first four inputs."""
    inputs = torch.randn(256, 16, generator=generator)
    return inputs, inputs[:, :4].square().sum(dim=1, keepdim=True)


def train(controller: str, steps: int, publish_every: int) -> None:
    torch.manual_seed(0)
    model, generator = make_model(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with wc.Trainer(controller) as trainer:  # under torchrun: wc.Trainer.from_env(controller)
        trainer.register(model)
        update = None
        for step in range(1, steps + 1):
            inputs, targets = batch(generator)
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            if update is not None:
                update.wait_sources(timeout=60)  # the optimizer is about to change what is being sent
            optimizer.step()
            if step % publish_every == 0:
                update = trainer.publish(step)
                print(f"step {step}: loss {loss.item():.4f}, published", flush=True)
        update.wait(timeout=60)


def serve(controller: str, last_version: int) -> None:
    model, generator = make_model(), torch.Generator().manual_seed(2)
    inputs, targets = batch(generator)
    with wc.Inference(controller, engine="rollout-0") as worker, torch.no_grad():
        worker.register(model)
        while worker.version.number < last_version:
            version = worker.wait(timeout=120)
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            print(f"serving version {version}: loss on held-out data {loss.item():.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--publish_every", type=int, default=20)
    options = parser.parse_args()
    if options.steps < options.publish_every or options.publish_every < 1:
        parser.error("--steps must be at least --publish_every, and that at least 1")
    mp.set_start_method("spawn")
    last = options.steps - options.steps % options.publish_every
    with wc.Controller("127.0.0.1:0") as controller:
        server = mp.Process(target=serve, args=(controller.address, last))
        trainer = mp.Process(target=train, args=(controller.address, options.steps, options.publish_every))
        for process in (server, trainer):
            process.daemon = True  # It ends with this one, whatever happens.
            process.start()
        for process in (server, trainer):
            process.join(300)
        if server.exitcode != 0 or trainer.exitcode != 0:
            raise SystemExit("a process failed")
    print("done")


if __name__ == "__main__":
    main()
