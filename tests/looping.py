"""Build loops for tests: one call with the fields of a `RunSpec`, the engine and the states."""

from undrift import loops
from undrift.loops import Asynchronous, Loop, RunSpec, Synchronous


def _parts(args, options):
    given = {name: options.pop(name) for name in ("engine", "states") if name in options}
    return RunSpec(*args, **options), given


def synchronous(*args, **options) -> Synchronous:
    spec, given = _parts(args, options)
    return Synchronous(spec, **given)


def asynchronous(*args, **options) -> Asynchronous:
    spec, given = _parts(args, options)
    return Asynchronous(spec, **given)


def loop(*args, **options) -> Loop:
    spec, given = _parts(args, options)
    return loops.loop(spec, **given)
