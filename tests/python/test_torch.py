"""Torch modules as they are registered: names, ties, refusals, and tensors that move between updates."""

import contextlib
import weakref
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import weightcast as wc  # noqa: E402
from conftest import FAST  # noqa: E402
from weightcast.shards import Registration  # noqa: E402
from weightcast.torch import shards  # noqa: E402


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))


NAMES = list(model().state_dict())


class Tied(nn.Module):
    def __init__(self, tie: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        if tie:
            self.head.weight = self.embed.weight


# --- What is registered -----------------------------------------------------------------------------


def test_shards_are_those_of_the_state_dict():
    module = model()
    module.register_buffer("scratch", torch.zeros(3), persistent=False)
    found = shards(module)
    assert list(found) == NAMES and "1.running_mean" in found
    assert all(
        found[name].array.data_ptr() == value.data_ptr() for name, value in module.state_dict().items()
    )


def test_names_are_those_of_the_bare_model():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    inner = model()
    inner[0] = torch.compile(checkpoint_wrapper(inner[0]))
    inner[2] = checkpoint_wrapper(torch.compile(inner[2]))
    assert list(shards(inner)) == NAMES
    assert list(shards(torch.compile(inner))) == NAMES
    # A wrapper below the root, and a module that is only called like one's inside.
    outer = nn.ModuleDict(
        {"policy": nn.DataParallel(inner), "value": nn.ModuleDict({"module": nn.Linear(2, 1)})}
    )
    assert list(shards(outer)) == [
        *(f"policy.{name}" for name in NAMES),
        "value.module.weight",
        "value.module.bias",
    ]


def test_extra_states_are_left_out():
    class Extra(nn.Linear):
        def get_extra_state(self):
            return {"step": 3}

        def set_extra_state(self, state):
            pass

    assert list(shards(nn.Sequential(Extra(2, 2)))) == ["0.weight", "0.bias"]


def test_what_is_tied_is_there_once():
    assert list(shards(Tied())) == ["embed.weight"]
    assert list(shards(Tied(tie=False))) == ["embed.weight", "head.weight"]
    same_memory = Tied(tie=False)
    same_memory.head.weight.data = same_memory.embed.weight.data
    assert list(shards(same_memory)) == ["embed.weight"]


# --- Refusals ---------------------------------------------------------------------------------------


def zero3_parameter(partitioned: bool) -> nn.Parameter:
    """As deepspeed.zero.Init leaves one (deepspeed/runtime/zero/partition_parameters.py)."""
    whole = torch.arange(12.0).reshape(3, 4)
    parameter = nn.Parameter(whole)
    parameter.ds_id, parameter.ds_shape, parameter.ds_numel = 7, whole.shape, whole.numel()
    parameter.ds_tensor = whole.flatten()[:6].clone()
    if partitioned:
        parameter.data = torch.empty(0)
    return parameter


def test_zero3_parameters_are_refused_while_partitioned():
    module = nn.Linear(4, 3, bias=False)
    module.weight = zero3_parameter(partitioned=False)
    assert shards(module)["weight"].array.numel() == 12
    module.weight = zero3_parameter(partitioned=True)
    with pytest.raises(wc.InvalidArgument, match="weight.*ZeRO-3.*GatheredParameters"):
        Registration(module, writable=False)


def test_offloaded_models_of_accelerate_are_refused():
    accelerate = pytest.importorskip("accelerate")
    module = accelerate.cpu_offload(model(), execution_device=torch.device("cpu"))
    with pytest.raises(wc.InvalidArgument, match="0 is offloaded by Accelerate.*remove_hook_from_module"):
        shards(module)
    accelerate.hooks.remove_hook_from_module(module, recurse=True)
    assert list(shards(module)) == NAMES


def test_tensors_without_bytes_are_refused():
    with pytest.raises(wc.InvalidArgument, match="0.weight is on the meta device"):
        shards(model().to("meta"))
    freed = model()
    freed[0].bias.untyped_storage().resize_(0)
    with pytest.raises(wc.InvalidArgument, match="0.bias.*freed"):
        shards(freed)


def test_tensors_that_wrap_others_are_refused():
    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            raise NotImplementedError

    with pytest.raises(wc.InvalidArgument, match="x is a Wrapped without memory"):
        Registration({"x": Wrapped(torch.zeros(3))}, writable=False)


def fsdp1_and_dtensors(folder):
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import DTensor, Partial, Replicate, init_device_mesh

    from torch_ranks import process_group

    with process_group(folder, 0, 1):
        on_cpu = {"use_orig_params": True, "device_id": torch.device("cpu")}
        wrapped = nn.Sequential(FullyShardedDataParallel(nn.Linear(3, 2), **on_cpu))
        with pytest.raises(wc.InvalidArgument, match="0 is an FSDP1 module.*fully_shard"):
            shards(wrapped)
        with pytest.raises(wc.InvalidArgument, match="FSDP1 flat parameter"):
            shards(wrapped[0].module)
        mesh = init_device_mesh("cpu", (1,))
        with pytest.raises(wc.InvalidArgument, match="partial sums"):
            Registration({"x": DTensor.from_local(torch.zeros(3), mesh, [Partial()])}, writable=False)
        whole = DTensor.from_local(torch.zeros(3), mesh, [Replicate()])
        with pytest.raises(wc.InvalidArgument, match="knows which part it is"):
            Registration({"x": wc.Shard(whole, shape=(6,), offset=(0,))}, writable=False)
        both = {"x": whole, "y": wc.Shard(torch.zeros(2))}
        assert len(Registration(both, writable=True)._places) == 2
        with mock.patch.object(type(mesh), "get_coordinate", return_value=None):  # Not a rank of the mesh.
            assert len(Registration(both, writable=True)._places) == 1
    assert not dist.is_initialized()


def test_flat_parameters_and_partial_sums_are_refused(spawn, tmp_path):
    spawn(fsdp1_and_dtensors, str(tmp_path)).value()


# --- Updates ----------------------------------------------------------------------------------------


def fill(module: nn.Module, version: int) -> None:
    generator = torch.Generator().manual_seed(version)
    with torch.no_grad():
        for value in module.state_dict().values():
            value.copy_(torch.randint(-99, 99, value.shape, generator=generator))


def assert_same(live: nn.Module, source: nn.Module) -> None:
    for name, value in source.state_dict().items():
        assert torch.equal(live.state_dict()[name], value.to(live.state_dict()[name].dtype)), name


class Loop:
    """A trainer and an engine in this process."""

    def __init__(self, controller: str, source, live, rules=None, **landing) -> None:
        self.trainer = wc.Trainer(controller, settings=FAST)
        self.engine = wc.Inference(controller, engine="e", settings=FAST)
        self.trainer.register(source, rules=rules)
        self.engine.register(live, **landing)
        self.version = 0

    def update(self) -> None:
        self.version += 1
        update = self.trainer.publish(self.version)
        assert self.engine.wait(self.version - 1, timeout=30) == update.version
        update.wait(30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.trainer.close()
        self.engine.close()


def by_data(module):
    module[0].weight.data = module[0].weight.data.clone()


def by_new_parameter(module):
    module[0].weight = nn.Parameter(module[0].weight.detach().clone())


def by_new_buffer(module):
    module[1].running_mean = module[1].running_mean.clone()


def by_dtype(module):
    module.to(torch.bfloat16)


def by_strides(module):
    module[0].weight.data = module[0].weight.data.t().contiguous().t()


def by_resizing(module):
    storage = module[0].weight.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)


@pytest.mark.parametrize(
    "move", [by_data, by_new_parameter, by_new_buffer, by_dtype, by_strides, by_resizing]
)
def test_a_trainer_finds_tensors_that_moved(controller, move):
    source, live = model(), model()
    with Loop(controller, source, live) as loop:
        for version in range(1, 5):
            if version % 2 == 0:
                move(source)
            fill(source, version)
            loop.update()
            assert_same(live, source)


def test_a_trainer_finds_what_a_dict_has_now(controller):
    source = {"a": torch.zeros(4), "b": np.zeros(3, np.float32)}
    live = {"a": torch.zeros(4), "b": torch.zeros(3)}
    with Loop(controller, source, live) as loop:
        for version in (1, 2, 3):
            source["a"].data = torch.full((4,), float(version))
            source["b"] = np.full(3, version, np.float32)
            loop.update()
            assert (live["a"] == version).all() and (live["b"] == version).all()


def test_moving_while_bytes_are_wanted_is_an_error_and_harms_nothing(controller):
    source, live = model(), model()
    fill(source, 1)
    first = {name: value.clone() for name, value in source.state_dict().items()}
    with Loop(controller, source, live) as loop:
        update = loop.trainer.publish(1)
        by_data(source)
        fill(source, 2)
        with pytest.raises(wc.Unavailable, match="0.weight moved.*wait_sources"):
            loop.trainer.publish(2)
        assert loop.engine.wait(0, timeout=30).number == 1
        # What has moved left its bytes of that version behind.
        assert torch.equal(live[0].weight, first["0.weight"])
        update.wait(30)
        loop.version = 1
        loop.update()
        assert_same(live, source)


def test_a_held_version_stays_in_the_memory_of_before(controller):
    source, live, late = model(), model(), model()
    fill(source, 1)
    weight = source[0].weight.detach().clone()
    with Loop(controller, source, live, shares=False) as loop:
        update = loop.trainer.publish(1, hold=True)
        loop.engine.wait(0, timeout=30)
        update.wait(30)
        source[0].weight.data = torch.zeros_like(weight)
        with wc.Inference(controller, engine="late", settings=FAST) as engine:
            engine.register(late)
            assert engine.wait(0, timeout=30).number == 1
        assert torch.equal(late[0].weight, weight)


def two_trainers(controller):
    return [wc.Trainer(controller, rank=rank, world_size=2, settings=FAST) for rank in range(2)]


def test_one_of_two_trainers_moves_but_keeps_its_layout(controller):
    sources, live = [model(), model()], model()
    trainers = two_trainers(controller)
    with trainers[0], trainers[1], wc.Inference(controller, engine="e", settings=FAST) as engine:
        engine.register(live)

        def update(version):
            for source in sources:
                fill(source, version)
            updates = [trainer.publish(version) for trainer in trainers]
            while engine.version.number < version:
                with contextlib.suppress(wc.Cancelled):  # "trainer 1 has left" is said once.
                    engine.wait(version - 1, timeout=30)
            for update in updates:
                update.wait(30)
            assert_same(live, sources[0])

        for trainer, source in zip(trainers, sources, strict=True):
            trainer.register(source)
        update(1)
        by_data(sources[1])
        update(2)
        for trainer, source in zip(trainers, sources, strict=True):
            by_dtype(source)
            with pytest.raises(wc.InvalidArgument, match="0.weight.*other dtypes"):
                trainer.publish(3)
        for trainer in trainers:
            trainer.close()
        trainers = two_trainers(controller)
        for trainer, source in zip(trainers, sources, strict=True):
            trainer.register(source)
        update(3)
        for trainer in trainers:
            trainer.close()


def test_an_engine_refuses_tensors_that_moved(controller):
    source, live = model(), model()
    with Loop(controller, source, live) as loop:
        loop.update()
        live[0].weight.data = live[0].weight.data.clone()
        for call in (lambda: loop.engine.wait(timeout=1), loop.engine.begin):
            with pytest.raises(wc.InvalidArgument, match="0.weight moved.*register again"):
                call()
        loop.engine.register(live)
        fill(source, 2)
        loop.update()
        assert_same(live, source)
    with pytest.raises(wc.Cancelled, match="closed"):
        loop.engine.wait(timeout=1)


def test_a_sleeping_engine_lets_its_memory_go(controller):
    source, array = {"w": torch.ones(64, 64)}, np.zeros((64, 64), np.float32)
    alive = weakref.ref(array)
    live = {"w": torch.from_numpy(array)}
    del array
    elsewhere = torch.zeros(64, 64)  # While the other exists, so that it cannot have its address.
    with Loop(controller, source, live) as loop:
        loop.update()
        loop.engine.suspend(timeout=30)
        live["w"].data = torch.empty(0)
        assert alive() is None
        with pytest.raises(wc.InvalidArgument, match="suspended"):
            loop.engine.wait(timeout=1)
        live["w"].data = elsewhere
        with pytest.raises(wc.InvalidArgument, match="w moved"):
            loop.engine.resume(intact=True)
        loop.engine.register(live)
        loop.update()
        assert (live["w"] == 1).all()


def test_tied_on_both_sides_travels_once(controller):
    source, live = Tied(), Tied()
    with Loop(controller, source, live) as loop:
        fill(source, 1)
        update = loop.trainer.publish(1)
        loop.engine.wait(0, timeout=30)
        assert update.wait(30).bytes == source.embed.weight.nbytes
        assert_same(live, source)


def test_tied_at_the_trainer_alone_goes_by_a_rule(controller):
    source, live = Tied(), Tied(tie=False)
    rules = [{"tie": "embed.weight", "to": ["embed.weight", "head.weight"]}]
    with Loop(controller, source, live, rules) as loop:
        fill(source, 1)
        loop.update()
        assert_same(live, source)


def test_tied_at_the_engine_alone_is_an_error(controller):
    source = Tied(tie=False)
    with Loop(controller, source, Tied()) as loop, pytest.raises(wc.Error, match="head.weight"):
        loop.trainer.publish(1).wait(30)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("landing", ["in_place", "shadow"])
def test_floats_are_cast_to_what_the_engine_registers(controller, kind, landing):
    source, live = model(), model().to(kind)
    torch.nn.init.normal_(source[0].weight)
    with Loop(controller, source, live, landing=landing) as loop:
        loop.update()
        assert_same(live, source)


def test_non_contiguous_parameters_are_sent_but_not_filled(controller):
    source, live = model(), model()
    by_strides(source)
    with Loop(controller, source, live) as loop:
        fill(source, 1)
        loop.update()
        assert_same(live, source)
        by_strides(live)
        with pytest.raises(wc.InvalidArgument, match="0.weight is not contiguous"):
            loop.engine.register(live)


def test_a_rank_may_hold_nothing_of_any_tensor(controller):
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    live = {"w": np.zeros((3, 4), np.float32)}
    empty = {"w": wc.Shard(torch.zeros(0, 4), shape=(3, 4), offset=(3, 0))}
    with (
        wc.Trainer(controller, rank=1, world_size=2, settings=FAST) as other,
        wc.Trainer(controller, rank=0, world_size=2, settings=FAST) as trainer,
        wc.Inference(controller, engine="e", settings=FAST) as engine,
    ):
        trainer.register({"w": wc.Shard(rows, shape=(3, 4), offset=(0, 0))})
        other.register(empty)
        engine.register(live)
        updates = [one.publish(1) for one in (trainer, other)]
        assert engine.wait(0, timeout=30).number == 1
        for update in updates:
            update.wait(30)
    np.testing.assert_array_equal(live["w"], rows)
