"""An engine's process."""

import pytest

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from weightcast.rl import models  # noqa: E402
from weightcast.rl.run_engine import _cast  # noqa: E402


@pytest.mark.parametrize("name", ["tiny", "tiny-qwen"])
def test_an_engine_with_another_dtype_is_the_model_that_trainers_of_this_dtype_have(name):
    engine = models.load(name, dtype=torch.float32, seed=3).model
    trainer = models.load(name, dtype=torch.bfloat16, seed=3).model
    _cast(engine, torch.bfloat16)
    ids = torch.randint(0, 256, (2, 200), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(engine(input_ids=ids).logits, trainer(input_ids=ids).logits)
    for cast, loaded in zip(engine.buffers(), trainer.buffers(), strict=True):
        assert cast.dtype == loaded.dtype
    assert len(list(engine.parameters())) == len(list(trainer.parameters()))  # Tied ones are tied.


def test_a_buffer_that_the_trainers_send_is_cast_too():
    module = torch.nn.Module()
    module.register_buffer("sent", torch.ones(1))
    module.register_buffer("count", torch.ones(1, dtype=torch.int64))
    module.register_buffer("own", torch.ones(1), persistent=False)
    _cast(module, torch.bfloat16)
    assert [one.dtype for one in module.buffers()] == [torch.bfloat16, torch.int64, torch.float32]
