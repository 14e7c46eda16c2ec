"""The column at the left of a dashboard: the form of a new run, and behind a tab of its own what else is put there."""

from __future__ import annotations

from PySide6.QtCore import QSize
from PySide6.QtWidgets import QSizePolicy, QStackedWidget, QTabBar, QWidget

from gpudash.ui.widgets.layouts import in_column

FORM = "New run"
"""What the tab of the form says."""


class LeftColumn(QWidget):
    """Faces behind tabs, of which the form is the first; alone it has no tab.

    Args:
        form: what a run is asked for with. The column is as wide as it is.
    """

    def __init__(self, form: QWidget, parent: QWidget | None = None) -> None:
        super().__init__(parent)
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
        """Put ``face`` behind a tab that says ``title``."""
        face.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Expanding)
        self._faces.addWidget(face)
        self.bar.addTab(title)
        self.bar.show()

    def name_face(self, face: QWidget, title: str) -> None:
        """Let the tab of ``face`` say another title."""
        place = self._faces.indexOf(face)
        if self.bar.tabText(place) != title:
            self.bar.setTabText(place, title)

    def show_form(self) -> None:
        """Bring the form to the front."""
        self.bar.setCurrentIndex(0)


class _Faces(QStackedWidget):
    """The faces one over another, as wide as the first of them."""

    def __init__(self, form: QWidget) -> None:
        super().__init__()
        self._form = form
        self.addWidget(form)

    def sizeHint(self) -> QSize:
        return QSize(self._form.minimumWidth(), super().sizeHint().height())

    def minimumSizeHint(self) -> QSize:
        return QSize(self._form.minimumWidth(), super().minimumSizeHint().height())
