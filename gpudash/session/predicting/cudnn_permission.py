"""Whether predictions may query the user's cuDNN; child processes inherit the answer in their environment."""

from __future__ import annotations

import os

from gpudash.simulator.convolutions.cudnn_client import ANSWERS_VARIABLE, ASK_VARIABLE
from gpudash.system.folders import data_folder


def let_predictions_ask(*, without_driver: bool) -> None:
    """Set the environment of processes started from now on.

    Args:
        without_driver: whether the user also allows it where there is no NVIDIA driver.
    """
    os.environ[ANSWERS_VARIABLE] = str(data_folder() / "cudnn")
    if without_driver:
        os.environ[ASK_VARIABLE] = "1"
