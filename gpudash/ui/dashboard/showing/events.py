"""The events of a session that a dashboard has not shown yet."""

from __future__ import annotations

from itertools import islice

from gpudash.telemetry.records import Event
from gpudash.telemetry.store import Store


class NewEvents:
    """Hands out each event of a store once.

    Attributes:
        rewound: whether the store went back to an earlier moment before the last `take`, so that all events come anew.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen = 0
        self._rewound = store.rewound
        self.rewound = False

    def take(self) -> list[Event]:
        """The events since the last call, the oldest first."""
        store = self._store
        with store.lock:
            self.rewound = store.rewound != self._rewound
            self._rewound = store.rewound
            if self.rewound:
                self._seen = 0
            fresh = min(store.event_count - self._seen, len(store.events))
            self._seen = store.event_count
            return list(islice(reversed(store.events), fresh))[::-1]
