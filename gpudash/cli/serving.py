"""The flags that serve a session's figures, the same for every command that has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpudash.cli.output import RequestError, print_notice

if TYPE_CHECKING:
    from gpudash.session import Session
    from gpudash.session.serving import Serving
    from gpudash.specs import Spec


@Parameter(name="*")
@dataclass(kw_only=True)
class ServeOptions:
    """Whether and where the figures are served for Prometheus."""

    serve: Annotated[str | bool, Parameter(negative="", show_default=False, metavar="[ADDRESS:PORT]")] = False
    """Serve the figures for Prometheus: alone at 127.0.0.1:10950, with :9500 at another port of this machine. An
    address that other machines can reach needs a token and TLS."""

    serve_token_file: Path | None = None
    """File with the token that requests must bring; the variable GPUDASH_SERVE_TOKEN may hold it instead. A command
    line may not: everybody on the machine can see it."""

    serve_cert: Path | None = None
    """Certificate (PEM) to encrypt with."""

    serve_key: Path | None = None
    """Its key (PEM)."""

    @contextmanager
    def served(self) -> Iterator[Served]:
        """What serves until the block is left; it listens at once where that was asked for.

        Raises:
            RequestError: when nobody can or may be served there.
        """
        served = Served(self._begun())
        try:
            yield served
        finally:
            served.close()

    def _begun(self) -> Serving | None:
        if self.serve is False:
            if self.serve_token_file or self.serve_cert or self.serve_key:
                raise RequestError("A token, certificate or key is for serving.", "Give --serve as well.")
            return None
        from gpudash.session.serving import ServeRequest, Serving, ServingError

        address = "" if self.serve is True else self.serve
        if not address and self.serve is not True:
            raise RequestError("--serve was given an empty address.", "Leave it out, or write ADDRESS:PORT.")
        try:
            return Serving(ServeRequest(address, self.serve_token_file, self.serve_cert, self.serve_key))
        except ServingError as error:
            raise RequestError(str(error), error.remedy) from None


class Served:
    """What serves a command's session, or nothing where that was not asked for.

    Attributes:
        joined: false when closing left a thread behind.
    """

    def __init__(self, serving: Serving | None) -> None:
        self.joined = True
        self._serving = serving

    def begin(self, session: Session) -> None:
        """Serve ``session``, and say where."""
        if self._serving is None:
            return
        from gpudash.session.serving import companions

        self._serving.start(session)
        print_notice(f"Serving at {self._serving.url}; Grafana dashboard and alert rules: {companions()}")

    def predict(self, spec: Spec, device: str) -> None:
        """Have the run's peak predicted, where it is served."""
        if self._serving is not None:
            self._serving.predict(spec, device)

    def close(self) -> None:
        """Serve no longer; may be called again."""
        if self._serving is not None:
            self.joined = self._serving.close() and self.joined
            self._serving = None
