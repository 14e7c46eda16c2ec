"""Steps of trainers, on stand-ins with the structure of transformers 5.23 and lightning 2.6 (either of its names).

The real packages were run under the agent: 12 steps of ``transformers.Trainer`` and 16 of ``lightning.pytorch.Trainer``
and ``pytorch_lightning.Trainer`` arrive with their losses.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.agent.dashboard import Dashboard, unwatched

pytestmark = pytest.mark.process

TRANSFORMERS = {
    "transformers/__init__.py": "",
    "transformers/trainer_callback.py": """
class CallbackHandler:
    def on_step_begin(self, args, state, control):
        return self.call_event("on_step_begin", args, state, control)
    def on_step_end(self, args, state, control):
        return self.call_event("on_step_end", args, state, control)
    def on_log(self, args, state, control, logs):
        return self.call_event("on_log", args, state, control, logs=logs)
    def call_event(self, event, args, state, control, **kwargs):
        print(event, state.global_step, kwargs)
        return control
""",
    "script.py": """
from transformers.trainer_callback import CallbackHandler
class State: global_step, epoch = 0, 0.0
handler, state = CallbackHandler(), State()
for step in range(1, 5):
    assert handler.on_step_begin(None, state, "control") == "control"
    state.global_step, state.epoch = step, step / 4
    assert handler.on_step_end(None, state, "control") == "control"
    if step % 2 == 0:
        handler.on_log(None, state, "control", {"loss": step / 10, "learning_rate": 1.0})
handler.on_log(None, state, "control", {"eval_loss": 3.0, "eval_accuracy": 0.75})
print(CallbackHandler.on_log.__name__, CallbackHandler.on_step_end.__qualname__)
""",
}

LIGHTNING = {
    "{name}/__init__.py": "",
    "{name}/trainer/__init__.py": "",
    "{name}/trainer/call.py": """
def _call_callback_hooks(trainer, hook_name, *args, monitoring_callbacks=None, **kwargs):
    print(hook_name, args, kwargs)
    return "called"
""",
    "script.py": """
from {module}.trainer import call
class Trainer: global_step, current_epoch, sanity_checking, callback_metrics = 0, 0, True, {{"val_loss": 9.0}}
trainer = Trainer()
call._call_callback_hooks(trainer, "on_validation_end")
trainer.sanity_checking = False
for batch in range(6):
    call._call_callback_hooks(trainer, "on_train_batch_start", None, batch)
    trainer.global_step, trainer.current_epoch = batch // 2 + 1, batch // 4
    outputs = {{"loss": batch / 10, "extra": "x"}} if batch != 5 else None
    assert call._call_callback_hooks(trainer, "on_train_batch_end", outputs, None, batch) == "called"
trainer.callback_metrics = {{"val_loss": 0.7}}
call._call_callback_hooks(trainer, "on_validation_end")
call._call_callback_hooks(trainer, "on_train_end")
print(call._call_callback_hooks.__name__)
""",
}


TENSORBOARD = {
    "tensorboardX/__init__.py": "from .writer import SummaryWriter",
    "tensorboardX/writer.py": """
class SummaryWriter:
    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None, display_name=""):
        print(tag, scalar_value, global_step, walltime)
    def add_scalars(self, main_tag, tag_scalar_dict, global_step=None, walltime=None):
        print(main_tag, tag_scalar_dict, global_step)
        return "written"
""",
    "script.py": """
from tensorboardX import SummaryWriter
class Tensor:
    def item(self): return 0.5
class Broken:
    def item(self): raise RuntimeError("lost")
writer = SummaryWriter()
writer.add_scalar("Loss/train", Tensor(), 1)
writer.add_scalar("lr", 0.1, 1)
writer.add_scalar("loss", Broken(), 2)
writer.add_scalar("loss", "text", global_step=2)
writer.add_scalar(tag="train/Acc", scalar_value=0.25, walltime=5.0)
assert writer.add_scalars("loss", {"val": 2}, 3) == "written"
try:
    writer.add_scalar()
except TypeError as error:
    print(error)
print(SummaryWriter.add_scalar.__qualname__)
""",
}


def written(folder: Path, files: dict[str, str], **names: str) -> str:
    for name, text in files.items():
        path = folder / (name.format(**names) if names else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(**names) if names else text)
    return str(folder / "script.py")


def steps(dashboard: Dashboard) -> dict[int, tuple[object, ...]]:
    """The newest that is known of each step."""
    return {step: tuple(told) for m in dashboard.of("steps") for step, _time_us, *told in m["steps"]}


def test_steps_and_losses_of_transformers_are_heard(dashboard: Dashboard, tmp_path: Path) -> None:
    script = written(tmp_path / "a", TRANSFORMERS)
    done = dashboard.run(script)
    assert (done.stdout, done.stderr) == (unwatched(script).stdout, "")
    assert steps(dashboard) == {
        1: (None, None, 0.25, None),
        2: (0.2, None, 0.5, None),
        3: (None, None, 0.75, None),
        4: (0.4, 0.75, 1.0, 3.0),
    }
    assert {message["source"] for message in dashboard.of("steps")} == {"transformers"}
    first = dashboard.of("steps")[0]
    assert first["began_us"] <= first["steps"][0][1]


@pytest.mark.parametrize("module", ["lightning.pytorch", "pytorch_lightning"])
def test_steps_and_losses_of_lightning_are_heard(dashboard: Dashboard, tmp_path: Path, module: str) -> None:
    folder = tmp_path / "a"
    script = written(folder, LIGHTNING, name=module.replace(".", "/"), module=module)
    (folder / module.split(".")[0] / "__init__.py").touch()
    done = dashboard.run(script)
    assert (done.stdout, done.stderr) == (unwatched(script).stdout, "")
    assert steps(dashboard) == {
        1: (0.1, None, 0.0, None),
        2: (0.3, None, 0.0, None),
        3: (0.4, None, 1.0, 0.7),
    }
    assert {message["source"] for message in dashboard.of("steps")} == {"lightning"}
    first = dashboard.of("steps")[0]
    assert first["began_us"] <= first["steps"][0][1]


@pytest.mark.parametrize("text", ["", "CallbackHandler = None", "class CallbackHandler: pass"])
def test_trainers_that_are_built_otherwise_are_left_alone(dashboard: Dashboard, tmp_path: Path, text: str) -> None:
    files = {
        "transformers/__init__.py": "",
        "transformers/trainer_callback.py": text,
        "pytorch_lightning/__init__.py": "",
        "pytorch_lightning/trainer/__init__.py": "",
        "pytorch_lightning/trainer/call.py": "",
        "script.py": "import transformers.trainer_callback, pytorch_lightning.trainer.call; print('fine')",
    }
    done = dashboard.run(written(tmp_path / "a", files))
    assert (done.stdout, done.stderr) == ("fine\n", "") and dashboard.of("bye") and not dashboard.of("steps")


def test_losses_that_are_written_for_tensorboard_are_heard_and_nothing_else(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    script = written(tmp_path / "a", TENSORBOARD)
    done = dashboard.run(script)
    assert (done.returncode, done.stderr) == (0, "")
    assert "missing 2 required positional arguments" in done.stdout
    assert done.stdout.splitlines()[0].endswith("1 None")
    heard = [(tag, step, value) for m in dashboard.of("scalars") for tag, step, _time_us, value in m["scalars"]]
    assert heard == [("Loss/train", 1, 0.5), ("train/Acc", None, 0.25), ("loss/val", 3, 2.0)]
