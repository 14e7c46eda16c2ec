"""What a dashboard shows, by subject: device, run, result, prediction, plots, figures, events."""
