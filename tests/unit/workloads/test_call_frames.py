"""Which functions were on at a moment."""

from __future__ import annotations

import sys
import time

from gpudash.workloads.profiling import CallFrames, Frame, stack_words


def functions(stack: tuple[Frame, ...]) -> list[str]:
    return [code.co_name for code, _line in stack][-2:]


def test_a_moment_belongs_to_the_functions_that_were_on_then() -> None:
    moments: list[int] = []

    def inner() -> None:
        moments.append(time.time_ns())

    def outer() -> None:
        moments.append(time.time_ns())
        inner()
        moments.append(time.time_ns())

    frames = CallFrames()
    frames.start()
    outer()
    frames.stop()
    moments.append(time.time_ns())

    found = [functions(stack) for stack in frames.at(moments)]
    here = "test_a_moment_belongs_to_the_functions_that_were_on_then"
    assert found[:3] == [[here, "outer"], ["outer", "inner"], [here, "outer"]]
    assert found[3][-1] in ("stop", here)


def test_the_line_is_that_of_the_newest_call() -> None:
    moments: list[int] = []

    def caller() -> None:
        len("")
        moments.append(time.time_ns())
        len("")

    first = caller.__code__.co_firstlineno
    frames = CallFrames()
    frames.start()
    caller()
    frames.stop()

    ((code, line),) = [stack[-1] for stack in frames.at(moments)]
    assert code is caller.__code__ and line == first + 2


def test_whoever_profiled_before_does_so_again() -> None:
    def mine(*_arguments: object) -> None:
        return None

    before = sys.getprofile()
    frames = CallFrames()
    sys.setprofile(mine)
    try:
        frames.start()
        frames.stop()
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(before)


def test_the_users_own_functions_come_before_those_of_libraries() -> None:
    def own() -> None:
        return None

    library = compile("def call(): pass", "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", "exec")
    words = stack_words([(own.__code__, 7), (library, 3)])

    assert words == [f"workloads/test_call_frames.py:7 {own.__qualname__}"]
    assert stack_words([(library, 3)]) == ["modules/module.py:3 <module>"]
    assert stack_words([]) == []
