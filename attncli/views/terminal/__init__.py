"""Pictures of a report in a terminal: heatmaps in blocks or characters, and line charts."""
