"""``--download-config``: download a model's config from the Hugging Face Hub into its own cache, and nothing else."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from gpudash.cli.terminal.output import RequestError
from gpudash.specs.model_names import CONFIGS, HUB_NAME, cache_folder, has_name

logger = logging.getLogger(__name__)

MOST_BYTES = 4 * 2**20
"""Maximum size of a config to download; the longest published ones have some hundred KiB."""

ANSWER_S = 10.0
"""Seconds to wait for the Hub's metadata of the file."""

BY_HAND = "Get its config.json in another way, and name its folder."
SAY_A_NAME = "Write for example: gpudash estimate --model Qwen/Qwen3-8B --download-config"
LOG_IN = "Accept its terms on its page, and log in: hf auth login"


def download_config(name: str) -> None:
    """Download the config.json of a model unless it is on this computer; then nothing is requested.

    Raises:
        RequestError: one sentence, if there is no such model, or its config cannot be downloaded.
    """
    if has_name(name):
        return
    if not HUB_NAME.fullmatch(name):
        raise RequestError(f"--download-config needs a model's name on the Hub, and {name!r} is none.", SAY_A_NAME)
    # The library reads this variable when it is imported, so check it before.
    if os.environ.get("HF_HUB_OFFLINE", "").casefold() in ("1", "true", "yes", "on"):
        raise RequestError("HF_HUB_OFFLINE is set, so that nothing is fetched.", "Unset it, or name a folder.")
    try:
        import huggingface_hub as hub
        from huggingface_hub import constants
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError:
        raise RequestError(
            "--download-config needs huggingface_hub, which this Python does not have.",
            "Install it: pip install 'gpudash[models]'",
        ) from None
    disable_progress_bars()
    # Otherwise the library requests more than the file, and reveals more about this computer (`_http_user_agent`).
    constants.HF_HUB_DISABLE_TELEMETRY = True
    endpoint = os.environ.get("HF_ENDPOINT") or None
    config = CONFIGS[0]
    place = endpoint or "huggingface.co"
    try:
        url = hub.hf_hub_url(name, config, endpoint=endpoint)
        size = hub.get_hf_file_metadata(url, timeout=ANSWER_S, endpoint=endpoint).size
        if size is None or size > MOST_BYTES:
            _refuse_size(name, size)
        file = hub.hf_hub_download(name, config, endpoint=endpoint, cache_dir=cache_folder(), etag_timeout=ANSWER_S)
        if (size := Path(str(file)).stat().st_size) > MOST_BYTES:
            _refuse_size(name, size)
    except RequestError:
        raise
    except Exception as error:  # raised by the library or its HTTP client, which differs between versions
        logger.exception("the config of %s was not fetched", name)
        raise _refusal(name, place, error) from error


def _refuse_size(name: str, size: int | None) -> None:
    said = "of a size that the Hub does not say"
    if size is not None:
        said = f"of {size:,} bytes"
    raise RequestError(f"The config.json of {name} is {said}; at most {MOST_BYTES:,} are fetched.", BY_HAND)


def _refusal(name: str, place: str, error: Exception) -> RequestError:
    """The error in one sentence."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return RequestError(f"{name} is given only to those who have accepted its terms.", LOG_IN)
    if isinstance(error, errors.RepositoryNotFoundError):
        return RequestError(f"{place} has no model {name}, or it is private.", f"Check the name, or: {LOG_IN}")
    # This type includes a file missing from the cache because the Hub was unreachable.
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return RequestError(f"{name} has no config.json on {place}.", BY_HAND)
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return RequestError(f"{place} answered {status} when it was asked for {name}.", BY_HAND)
    if isinstance(error, errors.HFValidationError):
        return RequestError(f"{name!r} is no name that a model can have on the Hub.", SAY_A_NAME)
    return RequestError(f"{place} could not be asked for {name} ({type(error).__name__}).", BY_HAND)
