"""The capture of loaders, with toy loaders in the manner of vLLM's."""

import pytest

torch = pytest.importorskip("torch")

import weightcast as wc  # noqa: E402
from weightcast.capture import boxes, capture  # noqa: E402


def meta(*shape, dtype=None):
    return torch.empty(shape, dtype=dtype or torch.bfloat16, device="meta")


def replay(found, sources, targets):
    """What the landings and fills say, done with bytes."""
    for fill in found.fills:
        fill.apply(targets[fill.target])
    for landing in found.landings:
        for piece in landing.pieces():
            view = piece.view(targets[piece.target])
            assert view.is_contiguous()
            box = tuple(slice(a, a + b) for a, b in zip(piece.offset, piece.size, strict=True))
            view.copy_(sources[piece.source][box])
    return targets


def both(load, sources, shapes):
    """The targets as the loader fills them, and as its capture does."""
    by_loader = {name: torch.full(shape, -1.0) for name, shape in shapes.items()}
    load(by_loader, sources.items())
    targets = {name: meta(*shape) for name, shape in shapes.items()}
    offered = {name: ("F32", tuple(one.shape)) for name, one in sources.items()}
    found = capture(lambda weights: load(targets, weights), offered, targets)
    captured = {name: torch.full(shape, -1.0) for name, shape in shapes.items()}
    return by_loader, replay(found, sources, captured), found


def numbers(*shape):
    return torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def test_fused_cut_and_padded():
    """qkv with replicated KV heads, a cut of the input dimension, a padded vocabulary; rank 1 of 2."""
    sources = {"q": numbers(8, 6), "k": numbers(2, 6), "o": numbers(6, 8), "embed": numbers(5, 6)}

    def load(targets, weights):
        for name, weight in weights:
            if name == "q":
                targets["qk"].data.narrow(0, 0, 4).copy_(weight.narrow(0, 4, 4))
            elif name == "k":
                targets["qk"][4:].data.copy_(weight.to(torch.bfloat16))
            elif name == "o":
                targets["o"].data.copy_(weight.narrow(1, 4, 4))
            else:
                targets["embed"][:5].data.copy_(weight)
                targets["embed"][5:].data.fill_(0)

    shapes = {"qk": (6, 6), "o": (6, 4), "embed": (8, 6)}
    by_loader, captured, found = both(load, sources, shapes)
    for name in shapes:
        assert torch.equal(by_loader[name], captured[name]), name
    assert found.missing({name: meta(*shape) for name, shape in shapes.items()}) == {}
    assert found.unused([*sources, "rotary.inv_freq"]) == ["rotary.inv_freq"]


def test_experts_one_by_one_and_fused():
    """Destinations that are not dense are cut into dense ones."""
    sources = {"fused": numbers(3, 8, 5), **{f"down.{e}": numbers(5, 4) + 100 * e for e in range(3)}}

    def load(targets, weights):
        for name, weight in weights:
            if name == "fused":
                gate, up = weight.chunk(2, dim=1)
                targets["w13"].data[:, :4].copy_(gate)
                targets["w13"].data[:, 4:].copy_(up)
            else:
                targets["w2"].data[int(name[-1])].copy_(weight)

    by_loader, captured, _ = both(load, sources, {"w13": (3, 8, 5), "w2": (3, 5, 4)})
    for name in by_loader:
        assert torch.equal(by_loader[name], captured[name]), name


def test_reshaped_views():
    sources = {"conv": numbers(6, 1, 4), "flat": numbers(12)}

    def load(targets, weights):
        for name, weight in weights:
            shape = targets[name].shape
            targets[name].data.copy_(weight.view(shape))

    by_loader, captured, _ = both(load, sources, {"conv": (6, 4), "flat": (3, 4)})
    for name in by_loader:
        assert torch.equal(by_loader[name], captured[name]), name


def test_nothing_is_written():
    target = torch.ones(4, 4)
    found = capture(
        lambda weights: [target.copy_(one) for _, one in weights], {"a": ("F32", (4, 4))}, {"t": target}
    )
    assert torch.equal(target, torch.ones(4, 4)) and len(found.landings) == 1


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda target, one: target.copy_(one.t()), "transposes"),
        (lambda target, one: target.copy_(one.t().contiguous()), "transposes"),
        (lambda target, one: target.copy_(one * 2), "computes"),
        (lambda target, one: target.copy_(one.sum(0)), "computes"),
        (lambda target, one: target.copy_(one[:1]), "repeating"),
        (lambda target, one: target.copy_(one[0]), "repeating"),
        (lambda target, one: target.copy_(one[::2].repeat(2, 1)), "computes"),
        (lambda target, one: target[:2].copy_(one.view(8, 2)), "repeating"),
        (lambda target, one: target[:2].copy_(one[::2]), "not a box"),
        (lambda target, one: torch.empty(4, 4, device="meta").copy_(one), "that the model does not own"),
        (lambda target, one: target.copy_(torch.ones(4, 4, device="meta")), "writes a computed value"),
        (lambda target, one: target[5], "layers.0.w: the engine's loader failed .IndexError"),
        (lambda target, one: one.max().item(), "computes"),
    ],
)
def test_refusals_name_the_tensor(step, words):
    target = meta(4, 4)

    def load(weights):
        for _, one in weights:
            step(target, one)

    with pytest.raises(wc.InvalidArgument, match=words) as error:
        capture(load, {"layers.0.w": ("F32", (4, 4))}, {"the.target": target})
    assert "layers.0.w" in str(error.value) or "the.target" in str(error.value)


