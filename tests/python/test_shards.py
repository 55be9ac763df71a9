"""What may be registered, and what is refused with which words."""

import sys

import numpy as np
import pytest

import weightcast as wc
from weightcast.shards import Registration


def test_keeps_memory_alive_until_released():
    array = np.zeros((2, 3), np.float32)
    references = sys.getrefcount(array)
    arrays = {"x": array}
    registration = Registration(arrays, writable=True)
    assert len(registration._places) == 1
    arrays.clear()
    assert sys.getrefcount(array) == references + 1
    registration.release()
    assert sys.getrefcount(array) == references


def test_says_what_has_moved():
    arrays = {"a": np.zeros(3), "b": np.zeros((2, 3)), "c": np.zeros(4)}
    registration = Registration(arrays, writable=False)
    arrays["a"][:] = 1
    assert registration.moved_to(registration.again()) == []
    arrays["a"] = np.zeros(3)
    arrays["b"] = arrays["b"].T
    assert registration.moved_to(registration.again()) == ["a", "b"]
    del arrays["c"]
    arrays["d"] = np.zeros(1)
    assert registration.moved_to(registration.again()) == ["a", "b", "d", "c"]


@pytest.mark.parametrize("change", ["nothing", "another", "resized", "data", "new", "gone", "renamed"])
def test_unmoved_is_never_said_of_what_moved(change):
    torch = pytest.importorskip("torch")
    source = {"a": np.zeros(4), "t": torch.zeros(3, 2), "p": torch.nn.Parameter(torch.zeros(5))}
    registration = Registration(source, writable=False)
    assert registration.unmoved()
    if change == "another":
        source["a"] = source["a"].copy()
    elif change == "resized":
        source["a"].resize((2, 2), refcheck=False)
    elif change == "data":
        source["p"].data = torch.zeros(5)
    elif change == "new":
        source["b"] = np.zeros(1)
    elif change == "gone":
        del source["t"]
    elif change == "renamed":
        source["z"] = source.pop("t")
    assert registration.unmoved() == (change == "nothing")


def test_a_function_is_asked_each_time():
    array = np.zeros(3)
    registration = Registration(lambda: {"x": array}, writable=False)
    assert registration.moved_to(registration.again()) == []
    array = np.zeros(3)
    assert registration.moved_to(registration.again()) == ["x"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros(3, "datetime64[s]"), "unknown dtype"),
        (np.zeros(3, ">f4"), "big-endian"),
        ([1, 2, 3], "list"),
    ],
)
def test_refuses(value, words):
    with pytest.raises(wc.InvalidArgument, match=words):
        Registration({"x": value}, writable=False)


def test_inference_needs_writable_arrays():
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    Registration({"x": array}, writable=False)
    with pytest.raises(wc.InvalidArgument, match="read-only"):
        Registration({"x": array}, writable=True)


def test_nothing_to_register():
    with pytest.raises(wc.InvalidArgument, match="no tensors"):
        Registration({}, writable=False)


def test_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    Registration(
        {"x": np.zeros(3, ml_dtypes.bfloat16), "y": np.zeros(3, ml_dtypes.float8_e4m3fn)}, writable=True
    )


def test_torch_module_and_tensors():
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(3, 2)
    assert len(Registration(module, writable=True)._places) == 2
    Registration({"t": torch.zeros(4, 5, dtype=torch.bfloat16).t()}, writable=False)


def test_torch_meta_tensor_is_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(wc.InvalidArgument, match="meta"):
        Registration({"t": torch.empty(3, device="meta")}, writable=False)


def test_allocate_is_shared_memory_and_outlives_its_parts():
    array = wc.allocate((10, 20), np.float32)
    assert array.shape == (10, 20) and array.dtype == np.float32 and not array.any()
    view = array[3:5]
    del array
    view[...] = 7
    assert (view == 7).all()


def test_errors_have_codes():
    assert wc.TimedOut("x").code == "timed out"
    assert issubclass(wc.TimedOut, TimeoutError) and issubclass(wc.TimedOut, wc.Error)


def test_places_on_a_mesh_are_the_boxes_of_torch():
    torch = pytest.importorskip("torch")
    whole = np.arange(7 * 10, dtype=np.float32).reshape(7, 10)
    for row in range(2):
        for column in range(3):
            rows = torch.from_numpy(whole).chunk(2, 0)[row]
            part = rows.chunk(3, 1)[column].contiguous().numpy()
            mesh = wc.Mesh((2, 3), (row, column))
            Registration({"x": wc.Shard(part, (7, 10), mesh=mesh, placements=(0, 1))}, writable=True).core()


