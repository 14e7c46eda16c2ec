"""Whether predictions may ask the user's cuDNN, told to the processes that predict by what they inherit."""

from __future__ import annotations

import os

from gpudash.simulator.convolutions.cudnn_client import ANSWERS_VARIABLE, ASK_VARIABLE
from gpudash.system.folders import data_folder


def let_predictions_ask(*, without_driver: bool) -> None:
    """Set the environment of processes that are started from now on.

    Args:
        without_driver: also where there is no NVIDIA driver, as the user says.
    """
    os.environ[ANSWERS_VARIABLE] = str(data_folder() / "cudnn")
    if without_driver:
        os.environ[ASK_VARIABLE] = "1"
