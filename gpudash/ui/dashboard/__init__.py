"""The dashboard over one session: cards, warnings, plots and the tabs below."""
