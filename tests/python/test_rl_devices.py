"""Where a process of the loop holds its weights: the choice, and that a module gets there."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from weightcast import InvalidArgument  # noqa: E402
from weightcast.rl import devices, models, start  # noqa: E402
from weightcast.rl.options import Options, parse  # noqa: E402
from weightcast.rl.roles import Roles, roles_of  # noqa: E402

PLACES = ["--controller", "a:1", "--rollout_queue", "a:2"]


@pytest.fixture
def gpus(monkeypatch):
    """As if torch saw so many."""

    def see(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return see


@pytest.fixture
def devices_of(monkeypatch):
    """Of every rank of a torchrun on `hosts` equal hosts."""

    def choose(options: Options, ranks: int, hosts: int = 1) -> list[str]:
        roles = roles_of(options, ranks)
        here = ranks // hosts
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
        found = []
        for rank in range(ranks):
            monkeypatch.setenv("LOCAL_RANK", str(rank % here))
            found.append(str(devices.device_of(options, roles, rank)))
        return found

    return choose


def test_without_a_word_nothing_goes_to_a_gpu(gpus, devices_of):
    gpus(8)
    assert not parse([]).on_gpu and devices.backend_of(parse([])) == "gloo"
    assert devices_of(Options(), 4) == ["cpu"] * 4
    assert devices.device_of(Options()) == torch.device("cpu")


def test_trainers_have_the_first_gpus_and_engines_the_next(gpus, devices_of):
    gpus(4)
    on_gpu = Options(device="cuda")
    assert devices_of(on_gpu, 4) == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    # The controller between them needs none.
    assert devices_of(on_gpu, 5) == ["cuda:0", "cuda:1", "cpu", "cuda:2", "cuda:3"]
    assert devices_of(Options(device="cuda", num_training=2, num_inference=6), 8, hosts=2) == [
        *("cuda:0", "cuda:1", "cuda:2", "cuda:3"),
        *("cuda:0", "cuda:1", "cuda:2", "cuda:3"),
    ]


def test_gpus_are_taken_as_they_are_named(gpus, devices_of):
    gpus(4)
    named = parse(["--trainer_devices", "3,1", "--engine_devices", "0,0"])
    assert named.on_gpu
    assert devices_of(named, 4) == ["cuda:3", "cuda:1", "cuda:0", "cuda:0"]


def test_engines_of_a_host_without_torchrun_have_a_gpu_each(gpus, monkeypatch):
    def choose(*arguments: str, **environment: str) -> str:
        for name in ("LOCAL_RANK", "SLURM_LOCALID"):
            monkeypatch.setenv(name, environment.get(name, ""))
        return str(devices.device_of(parse(["--role", "inference", *PLACES, *arguments])))

    gpus(4)
    assert choose("--device", "cuda") == "cuda:0"
    assert choose("--device", "cuda", SLURM_LOCALID="3") == "cuda:3"
    assert choose("--device", "cuda", SLURM_LOCALID="3", LOCAL_RANK="1") == "cuda:1"
    assert choose("--engine_devices", "2,3", SLURM_LOCALID="1") == "cuda:3"
    assert choose("--engine_devices", "2", SLURM_LOCALID="1") == "cuda:2"
    with pytest.raises(InvalidArgument, match="no GPU 4 for engine 4 of this host: torch sees 4"):
        choose("--device", "cuda", LOCAL_RANK="4")
    with pytest.raises(InvalidArgument, match="names 2 GPUs, and this host has 3 engines"):
        choose("--engine_devices", "2,3", LOCAL_RANK="2")
    gpus(1)  # Slurm's --gpus-per-task shows each task its own alone.
    assert choose("--device", "cuda", SLURM_LOCALID="3") == "cuda:0"


def test_a_gpu_that_is_not_there_is_named(gpus, devices_of):
    gpus(2)
    with pytest.raises(InvalidArgument, match="no GPU 2 for engine 0 .* torch sees 2, .* --engine_devices"):
        devices_of(Options(device="cuda"), 4)
    with pytest.raises(
        InvalidArgument, match="--trainer_devices 1 names 1 GPUs, and this host has 2 trainers"
    ):
        devices_of(Options(trainer_devices="1", engine_devices="0,1"), 4)


def test_cuda_where_torch_sees_none_is_refused_in_one_line(gpus):
    gpus(0)
    for arguments in (["--device", "cuda"], ["--trainer_devices", "0"]):
        with pytest.raises(
            InvalidArgument, match="needs a GPU, and torch .* sees none in this process: .* --device cpu"
        ):
            devices.check(parse(arguments))
    devices.check(parse(["--device", "cpu"]))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trainer_devices", "0;1"], "give numbers of GPUs, as 0,1"),
        (["--engine_devices", "-1"], "give numbers of GPUs, as 0,1"),
        (["--device", "cpu", "--engine_devices", "1"], "--device cpu uses none"),
        (["--backend", "nccl"], "add --device cuda"),
        (["--device", "cuda", "--backend", "gloo", "--trainer", "fsdp2"], "needs --backend nccl"),
    ],
)
def test_devices_that_contradict_other_options(arguments, said):
    with pytest.raises(InvalidArgument, match=said):
        parse(arguments)


def test_nccl_has_a_gpu_for_each_rank():
    assert devices.backend_of(Options(device="cuda")) == "cpu:gloo,cuda:nccl"
    assert devices.backend_of(Options(device="cuda", backend="gloo")) == "gloo"
    places = [("a", "cuda:0"), ("a", "cuda:1"), ("b", "cuda:0"), ("b", "cuda:0")]
    devices.check_nccl(places, [0, 1, 2])
    with pytest.raises(InvalidArgument, match="ranks 2 and 3 share cuda:0 of b"):
        devices.check_nccl(places, [0, 1, 2, 3])


@pytest.mark.parametrize("name", ["tiny", "tiny-qwen"])
def test_the_whole_model_goes_to_the_device_and_what_is_tied_stays_tied(name):
    loaded = models.load(name)
    tied = [key for key, _ in loaded.model.named_parameters(remove_duplicate=False)]
    shared = len(list(loaded.model.parameters()))
    start.use(torch.device("meta"), loaded)
    everything = [*loaded.model.parameters(), *loaded.model.buffers()]
    assert everything and {one.device.type for one in everything} == {"meta"}
    assert [key for key, _ in loaded.model.named_parameters(remove_duplicate=False)] == tied
    assert len(list(loaded.model.parameters())) == shared


def test_ways_without_a_copy_through_host_memory_on_gpus():
    assert "plain copy" in start._ways_of(Options(), one_host=True)
    on_gpu = start._ways_of(Options(device="cuda"), one_host=True)
    assert "plain copy" not in on_gpu and {"packed", "all roots"} <= set(on_gpu)


def test_a_report_names_the_device():
    assert devices.described(torch.device("cpu")) == {"device": "cpu"}


def test_ranks_that_hold_no_weights_have_no_gpu(gpus, monkeypatch):
    gpus(2)
    roles, options = Roles(4, (0,), (3,), 1, (2,)), Options(device="cuda")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    found = []
    for rank in (1, 2, 3):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        found.append(str(devices.device_of(options, roles, rank)))
    assert found == ["cpu", "cpu", "cuda:1"]
