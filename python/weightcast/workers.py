"""Trainer and Inference: the main API of the package, on top of the C++ core.

Every call that waits for others releases the GIL, obeys Ctrl-C and has an asyncio form with the suffix
`_async`. Cancelling that form interrupts the call and waits until it has ended: no work goes on afterwards.
An `Inference.wait` into which bytes are landing abandons its update first. Times are in seconds; None means
without a limit. `TimedOut` means only that the time of the call itself is over.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from . import _weightcast as _core
from ._threads import asynchronous, within
from .digest import ShardDigest, digests_from
from .errors import Cancelled, Error, InvalidArgument, TimedOut, Unavailable, UpdateAborted
from .shards import Registration, streams_in_use, wait_streams

Settings = Mapping[str, Any]
_FOREVER = 1e9


def _settings(settings: Settings | None) -> dict[str, str]:
    return {name: str(value) for name, value in (settings or {}).items()}


def _limit(timeout: float | None) -> float:
    return _FOREVER if timeout is None else timeout


def _rules(rules: Any) -> str:
    if not rules:
        return ""
    if isinstance(rules, str):
        return rules
    return json.dumps(rules if isinstance(rules, Mapping) else {"version": 1, "rules": list(rules)})


def _number(name: str) -> int:
    text = os.environ.get(name)
    if text is None:
        raise InvalidArgument(
            f"the environment has no {name}; start under torchrun, or use Trainer(rank=..., world_size=...)"
        )
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(
            f"{name}={text!r} is not a number; start under torchrun, or use Trainer(rank=..., world_size=...)"
        ) from None


class Update:
    """One published version on its way."""

    def __init__(self, core: Any, engines: Callable[[], list[_core.EngineState]] = list) -> None:
        self._core = core
        self._engines = engines

    @property
    def version(self) -> _core.Version:
        return self._core.version

    def wait_sources(self, timeout: float | None = None) -> None:
        """Returns when the registered tensors may change: all have their bytes, or the update is over."""
        self._guarded(self._core.wait_sources, timeout)

    def wait(self, timeout: float | None = None) -> _core.UpdateStats:
        """Returns when the version is committed; raises `UpdateAborted` if it is not going to be.

        As when there has been no controller for `controller_timeout` of this call. Publish the next version:
        it goes out when there is one again. `TimedOut` names the engines that do not have it.
        """
        try:
            return self._guarded(self._core.wait, timeout)
        except TimedOut as error:
            if not timeout:
                raise  # Who only looks is not kept waiting for the controller.
            raise TimedOut(f"{error}{self._without_it()}") from None

    def _without_it(self) -> str:
        """The engines that are here and do not have this version."""
        without = [
            f"{one.name} ({one.state.lower()})"
            for one in within(1.0, self._engines) or []  # None: the controller is away.
            if one.incarnation and one.version.number != self.version.number
        ]
        return f"; not yet: {', '.join(sorted(without))}" if without else ""

    wait_sources_async = asynchronous(wait_sources)

    wait_async = asynchronous(wait)

    def explain(self, timeout: float = 10.0) -> dict[str, Any] | None:
        """What it took and why (docs/explain.md); None until it is over. Asks the controller."""
        return next(iter(json.loads(self._core.explain(timeout))), None)

    explain_async = asynchronous(explain)

    def cancel(self) -> None:
        """Aborts it unless it is being committed already."""
        self._core.cancel()

    def _let_go(self) -> None:
        """If it is over, waits for what `wait` does not: until nothing reads the sources any more."""
        try:
            self._core.wait(0)
        except TimedOut:
            return
        except Error:
            pass  # Over all the same.
        with contextlib.suppress(Error):
            self._core.wait_sources(_FOREVER)

    def _guarded(self, call: Any, timeout: float | None) -> Any:
        try:
            return call(_limit(timeout))
        except (TimedOut, Cancelled):
            raise
        except Error as error:
            engines = self._core.engines()
            guilty = (one for one in engines if one.reason == str(error) and one.rank is not None)
            engine, rank = next(((one.engine, one.rank) for one in guilty), (None, None))
            raise UpdateAborted(str(error), self.version.number, error, engine, rank) from error


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


class ReceivedGroup(NamedTuple):
    """What `Inference.receive_group` has received."""

    version: _core.Version
    group: int  # Index into the registered groups.
    last: bool  # Of the update.


def _names(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


class _Switch:
    """An engine's `on_switch` as the core calls it; keeps what it raised."""

    def __init__(self, call: Callable[[_core.Version], Any]) -> None:
        self._call = call
        self.raised: BaseException | None = None

    def __call__(self, version: _core.Version) -> str:
        try:
            self._call(version)
        except BaseException as error:
            self.raised = error
            return f"on_switch raised {type(error).__name__}: {error}; correct that"
        return ""


