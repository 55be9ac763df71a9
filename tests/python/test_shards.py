"""What may be registered, and what is refused with which words."""

import numpy as np
import pytest

import weightcast as wc
from weightcast.shards import core_shards


def test_names_dtypes_and_keeps_memory_alive():
    array = np.zeros((2, 3), np.float32)
    shards, keep = core_shards({"x": array}, writable=True)
    assert len(shards) == 1 and keep[0] is array


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
        core_shards({"x": value}, writable=False)


def test_inference_needs_writable_arrays():
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    core_shards({"x": array}, writable=False)
    with pytest.raises(wc.InvalidArgument, match="read-only"):
        core_shards({"x": array}, writable=True)


def test_nothing_to_register():
    with pytest.raises(wc.InvalidArgument, match="no tensors"):
        core_shards({}, writable=False)


def test_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    core_shards(
        {"x": np.zeros(3, ml_dtypes.bfloat16), "y": np.zeros(3, ml_dtypes.float8_e4m3fn)}, writable=True
    )


def test_torch_module_and_tensors():
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(3, 2)
    shards, keep = core_shards(module, writable=True)
    assert len(shards) == 2
    assert keep[0].data_ptr() == module.weight.data_ptr()
    core_shards({"t": torch.zeros(4, 5, dtype=torch.bfloat16).t()}, writable=False)


def test_torch_meta_tensor_is_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(wc.InvalidArgument, match="meta"):
        core_shards({"t": torch.empty(3, device="meta")}, writable=False)


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
