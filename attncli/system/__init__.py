"""The machine: files, processes, signals, systems that differ, and text that a terminal shows safely."""
