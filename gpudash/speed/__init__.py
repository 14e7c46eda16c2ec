"""How long a step takes on a card that is not there, as an interval, and what holds the step back."""
