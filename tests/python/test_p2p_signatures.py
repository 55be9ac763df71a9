"""weightcast.p2p has the UCCL P2P engine's signatures, by position and by name (uccl_p2p_signatures.txt)."""

import dataclasses
import inspect
import pathlib
import re

import pytest

from weightcast import p2p

TABLE = (pathlib.Path(__file__).parent / "uccl_p2p_signatures.txt").read_text()
LINES = [line.split(maxsplit=1) for line in TABLE.splitlines() if line and not line.startswith("#")]
DEFAULTS = {"-1": -1, "kUndefined": p2p.kUndefined}


def parameters_of(text):
    """{name: default} of "name(one, two=-1)"; no default: inspect's empty."""
    found = {}
    for word in filter(None, re.split(r",\s*", text)):
        name, _, default = word.partition("=")
        found[name] = DEFAULTS[default] if default else inspect.Parameter.empty
    return found


def signatures(*owners):
    for owner, rest in LINES:
        if owner in owners:
            name, parameters = re.fullmatch(r"(\w+)\((.*)\)", rest).groups()
            yield pytest.param(name, parameters_of(parameters), id=f"{owner} {rest}")


TODAY = list(signatures("both", "main", "0.1.1"))
ALL = TODAY + list(signatures("older"))


def call_of(name):
    return p2p.Endpoint if name == "Endpoint" else getattr(p2p.Endpoint, name)


def forms_of(name):
    """The parameters of each form of our call, without self."""
    call = call_of(name)
    takes_self = name not in ("Endpoint", "parse_metadata")
    for form in getattr(call, "forms", [inspect.signature(call)]):
        yield list(form.parameters.values())[1 if takes_self else 0 :]


def test_the_table_was_read():
    assert len(TODAY) == 55
    assert {name for name, _ in (one.values for one in TODAY)} > {
        "Endpoint",
        "connect",
        "recvv",
        "poll_async",
    }


@pytest.mark.parametrize(("name", "theirs"), TODAY)
def test_names_order_and_defaults_are_theirs(name, theirs):
    def is_like(ours):
        by_place = [one for one in ours if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        same = by_place[: len(theirs)]
        return (
            [one.name for one in same] == list(theirs)
            and all(one.default == theirs[one.name] for one in same if theirs[one.name] is not one.empty)
            and all(one.default is not one.empty for one in ours if one not in same)
        )

    assert [is_like(ours) for ours in forms_of(name)].count(True) == 1, [list(map(str, forms_of(name)))]


@pytest.mark.parametrize(("name", "theirs"), ALL)
def test_unknown_and_missing_arguments_are_type_errors(name, theirs):
    call = call_of(name)
    bare = () if name in ("Endpoint", "parse_metadata") else (object.__new__(p2p.Endpoint),)
    named = dict.fromkeys(theirs, 1)
    with pytest.raises(TypeError):
        call(*bare, **named, unknown=1)
    with pytest.raises(TypeError):
        call(*bare, *named.values(), *[1] * 5)
    needed = [one for one in theirs if theirs[one] is inspect.Parameter.empty]
    if name not in ("Endpoint", "connect", "connect_local") and needed:
        with pytest.raises(TypeError):
            call(*bare, **dict.fromkeys(needed[:-1], 1))


class Recorder:
    """In place of the engine: notes what is asked of it."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, arguments))
            return 5

        return call


DESC = p2p.XferDesc(addr=1, size=2, mr_id=3, meta=b"d" * 64)
VALUES = {
    "conn_id": 7, "mr_id": 8, "ptr": 9, "size": 10, "meta": b"m" * 64, "info": b"i" * 64, "num_iovs": 2,
    "mr_id_v": [11, 12], "ptr_v": [13, 14], "data_ptr_v": [13, 14], "size_v": [15, 16], "ptrs": [13, 14],
    "sizes": [15, 16], "meta_blob_v": [b"m" * 64, b"n" * 64], "info_v": [b"i" * 64, b"j" * 64],
    "transfer_id": 17, "rank": 18, "metadata_bytes": b"k", "floatType": p2p.kFloat16, "desc_list": [DESC],
    "op_name": "write", "local_desc_list": [DESC], "remote_desc_list": [DESC],
    "remote_ip_addr": "127.0.0.1", "remote_gpu_bdf": "3", "remote_gpu_idx": 3, "remote_port": 19,
}  # fmt: skip
REACH_THE_ENGINE = [one for one in ALL if one.values[1] and set(one.values[1]) <= set(VALUES)]
NOT_THE_ENGINES = {"connect_local", "get_serialized_descs"}


@pytest.mark.parametrize(
    ("name", "theirs"), [one for one in REACH_THE_ENGINE if one.values[0] not in NOT_THE_ENGINES]
)
def test_by_position_and_by_name_mean_the_same(name, theirs):
    def asked(*arguments, **named):
        endpoint = object.__new__(p2p.Endpoint)
        endpoint._engine, endpoint._timeout, endpoint.last_error = Recorder(), 1.0, ""
        getattr(endpoint, name)(*arguments, **named)
        return endpoint._engine.calls

    values = {one: VALUES[one] for one in theirs}
    by_name = asked(**values)
    assert by_name
    assert asked(*values.values()) == by_name
    assert asked(**dict(reversed(values.items()))) == by_name
    first, *others = values
    assert asked(values[first], **{one: values[one] for one in others}) == by_name


def test_most_calls_were_compared():
    assert len(REACH_THE_ENGINE) > 45


def test_the_modules_names_are_there():
    names = dict(LINES)
    for name in names["module"].split():
        assert hasattr(p2p, name), name
    assert set(names["XferDesc"].split()) <= {field.name for field in dataclasses.fields(p2p.XferDesc)}
    assert list(p2p.XferHandle._fields) == names["XferHandle"].split()
    p2p.XferDesc().addr = 1
