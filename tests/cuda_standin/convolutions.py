"""Image models whose convolutions are asked of cuDNN: predicted peaks against those of torch's allocator.

    CUDA_STANDIN_REAL_CUDNN=…/libcudnn.so.9 .venv-cuda/bin/python -m tests.cuda_standin.convolutions [MODEL ...]

A dry run asks that library (9.8 or newer; NVIDIA licenses it for use in systems with its GPUs) as gpudash does; on the
stand-in torch's own code asks the same library, and its own allocator answers. Every model of
`tests.gpu.image_models` that is not named otherwise, on every capability, in every type and layout: each in two
processes of its own, some ten seconds. With ``--libraries`` those of `tests.gpu.library_image_models`, too.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpudash.simulator.convolutions.cudnn_client import ANSWERS_VARIABLE, ASK_VARIABLE, LIBRARY_VARIABLE
from gpudash.simulator.convolutions.cudnn_process import DESIGNS
from tests.cuda_standin.__main__ import PINNED, ROOT, Run, surroundings
from tests.cuda_standin.machine import is_here
from tests.gpu.child import asked
from tests.gpu.model_peaks import beside, summary

REAL_VARIABLE = "CUDA_STANDIN_REAL_CUDNN"

CAPABILITIES = ("7.5", "8.0", "8.6", "8.9", "9.0", "12.0")

LAYOUTS = ("first", "last")

LIMIT_S = 300.0

AT_ONCE = 2
"""Models at a time."""


def main(arguments: Sequence[str]) -> int:
    """Returns 1 where something could not be compared, 2 where NVIDIA's library is not there."""
    library = os.environ.get(REAL_VARIABLE, "")
    if not Path(library).is_file():
        sys.stderr.write(f"{REAL_VARIABLE} has to be the path of NVIDIA's libcudnn.so.9 (9.8 or newer).\n")
        return 2
    if not is_here():
        return _on_the_standin(arguments)
    # Only there torch's CUDA build can be imported.
    from tests.gpu import image_models, library_image_models

    parser = argparse.ArgumentParser(
        prog="python -m tests.cuda_standin.convolutions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(image_models.MODELS))
    parser.add_argument("--capability", nargs="+", choices=CAPABILITIES, default=CAPABILITIES)
    parser.add_argument("--dtype", nargs="+", choices=list(image_models.DTYPES), default=("fp32", "bf16"))
    parser.add_argument("--layout", nargs="+", choices=LAYOUTS, default=LAYOUTS, help="channels first or last")
    parser.add_argument("--inference", action="store_true", help="passes without gradients instead of training steps")
    parser.add_argument("--benchmark", action="store_true", help="with torch.backends.cudnn.benchmark")
    parser.add_argument("--libraries", action="store_true", help=f"also {', '.join(library_image_models.MODELS)}")
    given = parser.parse_args(arguments)
    known = [*image_models.MODELS, *library_image_models.MODELS]
    models = given.models or list(image_models.MODELS)
    if given.libraries:
        models += list(library_image_models.MODELS)
    unknown = sorted(set(models) - set(known))
    if unknown:
        sys.stderr.write(f"There is no model {', '.join(unknown)}; there are {', '.join(known)}.\n")
        return 2
    choices = itertools.product(given.capability, given.dtype, given.layout, models)
    cases = [
        {
            "capability": list(map(int, capability.split("."))),
            "multiprocessors": DESIGNS[capability][0],
            "dtype": dtype,
            "last": layout == "last",
            "model": model,
            "benchmark": given.benchmark,
            "inference": given.inference,
        }
        for capability, dtype, layout, model in choices
    ]
    return compare(cases, library)


def _on_the_standin(arguments: Sequence[str]) -> int:
    """This command again, with the stand-in's libraries."""
    with tempfile.TemporaryDirectory(prefix="convolutions-") as folder:
        environment = surroundings(Run(PINNED, 1, CAPABILITIES[0]), Path(folder))
        command = [sys.executable, "-m", "tests.cuda_standin.convolutions", *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def compare(cases: Iterable[dict[str, Any]], library: str) -> int:
    """Predict and run each, and print a line of each and a summary; 1 where one could not be compared."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="convolutions-") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        places = (Path(folder, str(number)) for number in itertools.count())
        for case, row in pool.map(lambda case, place: (case, one(case, place, library)), cases, places):
            name = name_of(case)
            found[name] = row
            sys.stdout.write(f"{name:40} {line(row)}\n")
            sys.stdout.flush()
    sys.stdout.write("\nOn the stand-in, predicted against taken, in percent of what was taken:\n")
    told = summary(found)
    for figure in ("allocated", "reserved"):
        if figure in told:
            rows = told[figure]
            sys.stdout.write(
                f"  {figure}: median {rows['median']:.3f}, worst {rows['worst']:.3f};"
                f" {rows['exact']} of {rows['of']} to the byte\n"
            )
    return int(told["failed"] > 0)


def one(case: dict[str, Any], folder: Path, library: str) -> dict[str, Any]:
    """A model, predicted and run; both processes import the same torch."""
    from tests.gpu import image_models

    capability = ".".join(map(str, case["capability"]))
    folder.mkdir()
    machine = surroundings(Run(PINNED, 1, capability), folder)
    asking = {ASK_VARIABLE: "1", LIBRARY_VARIABLE: library, ANSWERS_VARIABLE: str(folder.parent / "answers")}
    hidden = {**machine, **asking, "CUDA_VISIBLE_DEVICES": ""}
    predicted = asked(image_models.follow, "none", case, limit_s=LIMIT_S, environment=hidden)
    standing = {
        REAL_VARIABLE: library,
        "CUDA_STANDIN_SMS": str(case["multiprocessors"]),
        "CUDA_STANDIN_MEMORY": "200G",
        "CUDA_STANDIN_COMPUTED": "0",
    }
    taken = asked(image_models.take, "cuda:0", case, limit_s=LIMIT_S, environment={**machine, **standing})
    return {**beside(predicted, taken), "cudnn": predicted.get("cudnn", "")}


def name_of(case: dict[str, Any]) -> str:
    """Such as "resnet18, 8.6, bf16, last"."""
    words = [case["model"], ".".join(map(str, case["capability"])), case["dtype"], LAYOUTS[case["last"]]]
    words += [word for word in ("benchmark", "inference") if case[word]]
    return ", ".join(words)


def line(row: dict[str, Any]) -> str:
    """Predicted and taken in bytes, and the difference in percent."""
    if "problems" in row:
        return str(row["problems"][0]).strip().splitlines()[-1]
    told = []
    for name in ("allocated", "reserved"):
        figure = row[name]
        told.append(f"{name} {figure['predicted']:,} / {figure['measured']:,} {figure['error_percent']:+.3f} %")
    return ", ".join(told)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
