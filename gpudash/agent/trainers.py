"""Steps and losses of the trainers that know them: Transformers' and Lightning's.

Checked with transformers 5.23 and lightning 2.6; a trainer that is built otherwise is left alone.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from .importing import guarded
from .steps import Steps


def follow_transformers(module: Any, steps: Steps) -> None:
    """Hear what ``transformers.trainer_callback.CallbackHandler`` passes on."""
    handler: Any = getattr(module, "CallbackHandler", None)
    if not hasattr(handler, "on_step_end") or not hasattr(handler, "on_log"):
        return
    tell = guarded(_tell)
    step_end, log = handler.on_step_end, handler.on_log
    step_begin = getattr(handler, "on_step_begin", None)

    @wraps(step_end)
    def on_step_end(self: Any, args: Any, state: Any, control: Any) -> Any:
        tell(steps, state, {})
        return step_end(self, args, state, control)

    @wraps(log)
    def on_log(self: Any, args: Any, state: Any, control: Any, logs: Any, *more: Any, **named: Any) -> Any:
        tell(steps, state, logs)
        return log(self, args, state, control, logs, *more, **named)

    handler.on_step_end, handler.on_log = on_step_end, on_log
    if step_begin is None:
        return

    @wraps(step_begin)
    def on_step_begin(self: Any, args: Any, state: Any, control: Any) -> Any:
        steps.begins()
        return step_begin(self, args, state, control)

    handler.on_step_begin = on_step_begin


def _tell(steps: Steps, state: Any, logs: Any) -> None:
    told = logs if isinstance(logs, dict) else {}
    accuracy = told.get("accuracy", told.get("eval_accuracy"))
    # a dictionary without a loss, such as that of an evaluation, says nothing of the training's
    epoch = getattr(state, "epoch", None)
    steps.note("transformers", getattr(state, "global_step", None), told.get("loss"), accuracy, epoch)


def follow_lightning(module: Any, steps: Steps) -> None:
    """Hear the hooks that ``lightning.pytorch.trainer.call`` passes on to callbacks."""
    call = getattr(module, "_call_callback_hooks", None)
    if call is None:
        return
    tell = guarded(_tell_batch)

    @wraps(call)
    def _call_callback_hooks(trainer: Any, hook_name: str, *args: Any, **kwargs: Any) -> Any:
        if hook_name == "on_train_batch_start":
            steps.begins()
        elif hook_name == "on_train_batch_end":
            tell(steps, trainer, args[0] if args else None)
        return call(trainer, hook_name, *args, **kwargs)

    module._call_callback_hooks = _call_callback_hooks


def _tell_batch(steps: Steps, trainer: Any, outputs: Any) -> None:
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    epoch = getattr(trainer, "current_epoch", None)
    steps.note("lightning", getattr(trainer, "global_step", None), loss, None, epoch)
