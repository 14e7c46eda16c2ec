"""The device that a dashboard shows, and the cards for choosing another."""

from __future__ import annotations

from collections.abc import Sequence

from gpudash.devices.names import Device, known_product, simulated_card
from gpudash.devices.simulated_cards import address_of, exact_text, is_program_card
from gpudash.memory.predicting.card_text import CardsAnswer
from gpudash.memory.request_log import RequestLog
from gpudash.session.source import DashboardSource
from gpudash.telemetry.records import Note, RunStarted, Topic
from gpudash.telemetry.runs import WATCH, RunView
from gpudash.ui.dashboard.card_chips import CardChooser
from gpudash.ui.dashboard.cards import CardContent, DeviceCards
from gpudash.ui.forms.workload_panel import WorkloadPanel


class ShownDevice:
    """The device in the plots: chosen by the user, else that of the program that runs, else the form's.

    Args:
        session: lists the devices.
        panel: holds the form's device, and the card of the user's own program.
        cards: one card for each device.
        chooser: chips of simulated cards.

    Attributes:
        on_first_screen: whether the first screen is shown, where a chosen card is always a device of the session.
    """

    def __init__(
        self, session: DashboardSource, panel: WorkloadPanel, cards: DeviceCards, chooser: CardChooser
    ) -> None:
        self._session = session
        self._panel = panel
        self._cards = cards
        self._chooser = chooser
        self.on_first_screen = False
        self._key: str | None = None
        self._awaited: str | None = None
        self._of_program: str | None = None

    @property
    def key(self) -> str:
        """ "host" or a GPU's UUID."""
        if self._key is None or self._key not in ("host", *(gpu.uuid for gpu in self._session.gpus)):
            return self.memory_of(self._panel.device_name)
        return self._key

    @property
    def device(self) -> Device | None:
        """``None`` for a GPU that torch does not know."""
        return next(iter(self._devices()), None)

    @property
    def requests(self) -> RequestLog | None:
        """The allocation requests of the device."""
        for device in self._devices():
            log = self._session.requests.of(device.name)
            if log is not None:
                return log
        return None

    def memory_of(self, name: str) -> str:
        """Key of the memory of the device that torch calls so: a GPU's UUID, else "host"."""
        return next((one.uuid for one in self._session.devices() if one.name == name and one.uuid), "host")

    def is_called(self, name: str) -> bool:
        """Whether this is torch's name of the device."""
        return any(device.name == name for device in self._devices())

    def _devices(self) -> list[Device]:
        """The session's devices with this key: several, if one without readings of its own lies in host memory."""
        key = self.key
        return [device for device in self._session.devices() if key_of(device) == key]

    def choose(self, key: str) -> None:
        """Show the device with this key, and run on it if torch can."""
        self._key = key
        for device in self._session.devices():
            if key_of(device) == key:
                self._panel.choose_card(device.name)
                self._run_script_on(device)

    def choose_named(self, name: str) -> None:
        """Show the device with this name, if there is one."""
        for device in self._session.devices():
            if device.name == name:
                self._key = key_of(device)

    def choose_of_demo(self, run: RunView) -> None:
        """Show the device of the demo's run until the next run: it is on a card of its own, and not on the form's."""
        self.choose_named(run.device)
        self._of_program = self._key

    def take_start(self, event: RunStarted) -> None:
        """Follow a program to its device, and the run after a program to the form's."""
        if event.workload == WATCH or (self._key is not None and self._key == self._of_program):
            self._awaited = event.device

    def take_note(self, note: Note) -> None:
        """Follow the program to a device that it changes to, unless the user has chosen another."""
        if note.topic == Topic.DEVICE and (self._awaited is not None or self._key == self._of_program):
            self._awaited = note.details.get("device")

    def choose_awaited(self) -> None:
        """Show the device of the program as soon as it exists."""
        for device in self._session.devices():
            if device.name == self._awaited:
                self._key = self._of_program = key_of(device)
                self._awaited = None

    @property
    def is_scripts_own(self) -> bool:
        """Whether a chosen card is that of the user's own program alone, which has no device of the session."""
        return self._panel.watching and not self.on_first_screen

    def offer_to_form(self) -> None:
        """List the devices that a run can be put on in the form."""
        devices = self._session.devices()
        if self._session.live is not None:
            devices = [device for device in devices if not is_program_card(device.name)]
        self._panel.set_devices(devices, self._session.default_device())

    def show_cards(self, contents: Sequence[CardContent], answers: CardsAnswer | None) -> None:
        """Update the cards and the chips.

        Args:
            contents: what each device's card says.
            answers: what fits where, for the form's run; ``None`` for a recording.
        """
        left_out = self._without_card()
        self._cards.show_contents([one for one in contents if one.key not in left_out], self._outlined)
        if answers is not None:
            self._show_answers(contents, answers)

    def _run_script_on(self, device: Device) -> None:
        """Make a device the one that the user's own program finds; its own simulated card is that already."""
        if self.is_scripts_own and not is_program_card(device.name) and not self._session.running:
            self._panel.script.simulate.set_card(exact_text(simulated_card(device)) if device.simulated else "")

    def _show_answers(self, contents: Sequence[CardContent], answers: CardsAnswer) -> None:
        """Show on every card whether the form's run fits it."""
        if self.on_first_screen:
            answers = CardsAnswer()
        answered = [device for device in self._session.devices() if device.problem is None]
        if self._panel.watching:  # a script has verdicts only for the cards its run or prediction covers
            answered = [device for device in answered if device.name in answers.known]
        by_key = self._simulated_devices()
        names = {device.memory: device.name for device in answered}
        if self.is_scripts_own:  # its card is answered for as a card, not as a device of the session
            names |= {device.memory: key for key, device in by_key.items() if key in answers.known}
        self._cards.show_answers(answers, names)
        used = {content.key: content.used or 0.0 for content in contents}
        shown = self.key
        selected = next((key for key, device in by_key.items() if device.uuid == shown), "")
        if self.is_scripts_own and not self._session.running:  # while it runs, where it does is marked
            selected = self._card_of_script()
        live = self._session.live
        made = live.machine.simulated.chosen if live is not None else frozenset()
        self._chooser.show_answers(
            answers,
            {key: device.name for key, device in by_key.items()},
            {key: used.get(device.memory, 0.0) for key, device in by_key.items()},
            selected,
            [key for key, device in by_key.items() if device.uuid not in made],
            inviting=self.on_first_screen,
        )

    @property
    def simulated_names(self) -> list[str]:
        """Names of the session's simulated cards that a run can use."""
        usable = [one for one in self._session.devices() if one.simulated and one.problem is None]
        return [known_product(one.product) or one.name for one in usable if not is_program_card(one.name)]

    def _simulated_devices(self) -> dict[str, Device]:
        """The session's simulated cards that a run can use, by the cards' keys; of equal ones the first."""
        return {
            exact_text(simulated_card(device)): device
            for device in reversed(self._session.devices())
            if device.problem is None and device.simulated and not is_program_card(device.name)
        }

    @property
    def _outlined(self) -> str:
        """Key of the device whose card is marked: the shown one, or, for the user's own program, where it runs; "" if
        that has a chip instead.
        """
        shown = self.key
        if not self.is_scripts_own or self._session.running:
            return shown
        by_key = self._simulated_devices()
        card = self._card_of_script()
        if card in by_key:
            return by_key[card].uuid or ""
        if card or any(device.uuid == shown for device in by_key.values()):
            return ""
        return shown

    def _card_of_script(self) -> str:
        """Key of the card that the user's own program runs on; "" for none."""
        try:
            card = self._panel.script.script().simulated_card
        except ValueError:
            return ""
        if card is None:
            return ""
        return exact_text(card)

    def _without_card(self) -> frozenset[str]:
        """UUIDs of the simulated cards that get no device card at the top.

        These are the cards that a chip stands for, and an unused card whose name a program's own card has: side by
        side, nobody could tell which ``sim:0`` is meant.
        """
        live = self._session.live
        if live is None:
            return frozenset()
        simulated = live.machine.simulated
        names = {device.uuid: device.name for device in self._session.devices() if device.uuid}
        taken = {address_of(name) for name in names.values() if is_program_card(name)}
        shown = self.key
        doubled = {uuid for uuid in simulated.unused if names.get(uuid) in taken and uuid != shown}
        return simulated.chosen | doubled


def key_of(device: Device) -> str:
    """Key of a device among what can be shown: a GPU's UUID, else "host"."""
    return device.uuid or "host"
