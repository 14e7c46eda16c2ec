"""One workload on two devices, or on one and predicted for a card that is not here."""
