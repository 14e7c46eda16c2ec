"""What a server needs on one card, as figures that can be sent between processes and as short texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gpudash.units import format_bytes, format_count, format_duration, format_throughput

if TYPE_CHECKING:  # the window only shows a plan, and starts without importing the planner
    from gpudash.memory.serving.plan import ServingAnswer
    from gpudash.speed.serving import ServingTime

Standing = Literal["fits", "uncertain", "short", "refused"]

KV_CACHE = "KV cache"

MOST_WAYS = 3
"""The most changes that are listed."""


@dataclass(frozen=True)
class ServerOnCard:
    """A server as it would start on a card; bytes are those of each card that shares the model.

    Attributes:
        key: of the requested card.
        reason: why there is no prediction; "" if there is one.
        cards: number of cards that share the model.
        capacity_bytes: memory of a card.
        limit_bytes: what the server may use of it, including what its engine takes outside its share.
        weights_bytes, activation_bytes, reserved_graph_bytes, non_torch_bytes: as of `Service`.
        kv_bytes: what is left for the KV cache; if negative, how much is missing.
        tokens: how many the cache holds.
        length: tokens of the longest request.
        longest: the longest request that would fit, in tokens; 0 for none.
        users: how many requests of that length fit at once.
        users_requested: how many should be served; ``None`` if not given.
        fits: whether it starts.
        certain: whether `fits` also holds within the margin.
        enough: whether it serves as many users as requested.
        tokens_per_s: predicted for all users together; ``None`` if unknown.
        first_token_s: predicted seconds until the first token of an answer; ``None`` if unknown.
        ways: changes with which it would serve as many users as requested.
    """

    key: str
    reason: str = ""
    cards: int = 1
    capacity_bytes: int = 0
    limit_bytes: int = 0
    weights_bytes: int = 0
    activation_bytes: int = 0
    reserved_graph_bytes: int = 0
    non_torch_bytes: int = 0
    kv_bytes: int = 0
    tokens: int = 0
    length: int = 0
    longest: int = 0
    users: int = 0
    users_requested: int | None = None
    fits: bool = False
    certain: bool = False
    enough: bool = False
    tokens_per_s: float | None = None
    first_token_s: float | None = None
    ways: tuple[str, ...] = ()

    @classmethod
    def of(cls, key: str, answer: ServingAnswer, time: ServingTime | None, *, ways: bool) -> ServerOnCard:
        """Convert an answer to figures.

        Args:
            key: of the card.
            answer: the answer to convert.
            time: its predicted speed; ``None`` if unknown.
            ways: whether to search for changes that would serve more.
        """
        service = answer.service
        found: tuple[str, ...] = ()
        if ways:
            # If fewer cards suffice, more do too: list the fewest only.
            now = service.flags.tensor_parallel
            enough = [way for way in answer.ways if way.enough]
            more = [way.service.flags.tensor_parallel for way in enough if way.service.flags.tensor_parallel > now]
            shown = {now, min(more, default=now)}
            found = tuple(way.change for way in enough if way.service.flags.tensor_parallel in shown)
        limit = int(service.card.total_bytes * service.flags.gpu_memory_utilization)
        if not service.engine.activations_reserved:
            limit += service.activation_bytes  # outside its share
        longest = 0
        if service.kv_bytes > 0:
            longest = service.cache.longest(service.max_model_len)
        return cls(
            key,
            "",
            service.flags.tensor_parallel,
            service.card.total_bytes,
            limit,
            service.weights_bytes,
            service.activation_bytes,
            service.reserved_graph_bytes,
            service.non_torch_bytes,
            service.kv_bytes,
            service.cache.tokens(service.max_model_len),
            service.max_model_len,
            longest,
            answer.served,
            answer.users,
            service.fits,
            service.certain,
            answer.enough,
            None if time is None else time.tokens_per_s,
            None if time is None else time.first_token_s,
            found,
        )

    @property
    def standing(self) -> Standing:
        """The state to show: refused, uncertain, fits or short."""
        if self.reason:
            return "refused"
        if not self.certain:
            return "uncertain"
        if self.enough:
            return "fits"
        return "short"

    @property
    def verdict(self) -> str:
        """The verdict in two or three words: "16 users", "9 of 16 users", "2.1 GiB short", "not above 9 312 tokens"."""
        if self.reason:
            return "no answer"
        if self.kv_bytes <= 0:
            return f"{format_bytes(-self.kv_bytes)} short"
        if not self.fits:
            return f"not above {format_count(self.longest)} tokens"
        if self.users_requested is not None and not self.enough:
            return f"{format_count(self.users)} of {format_count(self.users_requested)} users"
        return _users(self.users)

    @property
    def detail(self) -> str:
        """What the KV cache holds, or the reason."""
        if self.reason or self.kv_bytes <= 0:
            return self.reason or "no KV cache"
        return f"KV {_tokens(self.tokens)} tokens"

    @property
    def speed(self) -> str:
        """Tokens per second of all users together; "" if unknown."""
        if self.tokens_per_s is None:
            return ""
        return format_throughput(self.tokens_per_s, "tok")

    @property
    def share(self) -> float | None:
        """The share of the card in use before there is a cache, 0 to 1."""
        if not self.capacity_bytes:
            return None
        return min(1.0, sum(self.parts.values()) / self.capacity_bytes)

    @property
    def parts(self) -> Mapping[str, int]:
        """What is in use before there is a cache, by the names of the colours."""
        return {
            "context": self.non_torch_bytes,
            "weights": self.weights_bytes,
            "activations": self.activation_bytes,
            "workspace": self.reserved_graph_bytes,
        }

    @property
    def headline(self) -> str:
        """The verdict as a sentence."""
        if self.reason:
            return self.reason
        where = ""
        if self.cards > 1:
            where = f" on {self.cards} cards"
        if self.shorter_length:
            return f"does not start{where} at {format_count(self.length)} tokens"
        if not self.fits:
            return f"does not start{where}: {self.verdict}"
        margin = ""
        if not self.certain:
            margin = ", within the margin of not starting"
        joined = ", serves"
        if not self.enough:
            joined = ", but serves"
        return f"starts{where}{joined} {self.verdict}{margin}"

    @property
    def shorter_length(self) -> int:
        """The longest request, in tokens, with which it starts where it does not with `length`; 0 for none."""
        if self.reason or self.fits or self.kv_bytes <= 0:
            return 0
        return self.longest

    @property
    def lines(self) -> tuple[str, ...]:
        """What the verdict is based on, and what would serve more."""
        if self.reason:
            return ()
        lines = []
        if self.shorter_length:
            lines.append(f"a length of up to {format_count(self.shorter_length)} tokens starts")
        if self.kv_bytes > 0:
            lines.append(f"KV cache {format_bytes(self.kv_bytes)}: {format_count(self.tokens)} tokens")
        if self.tokens_per_s is not None and self.first_token_s is not None:
            first = format_duration(self.first_token_s)
            lines.append(f"predicted {format_throughput(self.tokens_per_s, 'tokens')}, first token after {first}")
        if self.ways and not self.enough:
            lines.append(f"enough {', or '.join(map(_way_text, self.ways[:MOST_WAYS]))}")
        return tuple(lines)


def _way_text(change: str) -> str:
    """How a change of flags reads after "enough": more cards are counted, other flags named."""
    name, _space, value = change.partition(" ")
    if name == "--tensor-parallel" and value.isdigit():
        return f"on {value} of these cards, tensor-parallel"
    return f"with {change}"


def _users(count: int) -> str:
    if count == 1:
        return "1 user"
    return f"{format_count(count)} users"


def _tokens(count: int) -> str:
    """A rounded number in about four characters: 9 312, 412k, 3.1M."""
    if count < 10_000:
        return format_count(count)
    if count < 1_000_000:
        return f"{count // 1000}k"
    return f"{count / 1_000_000:.1f}M"
