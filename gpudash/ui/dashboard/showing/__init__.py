"""What a dashboard shows, by subject: device, run, result, prediction, overlaid runs, forecast."""
