"""Wrapped torch modules as trainers, in processes of their own: bytes, collectives and memory."""

import contextlib

import pytest

torch = pytest.importorskip("torch")

import weightcast as wc  # noqa: E402
from conftest import FAST  # noqa: E402
from torch_ranks import WRAPPINGS, Model, bytes_of, full_state, no_gather, process_group  # noqa: E402
from weightcast.torch import shards  # noqa: E402

VERSIONS = (1, 2)


def seeded() -> torch.nn.Module:
    torch.manual_seed(0)
    return Model()


def values(children):
    """Of all; where one has failed, the others' errors follow from it."""
    outcomes = [child.outcome(120) for child in children]
    assert all(kind == "ok" for kind, _ in outcomes), outcomes
    return [value for _, value in outcomes]


def addresses(model) -> set[int]:
    return {shard.array.data_ptr() for shard in shards(model).values() if shard.array.numel() > 0}


def train(controller, rank, world_size, folder, kind):
    """What the engine must have got, from rank 0: {wrapping: {version: {name: bytes}}}."""
    torch.set_num_threads(1)
    told = {}
    with process_group(folder, rank, world_size):
        for wrapping, wrap in WRAPPINGS[world_size].items():
            model = wrap(seeded())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            told[wrapping] = {}
            who = {"rank": rank, "world_size": world_size, "model": wrapping}
            with wc.Trainer(controller, **who, settings=FAST) as trainer:
                with no_gather():
                    trainer.register(model)
                for version in VERSIONS:
                    model(torch.arange(13)).square().mean().backward()
                    optimizer.step()
                    if version == VERSIONS[-1]:
                        before = addresses(model)
                        model._apply(torch.clone)  # As module.to() does.
                        assert before.isdisjoint(addresses(model))
                    with no_gather():
                        update = trainer.publish(version)
                    told[wrapping][version] = bytes_of(full_state(model), kind)
                    update.wait(60)
    return told if rank == 0 else None


def serve(controller, world_size, kind):
    torch.set_num_threads(1)
    got = {}
    for wrapping in WRAPPINGS[world_size]:
        model = Model().to(kind)
        got[wrapping] = {}
        with wc.Inference(controller, engine="e", model=wrapping, settings=FAST) as worker:
            worker.register(model)
            for version in VERSIONS:
                assert worker.wait(version - 1, timeout=60).number == version
                assert model.head.weight is model.embed.weight
                state = {name: value for name, value in model.state_dict().items() if name != "head.weight"}
                got[wrapping][version] = bytes_of(state, kind)
    return got


@pytest.mark.parametrize(("world_size", "kind"), [(2, torch.bfloat16), (4, torch.float32)])
def test_each_wrapping_arrives_bit_exact(spawn, controller, tmp_path, world_size, kind):
    engine = spawn(serve, controller, world_size, kind)
    trainers = [spawn(train, controller, rank, world_size, str(tmp_path), kind) for rank in range(world_size)]
    (told, *_), got = values(trainers), engine.value()
    for wrapping, versions in told.items():
        assert versions[1]["up.weight"] != versions[2]["up.weight"], wrapping
        assert versions[1].keys() >= {"steps", "gain", "embed.weight"}
        assert got[wrapping] == versions, wrapping


# --- Memory -----------------------------------------------------------------------------------------

ROWS, WIDTH, LAYERS = 4096, 4096, 8  # 512 MiB of F32; two ranks hold 256 MiB each.
STAGING = 64 << 20


def big(kind) -> torch.nn.Module:
    with torch.device("meta"):
        layers = [torch.nn.Linear(WIDTH, ROWS, bias=False, dtype=kind) for _ in range(LAYERS)]
    return torch.nn.Sequential(*layers)


def sharded() -> torch.nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = big(torch.float32)
    for layer in model:
        fully_shard(layer)
    fully_shard(model).to_empty(device="cpu")
    for number, parameter in enumerate(model.parameters()):
        parameter._local_tensor.fill_(number + torch.distributed.get_rank() / 2)
    return model


def peak_of(folder, rank, controller):
    """The most bytes that this rank had resident in its steps. controller None: without a trainer."""
    torch.set_num_threads(1)
    with process_group(folder, rank, 2), contextlib.ExitStack() as stack:
        model = sharded()
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # VmHWM counts from here.
        if controller is not None:
            settings = {**FAST, "staging": STAGING}
            trainer = stack.enter_context(wc.Trainer(controller, rank=rank, world_size=2, settings=settings))
            trainer.register(model)
        for version in VERSIONS:
            for parameter in model.parameters():
                parameter._local_tensor.add_(1)
            if controller is not None:
                trainer.publish(version).wait(60)
        with open("/proc/self/status") as file:
            peak = next(line for line in file if line.startswith("VmHWM"))
        return int(peak.split()[1]) << 10


def land(controller, kind):
    model = big(kind).to_empty(device="cpu")
    with wc.Inference(controller, engine="e", settings=FAST) as worker:
        worker.register(model)
        for version in VERSIONS:
            worker.wait(version - 1, timeout=60)
            for number, parameter in enumerate(model.parameters()):
                for rank, half in enumerate(parameter.chunk(2)):
                    assert (half == number + rank / 2 + version).all()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_publishing_takes_no_more_memory_than_staging(spawn, controller, tmp_path, kind):
    peaks = []
    for there in (None, controller):
        folder = tmp_path / str(there)
        folder.mkdir()
        engine = spawn(land, controller, kind) if there else None
        peaks.append(values([spawn(peak_of, str(folder), rank, there) for rank in range(2)]))
        if engine is not None:
            engine.value()
    more = [after - before for before, after in zip(*peaks, strict=True)]
    assert max(more) <= STAGING, f"{more} bytes more than without"
