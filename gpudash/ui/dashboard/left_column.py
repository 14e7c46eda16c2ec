"""The column at the left of a dashboard: the form of a new run, and other panels behind tabs."""

from __future__ import annotations

from PySide6.QtCore import QSize
from PySide6.QtWidgets import QSizePolicy, QStackedWidget, QTabBar, QWidget

from gpudash.ui.widgets.layouts import in_column

FORM = "New run"
"""Tab text of the form."""


class LeftColumn(QWidget):
    """Panels behind tabs, the form first; with the form alone there is no tab.

    Args:
        form: form of a new run; it sets the column's width.
    """

    def __init__(self, form: QWidget) -> None:
        super().__init__()
        self.bar = QTabBar()
        self.bar.setAccessibleName("New run and last runs")
        self.bar.setExpanding(False)
        self.bar.setDrawBase(False)
        self.bar.addTab(FORM)
        self.bar.hide()
        self._faces = _Faces(form)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Expanding)
        in_column(self.bar, (self._faces, 1), parent=self, margins=(0, 0, 0, 0), spacing=2)
        self.bar.currentChanged.connect(self._faces.setCurrentIndex)

    def add_face(self, face: QWidget, title: str) -> None:
        """Add ``face`` behind a tab with this title."""
        face.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Expanding)
        self._faces.addWidget(face)
        self.bar.addTab(title)
        self.bar.show()

    def name_face(self, face: QWidget, title: str) -> None:
        """Change the title of the tab of ``face``."""
        place = self._faces.indexOf(face)
        if self.bar.tabText(place) != title:
            self.bar.setTabText(place, title)

    def show_form(self) -> None:
        """Bring the form to the front."""
        self.bar.setCurrentIndex(0)


class _Faces(QStackedWidget):
    """A stack of panels, as wide as the first."""

    def __init__(self, form: QWidget) -> None:
        super().__init__()
        self._form = form
        self.addWidget(form)

    def sizeHint(self) -> QSize:
        return QSize(self._form.minimumWidth(), super().sizeHint().height())

    def minimumSizeHint(self) -> QSize:
        return QSize(self._form.minimumWidth(), super().minimumSizeHint().height())