def placed(rank, size=4, **changes):
    given = {"shape": (8, 4), "mesh": wc.Mesh((size,), (rank,)), "placements": [0], **changes}
    return {"x": wc.Shard(np.zeros((2, 4), np.float32), **given), "y": np.zeros(6, np.int64)}


def test_ranks_of_one_layout_have_equal_bytes():
    first = wc.layout_bytes(placed(0))
    assert isinstance(first, bytes) and first == wc.layout_bytes(placed(3))
    assert first == wc.layout_bytes(dict(reversed(placed(1).items())))
    boxes = placed(0, mesh=None, placements=None)
    assert first != wc.layout_bytes(boxes) != wc.layout_bytes(placed(0, declared=True))
    wide = np.zeros((2, 8), np.float32)
    assert first != wc.layout_bytes(
        {**placed(0), "x": wc.Shard(wide[:, :4], (8, 4), None, mesh=wc.Mesh((4,), (0,)), placements=[0])}
    )


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (placed(4), "coordinate 4 in dimension 0 of mesh 0"),
        (placed(0, size=2), r"x: the array has the shape \[2, 4\], but .* this rank \[4, 4\]"),
        (placed(0, placements=[0, 1]), "x has 2 placements on a mesh of 1"),
        (placed(0, placements=[5]), "x of 2 dimensions is cut along dimension 5"),
        (placed(0, placements=["shard"]), "x: placement 0 is 'shard'"),
        (placed(0, placements=[-1]), "x: placement 0 is -1"),
        (placed(0, placements=None), "x has some of shape, mesh and placements, or an offset beside them"),
        (placed(0, offset=(0, 0)), "x has some of shape, mesh and placements, or an offset beside them"),
        (
            placed(0, mesh=wc.Mesh((1,) * 7, (0,) * 7), placements=["replicate"] * 7),
            "7 dimensions; allowed: 1 to 6",
        ),
    ],
)
def test_refuses_bad_places(tensors, words):
    with pytest.raises(wc.InvalidArgument, match=words):
        wc.layout_bytes(tensors)


@pytest.mark.parametrize("sizes", [(-1,), (1 << 31,), ("a",), (1.5,)])
def test_refuses_bad_meshes(sizes):
    with pytest.raises(wc.InvalidArgument, match="sizes of a mesh"):
        wc.Mesh(sizes, (0,))


def test_shards_of_a_tensor_come_in_any_order_and_do_not_overlap():
    halves = [wc.Shard(np.zeros((2, 4)), (4, 4), (first, 0)) for first in (0, 2, 2)]
    assert wc.layout_bytes({"x": halves}) == wc.layout_bytes({"x": halves[::-1]})
    assert wc.layout_bytes({"x": halves}) != wc.layout_bytes({"x": halves[:2]})
    halves.append(wc.Shard(np.zeros((2, 4)), (4, 4), (1, 0)))
    with pytest.raises(wc.InvalidArgument, match=r"'x': the boxes .* of this rank overlap"):
        wc.layout_bytes({"x": halves})


def test_a_copy_that_comes_or_goes_is_noticed():
    array = np.zeros(3)
    held = {"x": [wc.Shard(array), wc.Shard(array)], "y": array}
    registration = Registration(held, writable=False)
    held["x"] = [wc.Shard(array)]
    assert registration.moved_to(registration.again()) == ["x"]


class OnGpu:
    __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3}


def test_memory_of_a_gpu_needs_the_driver(monkeypatch):
    """With a driver: test_device_arrays.py."""
    monkeypatch.setenv("WEIGHTCAST_CUDA_LIBRARY", "/nowhere/libcuda.so.1")
    with pytest.raises(wc.Unavailable, match="/nowhere/libcuda.so.1"):
        wc.layout_bytes({"x": OnGpu()})
    with wc.Endpoint() as endpoint, pytest.raises(wc.Unavailable, match="/nowhere/libcuda.so.1"):
        endpoint.register(OnGpu())


def test_any_strides_are_told_as_they_are():
    """The memory of a view ends with its outermost elements, wherever its first one lies."""
    whole = np.arange(60, dtype=np.int16).reshape(6, 10)
    for view in (
        whole,
        whole[::-1],
        whole[:, 2:5],
        whole[::2, ::-3],
        whole.T,
        whole[:0],
        whole[3, 4, ...],
        np.broadcast_to(whole[0], (3, 10)),
    ):
        (place,) = Registration({"x": view}, writable=False)._places
        low, high = np.lib.array_utils.byte_bounds(view) if view.size else (place.first, place.first)
        assert (place.first, place.bytes) == (low, high - low)
        assert view.size == 0 or place.first + place.origin == view.__array_interface__["data"][0]
        wc.layout_bytes({"x": view})