def test_missing_and_twice():
    target = meta(4, 4)
    offered = {"a": ("F32", (2, 4)), "b": ("F32", (2, 4))}
    found = capture(
        lambda weights: [target[:2].copy_(one) for _, one in list(weights)[:1]], offered, {"t": target}
    )
    assert found.missing({"t": target, "u": meta(3)}) == {"t": 8, "u": 3}
    found = capture(lambda weights: [target[:2].copy_(one) for _, one in weights], offered, {"t": target})
    with pytest.raises(wc.InvalidArgument, match="b: .*another tensor in t;"):
        found.missing({"t": target})


def test_a_place_that_is_filled_before_and_written_twice():
    target = meta(4, 4)

    def load(weights):
        target.zero_()
        for _, one in weights:
            target[:2].copy_(one)

    offered = {"a": ("F32", (2, 4)), "b": ("F32", (2, 4))}
    with pytest.raises(wc.InvalidArgument, match="b: .*another tensor in t;"):
        capture(load, offered, {"t": target}).missing({"t": target})
    only = capture(load, {"a": ("F32", (2, 4))}, {"t": target})
    assert only.missing({"t": target}) == {}


def test_a_fill_after_the_landing_is_refused():
    target = meta(4, 4)

    def load(weights):
        for _, one in weights:
            target.copy_(one)
            target[3:].zero_()

    with pytest.raises(wc.InvalidArgument, match="t: the engine's loader overwrites"):
        capture(load, {"a": ("F32", (4, 4))}, {"t": target}).missing({"t": target})


def test_dimensions_of_one_element():
    sources = {"one": numbers(), "padded": numbers(5), "column": numbers(3, 1)}

    def load(targets, weights):
        for name, weight in weights:
            targets[name].data.copy_(weight.unsqueeze(0) if name == "padded" else weight)

    by_loader, captured, _ = both(load, sources, {"one": (1,), "padded": (1, 5), "column": (3, 1)})
    for name in by_loader:
        assert torch.equal(by_loader[name], captured[name]), name


def test_boxes_of_what_a_checkpoint_splits():
    def convert(given):
        gate, up = given["fused"].chunk(2, dim=1)
        made = {f"{e}.gate": one.squeeze(0).contiguous() for e, one in enumerate(gate.contiguous().chunk(3))}
        return {
            **made,
            **{f"{e}.up": one.squeeze(0) for e, one in enumerate(up.chunk(3))},
            "same": given["b"],
        }

    found = boxes(convert, {"fused": (3, 8, 5), "b": (7,)})
    shape, box = found["2.up"]
    assert (shape, box.source, box.offset, box.size) == ((4, 5), "fused", (2, 4, 0), (1, 4, 5))
    assert found["same"][1].size == (7,)
    with pytest.raises(wc.InvalidArgument, match="transposes"):
        boxes(lambda given: {"t": given["w"].t()}, {"w": (3, 4)})


def test_checkpoint_shards_of_fused_experts():
    """The names and bytes of what transformers writes to disk, as views of the tensors in memory."""
    transformers = pytest.importorskip("transformers")
    from weightcast.torch import checkpoint_shards

    if not hasattr(transformers, "Qwen3MoeConfig"):
        pytest.skip("this transformers has no Qwen3-MoE")
    config = transformers.Qwen3MoeConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config)
    shards = checkpoint_shards(model)
    experts = model.model.layers[0].mlp.experts
    up = shards["model.layers.0.mlp.experts.3.up_proj.weight"]
    assert torch.equal(up.array, experts.gate_up_proj[3, 8:]) and up.array.is_contiguous()
    assert up.array.data_ptr() == experts.gate_up_proj[3, 8:].data_ptr()
    assert "model.layers.0.mlp.experts.gate_up_proj" not in shards


def test_checkpoint_shards_of_a_cut():
    """A rank that holds experts 2 and 3 has views of these alone; one that is cut within has parts."""
    from weightcast._checkpoint import _part

    box = boxes(
        lambda given: {"up": given["fused"].chunk(4)[3].squeeze(0).chunk(2)[1]}, {"fused": (4, 8, 5)}
    )["up"]
    local = numbers(2, 8, 5)
    mesh = {"mesh": wc.Mesh((2,), (1,)), "placements": [0]}
    part = _part(wc.Shard(local, (4, 8, 5), **mesh), *box)
    assert torch.equal(part.array, local[1, 4:]) and part.shape == (4, 5) and part.offset == [0, 0]
    assert _part(wc.Shard(local, (4, 8, 5), mesh=wc.Mesh((2,), (0,)), placements=[0]), *box) is None
    rows = numbers(4, 3, 5)
    part = _part(wc.Shard(rows, (4, 8, 5), offset=(0, 5, 0)), *box)
    assert torch.equal(part.array, rows[3]) and part.offset == [1, 0]
