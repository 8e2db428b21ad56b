"""The machine: files, processes, signals, differences between systems, and text that is safe to print."""
