"""The process that runs a few lines of PyTorch: ``python -m gpudash.workloads.lines.process``.

The simulated card answers for CUDA: ``device="cuda"`` in a line means it, as ``device=gpu`` does, and errors name it
as PyTorch would.

It reads one JSON object per line from its standard input and answers on its standard output:

* first, without a request: ``{"ready": true, "torch": "2.13.0"}``, or ``{"ready": false, "problem": sentence}`` and it
ends;
* for ``{"id", "source", "limit"}``: ``{"id", "line", "moments"}`` at the start of each line, with the moments since the
  line before, so that they are known if the process dies or is killed; then ``{"id", "trace"}``, as in
  `gpudash.workloads.lines.trace`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

from gpudash.system.folders import log_file
from gpudash.system.log import log_uncaught, start_log
from gpudash.system.processes import Conversation
from gpudash.workloads.lines.trace import LineMoment
from gpudash.workloads.running.installed import missing_torch

TRIAL_LIMIT = 2**20


def main() -> int:
    """Answer until the standard input ends; returns only if nothing can be run here."""
    start_log(str(log_file()))
    log_uncaught()
    conversation = Conversation()
    # Before torch is imported: a GPU of this computer must not be what the lines call cuda.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    try:
        import torch

        from gpudash.simulator.as_cuda.answering import answer_for_cuda
        from gpudash.simulator.device.backend import register
        from gpudash.simulator.device.simulated_gpu import SimulatedGpu
        from gpudash.workloads.lines.tracing import LineRunner

        torch.set_num_threads(1)
        backend = register([SimulatedGpu(0, TRIAL_LIMIT, context=0)])
        answer_for_cuda(backend)
    except Exception as error:  # torch may be missing or broken in any way
        logging.getLogger(__name__).error("No lines can be run.", exc_info=error)
        conversation.report({"ready": False, "problem": f"No lines can be run here: {missing_torch(error)}."})
        return 1
    conversation.report({"ready": True, "torch": torch.__version__})
    conversation.start()
    while True:
        query = conversation.next()
        number = int(query["id"])

        def began(line: int, moments: Sequence[LineMoment], number: int = number) -> None:
            conversation.report({"id": number, "line": line, "moments": list(map(asdict, moments))})

        runner = LineRunner(
            backend,
            int(query["limit"]),
            on_gpu=False,  # as in PyTorch, a tensor that names no device is on the CPU
            on_line=began,
        )
        conversation.report({"id": number, "trace": runner.run(str(query["source"])).to_json()})


if __name__ == "__main__":
    sys.exit(main())
