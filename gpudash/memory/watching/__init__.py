"""How full each memory is and how it develops: warnings, forecasts, guard."""
