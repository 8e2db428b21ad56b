"""The command line: flags to settings, settings to reports, reports to a stream."""
