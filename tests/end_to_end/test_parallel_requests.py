"""What ``gpudash run training --devices`` refuses before anything starts."""

from __future__ import annotations

import pytest

from tests.end_to_end.conftest import Command


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--devices", "cuda:0,cuda:0"), "cuda:0 is given twice"),
        (("--devices", "cpu,cpu", "--device", "cpu"), "say different things"),
        (("--devices", "cpu,cpu", "--profile-steps", "2"), "are not profiled"),
        (
            ("--devices", "cpu,cpu", "--batch", "4", "--global-batch", "32"),
            "--batch 4 on each of 2 ranks is 8 together",
        ),
        (("--rank-timeout", "30"), "--rank-timeout is for a run on several devices"),
        (("--parallel", "fsdp"), "--parallel is for a run on several devices"),
        (("--devices", "cpu,cpu,cpu", "--global-batch", "16"), "15 and 18 do"),
    ],
)
def test_a_request_that_cannot_be_is_refused_in_one_sentence(
    gpudash: Command, flags: tuple[str, ...], words: str
) -> None:
    outcome = gpudash("run", "training", *flags, "--no-record", "--json")

    assert outcome.code == 2
    message = outcome.document["error"]["message"]
    assert words in message and "\n" not in message and "Traceback" not in outcome.stderr


def test_a_device_that_is_not_there_is_named_with_those_that_are(gpudash: Command) -> None:
    outcome = gpudash("run", "training", "--devices", "cuda:7,cuda:8", "--no-record", "--json")

    assert outcome.code == 2 and "cuda:7" in outcome.document["error"]["message"]
    assert "there is: cpu" in outcome.document["error"]["message"]


def test_memory_caps_do_not_apply_to_the_cpu(gpudash: Command) -> None:
    outcome = gpudash("run", "training", "--devices", "cpu,cpu", "--memory-cap", "1GiB", "--no-record", "--json")

    assert outcome.code == 2 and outcome.document["error"]["message"].count("--memory-cap") == 1
