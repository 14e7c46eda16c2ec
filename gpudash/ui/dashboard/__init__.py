"""The dashboard of one session: cards, warnings, plots and the tabs below."""
