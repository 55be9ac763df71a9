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
    assert len(registration.core_shards()) == 1
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
    assert len(Registration(module, writable=True).core_shards()) == 2
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
