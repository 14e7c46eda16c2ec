"""The commands. Qt, torch and NVML are imported inside the command that needs them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError
from pydantic import ValidationError

from gpudash import __version__
from gpudash.cli.output import Exit, RequestError, print_failure
from gpudash.specs import invalid_fields


def build_app() -> App:
    """The command-line application, one sub-command of ``run`` per workload."""
    from gpudash.cli import devices, doctor, export, monitor
    from gpudash.cli.run import run_app
    from gpudash.cli.start import start

    app = App(
        name="gpudash",
        version=__version__,
        help="Runs PyTorch tensor workloads and shows what they do to memory, bandwidth and loss.",
    )
    app.default(start)
    app.command(devices.devices)
    app.command(run_app())
    app.command(monitor.monitor)
    app.command(export.export)
    app.command(doctor.doctor)
    return app


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; every mistake in it is one sentence and exit 2."""
    as_json = "--json" in argv or "--json-lines" in argv
    command = argv[0] if argv else "gpudash"
    try:
        result = build_app()(
            list(argv), exit_on_error=False, print_error=False, help_on_error=False, result_action="return_value"
        )
    except RequestError as error:
        return print_failure(error, as_json)
    except ValidationError as error:
        return print_failure(
            RequestError("; ".join(invalid_fields(error).values()), f"gpudash {command} --help lists what is allowed."),
            as_json,
        )
    except CycloptsError as error:
        words = str(error).strip().rstrip(".")
        return print_failure(RequestError(f"{words}.", f"gpudash {command} --help lists what there is."), as_json)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away; there is nobody left to tell
        return Exit.FINISHED
    return result if isinstance(result, int) else Exit.FINISHED