@contextlib.contextmanager
def _naming_cause(switch: _Switch | None) -> Iterator[None]:
    try:
        yield
    except Error as error:
        if switch is None or switch.raised is None:
            raise
        cause, switch.raised = switch.raised, None
        raise error from cause


class _Closing:
    _core: Any

    def close(self) -> None:
        """Graceful shutdown; safe to call twice."""
        self._core.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connection_map(self) -> list[str]:
        """One line for each connection: peer, transport, addresses."""
        return self._core.connection_map()


def _still_there(registration: Registration | None, what: str) -> Registration | None:
    """What is registered, as it lies now."""
    if registration is None or registration.unmoved():
        return registration  # Without one the core says so.
    now = registration.again()
    if moved := registration.moved_to(now):
        raise InvalidArgument(f"{_listed(moved)} moved in memory after register(); {what}")
    return now


class Trainer(_Closing):
    """A trainer rank.

    controller: "host:port"; None: the setting `controller` (WEIGHTCAST_CONTROLLER).
    commit_group: {model: number of its trainers} of models that are updated together; docs/engines.md.
    """

    def __init__(
        self,
        controller: str | None = None,
        *,
        rank: int = 0,
        world_size: int = 1,
        model: str = "policy",
        commit_group: Mapping[str, int] | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._core = _core.CoreTrainer.connect(
            controller or "", rank, world_size, model, dict(commit_group or {}), "", _settings(settings)
        )
        self._world_size = world_size
        self._registration: Registration | None = None
        self._rules = ""
        self._update: Update | None = None

    @classmethod
    def from_env(
        cls,
        controller: str | None = None,
        *,
        model: str = "policy",
        commit_group: Mapping[str, int] | None = None,
        settings: Settings | None = None,
    ) -> Trainer:
        """Rank and world size as torchrun sets them (RANK, WORLD_SIZE)."""
        return cls(
            controller,
            rank=_number("RANK"),
            world_size=_number("WORLD_SIZE"),
            model=model,
            commit_group=commit_group,
            settings=settings,
        )

    def register(self, module_or_dict: Any, *, rules: Any = None) -> None:
        """Registers the tensors of a torch module, or {name: array | tensor | Shard}; docs/torch.md.

        {name: [Shard, Shard]} for several shards of one tensor: they share no element, or are equal.
        Or of what a function returns, if it is one. It is kept, and looked at again by `publish`.
        rules: name rules, as a list or JSON text (docs/layout.md).
        """
        registration = Registration(module_or_dict, writable=False)
        self._register(registration, _rules(rules))

    def _register(self, registration: Registration, rules: str) -> None:
        if self._update is not None:
            self._update._let_go()
        self._core.register(registration.core(), rules)
        self._registration, self._rules = registration, rules

    def announce(self, version: int, *, hold: bool = False, label: str = "") -> Update:
        """Says that `publish(version)` follows soon, so that engines make room meanwhile; returns at once.

        For the time before the last step of an optimizer ends. Nothing is read before that `publish`, whose
        update this is and whose hold and label are these. Until then tensors must not move, and another
        number is `InvalidArgument`; `Update.cancel` takes it back. An engine with in_place landing is paused
        from its grant on. The setting timeout counts from there, too: announce late.
        """
        self._register_moved()
        self._update = Update(self._core.announce(version, hold, label), self.engines)
        return self._update

    def publish(self, version: int, *, hold: bool = False, label: str = "", stream: Any = None) -> Update:
        """Offers the present bytes as `version`; returns at once. They must not change until `wait_sources`.

        Tensors on GPUs are read when what `stream` holds now is over, or their devices' current streams.

        hold: they will not change before the next publish, so engines that join in between get them too.
        label: comes with the version to every engine (`Version.label`), such as a checkpoint's name; at most
        256 bytes. That of trainer 0 counts.

        Tensors that lie elsewhere than when they were registered are registered again first, which plans
        again (looking takes 0.3 ms for 300 tensors). `Unavailable`: they moved while the bytes of an
        earlier version were still wanted. With one trainer they may also have got other dtypes, shapes or
        names; with several, which would have to say so at one moment, that is `InvalidArgument`.
        """
        self._register_moved()
        streams = streams_in_use(self._registration, stream)
        self._update = Update(self._core.publish(version, hold, label, streams), self.engines)
        return self._update

    def _register_moved(self) -> None:
        if self._registration is None or self._registration.unmoved():
            return  # Without a registration the core says so.
        now = self._registration.again()
        moved = self._registration.moved_to(now)
        if not moved:
            return
        if self._world_size > 1 and not self._registration.same_layout(now):
            raise InvalidArgument(
                f"{_listed(moved)}: other dtypes, shapes or names than were registered; on every rank close "
                "the trainer, and when all have, make new ones"
            )
        try:
            self._register(now, self._rules)
        except Unavailable as error:
            raise Unavailable(
                f"{_listed(moved)} moved in memory during an update; let tensors move, and publish, only "
                f"after wait_sources() of the version before ({error})"
            ) from error

    def digest(self, *, stream: Any = None) -> list[ShardDigest]:
        """The digest of each registered shard as it is now; `combine_digests` adds those of all trainers.

        Reads every byte, without the GIL, on this thread: they must not change meanwhile. Of tensors on GPUs
        it first waits for `stream`, or the current stream of each of their devices. `InvalidArgument`:
        tensors have moved since they were registered; `publish` registers them again.
        """
        _still_there(self._registration, "call publish(), which registers them again")
        wait_streams(self._registration, stream)
        return digests_from(self._core.digest())

    def engines(self) -> list[_core.EngineState]:
        """All engines of this model as the controller sees them. At most `controller_timeout`."""
        return self._core.engines()

    engines_async = asynchronous(engines)


class Inference(_Closing):
    """A rank of an inference engine.

    commit_group: {model: number of its ranks in this engine} of models that are updated together;
    docs/engines.md.
    """

    def __init__(
        self,
        controller: str | None = None,
        *,
        engine: str,
        rank: int = 0,
        world_size: int = 1,
        model: str = "policy",
        commit_group: Mapping[str, int] | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._core = _core.CoreInference.connect(
            controller or "", rank, world_size, model, dict(commit_group or {}), engine, _settings(settings)
        )
        self._registration: Registration | None = None
        self._switch: _Switch | None = None

    def offered(self, timeout: float | None = None) -> dict[str, tuple[str, tuple[int, ...]]]:
        """What the trainers have: {name: (dtype, shape)}, once all of them have registered.

        Before `register`, or at any time. dtype: safetensors' name ("BF16"). What trainers only declare is
        left out.
        """
        return {name: (dtype, tuple(shape)) for name, dtype, shape in self._core.offered(_limit(timeout))}

    offered_async = asynchronous(offered)

    def register(
        self,
        module_or_dict: Any,
        *,
        landing: str = "in_place",
        shares: bool = True,
        on_switch: Callable[[_core.Version], Any] | None = None,
        unwanted: str | Iterable[str] = (),
        not_sent: str | Iterable[str] = (),
        groups: Iterable[str | Iterable[str]] = (),
    ) -> None:
        """Registers the tensors to fill.

        landing: "in_place"; "shadow", a spare copy first; or "loader": they are not live, and the engine
        takes from them what has landed. `Shard(landing=...)` says it of one tensor.
        module_or_dict: as for `Trainer.register`; every shard is filled, of equal ones each. Under tensor
        parallelism a rank registers the q, k and v in a fused tensor as several shards of it, or under their
        own names, never as one shard (docs/layout.md).
        shares: other engines may read the served version from where it landed. Say False if the engine
        changes these bytes after an update.
        on_switch: the engine's part of the switch, called with the version by the thread in `receive` or
        `wait`, before spare copies become live. If it raises, having changed nothing, the old version is
        served on (unless bytes landed in place). It must not call this object. Landing "loader" without it:
        switch when `receive` returns.
        unwanted: tensors of the trainers that this engine does not take, by name or pattern ({*}, {**});
        "ignore": all that it does not register.
        not_sent: tensors of this rank that no trainer sends.
        groups: names or patterns, for engines without memory for a second model: each update comes in these
        groups of tensors, by `receive_groups`. Each tensor is in exactly one; tensors of different groups may
        share memory. Only each group is atomic: the engine is out of routing from `begin` to `finish`, and
        an update that fails leaves it FAILED. Landing "in_place" or "loader", without on_switch.

        Again when they have moved: at other addresses nothing is served until the next version has landed.
        `wait`, `begin` and `resume` refuse tensors that have moved since (`InvalidArgument`).
        """
        registration = Registration(module_or_dict, writable=True)
        switch = None if on_switch is None else _Switch(on_switch)
        ignored = ["{**}"] if unwanted == "ignore" else _names(unwanted)
        parts = [_names(group) for group in groups]
        self._core.register(registration.core(), landing, shares, switch, ignored, _names(not_sent), parts)
        self._registration = registration
        self._switch = switch  # Until here the core may call the one before.

    def wait(
        self,
        newer_than: _core.Version | int | None = None,
        timeout: float | None = None,
        *,
        stream: Any = None,
    ) -> _core.Version:
        """Blocks until a version newer than `newer_than` is served here; the tensors change only meanwhile.

        With tensors on GPUs it first waits for what was left in `stream`, or for the current stream of each
        of their devices: kernels that still read the old bytes.

        newer_than: a Version, the number of one of the present run, or None: the version served
        at the time of the call. `Unavailable`: there has been no controller for `controller_timeout` of this
        call. The engine serves its version on; call again. Only if bytes were landing in place, the update is
        abandoned (`state` FAILED).
        """
        self._refuse_moved()
        left = wait_streams(self._registration, stream, timeout)
        if newer_than is None:
            newer_than = self.version
        elif isinstance(newer_than, int):
            newer_than = _core.Version(self.version.run, newer_than)
        with _naming_cause(self._switch):
            return self._core.wait(newer_than, _limit(left))

    wait_async = asynchronous(wait)

    def begin(self, *, stream: Any = None) -> None:
        """The engine is paused: until `finish` or `abort` its tensors may be written.

        stream: as for `wait`.
        """
        self._refuse_moved()
        wait_streams(self._registration, stream)
        self._core.begin()

    def receive(self, timeout: float | None = None) -> _core.Version:
        """Blocks until all bytes are there and the engine may switch. Then post-process, then `finish`."""
        with _naming_cause(self._switch):
            return self._core.receive(_limit(timeout))

    receive_async = asynchronous(receive)

    def receive_group(self, timeout: float | None = None, *, stream: Any = None) -> ReceivedGroup:
        """As `receive`, for the next of the registered `groups`; the call after it grants the next one.

        With tensors on GPUs it first waits for `stream`, as `wait` does: for kernels that hand the group
        before on.
        """
        left = wait_streams(self._registration, stream, timeout)
        return ReceivedGroup(*self._core.receive_group(_limit(left)))

    receive_group_async = asynchronous(receive_group)

    def receive_groups(self, timeout: float | None = None, *, stream: Any = None) -> Iterator[ReceivedGroup]:
        """The registered `groups` of one update, each when it is there at every rank of the engine.

        The loop's body hands a group on, within `commit_timeout`; the next one is granted after it. `finish`
        comes after the loop, and `abort` if the body raises. timeout: for each group, in seconds. stream: in
        which the body hands a group on; None: the current one.
        """
        while True:
            group = self.receive_group(timeout, stream=stream)
            yield group
            if group.last:
                return

    def commit(self) -> None:
        """Says that this rank has switched; returns at once. `served` comes next."""
        self._core.commit()

    def served(self, timeout: float | None = None) -> None:
        """Returns when every rank of the engine has switched: serve. timeout=0 only looks (`TimedOut`)."""
        self._core.served(_limit(timeout))

    served_async = asynchronous(served)

    def finish(self, timeout: float | None = None) -> None:
        """`commit` and `served`."""
        self._core.finish(_limit(timeout))

    finish_async = asynchronous(finish)

    def abort(self) -> None:
        """Abandons the update; see `state` for what can be served. Waits until no peer can write any more.

        At most two leases. `Fenced`: others might still write or read here; stay paused and call again.
        `TimedOut`: the update is over here, but the controller has not confirmed yet what this rank serves.
        """
        self._core.abort()

    abort_async = asynchronous(abort)

    def suspend(self, timeout: float | None = None) -> None:
        """Suspends the engine: afterwards the registered memory may be freed, moved or mapped again.

        No peer can write or read there when this returns; an update under way goes on without this engine.
        `Fenced`: a stopped peer might still write; free nothing, and call again. Not between `begin` and
        `finish`.
        """
        self._core.suspend(_limit(timeout))
        if self._registration is not None:
            self._registration.release()

    suspend_async = asynchronous(suspend)

    def resume(self, *, intact: bool = False) -> None:
        """Registers the same tensors at the same addresses again, with fresh keys.

        intact: every byte is as it was before `suspend`, so the engine serves that version on. Otherwise it
        serves nothing until a version has landed; an engine that is behind gets the newest from its peers.
        Tensors that lie elsewhere now need `register`.
        """
        now = self._unmoved()
        self._core.resume(intact)
        self._registration = now

    def digest(self, *, stream: Any = None) -> list[ShardDigest]:
        """The digest of each live shard; `combine_digests` adds those of all ranks of the engine.

        As `Trainer.digest`; nothing lands there until it returns. `InvalidArgument`: between `begin` and
        `finish`, inside another call, or with landing "loader", where what is registered is not live.
        `Unavailable`: no version is served.
        """
        self._refuse_moved()
        wait_streams(self._registration, stream)
        return digests_from(self._core.digest())

    @property
    def version(self) -> _core.Version:
        """What is served; its number is -1 while there is nothing whole to serve."""
        return self._core.version

    @property
    def state(self) -> str:
        """JOINING, SERVING, UPDATING, READY, COMMITTED, SUSPENDED or FAILED."""
        return self._core.state

    def check(self) -> None:
        """Raises what made the last update fail here, if anything."""
        self._core.check()

    def describe(self) -> list[str]:
        """How each tensor lands, a line each."""
        return self._core.describe()

    def _refuse_moved(self) -> None:
        if self._core.state != "SUSPENDED":  # Its tensors may be anywhere then, and the core says so.
            self._unmoved()

    def _unmoved(self) -> Registration | None:
        """What is registered, as it lies now, which must be where it was."""
        return _still_there(self._registration, "no update would reach them; register again")
