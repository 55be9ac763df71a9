"""A sequence on its way."""

import numpy as np
import pytest

import weightcast as wc
from weightcast.rl.sequence import Sequence


def test_sequences_survive_packing_bit_by_bit():
    one = Sequence([1, 2], [3, 4, 5], [-0.1, -1e-30, -7.25], [0, 0, 1])
    packed = Sequence.unpack(one.pack())
    assert packed.tokens == one.tokens and packed.spans() == [(0, 2), (1, 1)]
    assert packed.logprobs == np.asarray(one.logprobs, np.float32).tolist()
    for broken in (None, {}, {**one.pack(), "tokens": b"123"}, {**one.pack(), "versions": b""}):
        with pytest.raises(wc.ProtocolError):
            Sequence.unpack(broken)
