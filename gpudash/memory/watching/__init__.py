"""How full every memory is and where it is going: warnings, forecast, guard."""
