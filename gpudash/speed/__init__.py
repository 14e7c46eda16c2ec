"""Predicted time of a step on a card that is not there, with an interval, and what limits the step."""
