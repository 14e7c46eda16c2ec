"""Requests that cannot be: one sentence that says what is wrong, exit 2, nothing started and nothing written."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from gpudash.cli import run
from tests.json_page import undescribed

REFUSED = {
    "predict training": "predict",
    "run": "Which workload?",
    "run nonsense": "nonsense",
    "run pipeline --device tpu:0": "'tpu:0' is not a device",
    "run pipeline --device cuda:7": "cuda:7",
    "run pipeline --device sim:7": "sim:7",
    "run pipeline --colour red": "--colour",
    "run pipeline --rows 0": "--rows 0: at least 1",
    "run matmul --profile-steps 51": "51 steps cannot be profiled at once",
    "run pipeline --dtype complex": "--dtype 'complex': choose one of float64, ",
    "run pipeline --preset Huge": "Huge",
    "run pressure --guard lots": "lots",
    "run pipeline --device cpu --move cuda": "--move cuda",
    "run pipeline --record /proc/nowhere/run.gpudash": "/proc/nowhere",
    "run matmul --device cpu --memory-cap 50%": "--memory-cap",
    "run matmul --memory-cap 0": "a memory cap of 0",
    "run matmul --memory-cap 2.0": "'2.0' is a number without a unit",
    "run matmul --memory-cap -1GiB": "write for example 2GiB or 50%",
    "run pipeline --device sim:1 --simulate 1GiB": "--simulate 8GiB adds a simulated GPU",
    "run transfer --simulate 1GiB --memory pinned": "needs a CUDA device",
    "train.py --lr 1": "There is no command 'train.py'. To predict it: gpudash estimate -- python train.py --lr 1",
    "est training": "There is no command 'est' (did you mean estimate?)",
    "run matmul --simulate 8": "8 without a unit is a count of bytes; did you mean 8GiB?",
    "run training --devices cuda:0,cuda:0": "cuda:0 is given twice",
    "run training --devices cpu,cpu --device cpu": "say different things",
    "run training --devices cpu,cpu --profile-steps 2": "are not profiled",
    "run training --devices cpu,cpu --batch 4 --global-batch 32": "--batch 4 on each of 2 ranks is 8 together",
    "run training --rank-timeout 30": "--rank-timeout is for a run on several devices",
    "run training --parallel fsdp": "--parallel is for a run on several devices",
    "run training --devices cpu,cpu,cpu --global-batch 16": "15 and 18 do",
    "run training --devices cuda:7,cuda:8": "there is: cpu",
    "run training --devices cpu,cpu --memory-cap 1GiB": "--memory-cap",
    "run pressure --show-code --device foo": "'foo' is not a device",
    "run pressure --show-code --device sim:1": "no device 'sim:1'",
    "run pressure --show-code --device sim:2 --simulate 1GiB --simulate 1GiB": "There is: sim:0, sim:1",
    "run pressure --show-code --device cpu --until oom": "--until oom",
    "run pressure --show-code --until oom": "Without --device it is the CPU",
    "run pressure --show-code --device cpu --memory-cap 1GiB": "--memory-cap",
    "run pressure --show-code --device sim:0 --simulate 1GiB --memory-cap 2GiB": "sim:0 has 1.00 GiB",
    "run pressure --show-code --simulate 1GiB --simulate-others 2GiB": "cannot hold 2.00 GiB",
    "estimate": "Which workload?",
    "estimate brewing": "There is no workload 'brewing'",
    "estimate train.py --epochs 3": "train.py is a script, and no workload. Predict it by: gpudash estimate -- "
    "python train.py --epochs 3",
    "estimate --python .venv/bin/python train.py": "gpudash estimate -- .venv/bin/python train.py",
    "estimate comparison": "A comparison takes the memory of the workload that it runs.",
    "estimate --callable nothing": "names no function",
    "estimate --callable 'a b:c'": "names no function",
    "estimate --callable a:b --preset MLP": "--preset",
    "estimate --callable a:b training": "Name a workload or --callable, not both.",
    "estimate --callable a:b --steps 1": "steps",
    "estimate --callable a:b --memory-cap 0.5": "without a unit",
    "estimate training --batch 0": "batch",
    "estimate training --preset Huge": "no preset 'Huge'",
    "estimate training --device tpu:0": "not a device",
    "estimate training --device sim:7 --simulate 1GiB": "no device 'sim:7'",
    "estimate training --device cpu --move-at-epoch 1": "--move-at-epoch 1",
    "estimate training --device cpu --memory-cap 1GiB": "reserves on a GPU only",
    "estimate training --simulate 1GiB --memory-cap 2GiB": "sim:0 has 1.00 GiB",
    "estimate training --simulate a100": "did you mean a100-80gb or a100-40gb",
    "estimate training --time-limit 0": "time-limit",
    "estimate training --devices cpu,cpu --parallel dp": "DataParallel drives all GPUs from one process",
    "estimate training --devices cpu,cpu --parallel data-parallel": "DataParallel drives all GPUs from one process",
    "estimate training --devices cpu,cpu --global-batch 7": "does not divide",
    "estimate --let-it-write --callable a:b": "--let-it-write is for a program",
    "estimate --simulate 8GiB --": "There is no command to predict",
    "estimate --simulat 8GiB -- python a.py": "There is no --simulat for a program (did you mean --simulate?).",
    "estimate --python python3 -- python a.py": "--python is not for a program, whose command names its Python.",
    "estimate --simulate 8GiB -- no-such-program": "There is no program no-such-program on PATH",
    "estimate --device cpu -- python": "the CPU is none",
    "estimate --as-cuda": "--as-cuda is for your own code",
    "watch --as-cuda -- true": "none is simulated",
    "estimate --simulate 8GiB -- python -Iu -c ''": "With -I Python does not load what predicts",
    "devices --simulate 0": "A GPU of 0 B has no room for a tensor",
    "devices --simulate 8": "did you mean 8GiB?",
    "devices --simulate -1GiB": "'-1GiB' is not a size",
    "devices --simulate 1125899906842625": "outside 0 to 1 PiB",
    "devices --simulate big": "'big' is not a size",
    "devices --simulate '[8GiB]'": "'[8GiB]' is not a size",
    f"devices {'--simulate 1GiB ' * 17}": "At most 16 GPUs can be simulated, not 17. Leave 1 of them out.",
    "devices --simulate 1GiB --simulate-others 2GiB": "cannot hold 2.00 GiB",
    "monitor --rate 1000": "1000",
    "monitor --seconds 1 --simulate 8": "did you mean 8GiB?",
    "snapshot nowhere.pickle --capacity 8": "did you mean 8GiB?",
    "watch": "There is no command to watch.",
    "watch --attach 1 -- true": "Either a command is started or a running process is watched, not both.",
    "watch --attach 1 --simulate 1GiB": "A running process cannot be given a simulated GPU.",
    "watch --with gdb -- true": "--with says how to enter a running process.",
    "watch --prepare -- true": "--prepare only prints lines for a shell.",
    "snapshot": "There is no snapshot to read.",
    "snapshot --pid 1": "needs its number and a file to write",
    "watch --attach some": "'some' is not the number of a process",
    "watch --attach none": "'none' is not the number of a process",
    "watch --attach=-1": "'-1' is not the number of a process",
    "watch --exit-code gpudash -- nothing_of_this_name": "There is no program nothing_of_this_name on PATH",
    "watch -- python3 none.py": "There is no script none.py in",
    "watch --folder /none/of/these -- true": "There is no folder /none/of/these",
    "watch --simulate 0 -- true": "no room for a tensor",
    "watch --simulate 8 -- true": "did you mean 8GiB?",
    "watch --simulate 300MiB -- true": "so simulate 302 MiB or more",
    **{f"demo --scene {scene}": f"There is no scene {scene}. There are scenes 1 to 8." for scene in (0, 9, -1)},
    "export nowhere.gpudash --to csv -o out.csv": "nowhere.gpudash",
    "export nowhere.gpudash --to csv --output out.csv": "There is no --output; it is --out.",
    "explain run.gpudash": "There is no command 'explain'. Why memory ran out is said by gpudash runs NAME",
    "open prometheus:http://me:secret@host:9090": "GPUDASH_PROMETHEUS_TOKEN",
}
"""Command line → what its sentence says."""

WITHOUT_JSON = ("demo", "export", "open")


@pytest.mark.parametrize("line", REFUSED, ids=lambda line: line[:60].strip())
def test_a_wrong_request_is_one_sentence_and_with_json_one_document(
    line: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(line)
    assert run(words) == 2
    told = capsys.readouterr()
    assert REFUSED[line] in told.err and "secret" not in told.err
    assert (told.out, told.err.count("\n")) == ("", 1)
    if words[0] not in WITHOUT_JSON:
        place = words.index("--") if "--" in words else len(words)
        assert run([*words[:place], "--json", *words[place:]]) == 2
        document = json.loads(capsys.readouterr().out)
        assert (document["status"], document["error"]["kind"]) == ("failed", "request")
        assert REFUSED[line] in f"{document['error']['message']} {document['error']['remedy']}"
        assert undescribed(words, document) == []
    assert not list(home.rglob("*.gpudash"))


def test_a_model_that_is_not_there_is_no_matter_of_devices(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "--model", str(home / "nothing")]) == 2
    assert capsys.readouterr().err.endswith("nothing is not there. Choose the folder of a model, or its config.json.\n")


def test_code_that_is_to_find_a_gpu_is_predicted_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "--callable", "a:b", "--as-cuda", "--device", "cpu"]) == 2
    assert "--as-cuda lets code find a GPU, and the CPU is none." in capsys.readouterr().err
