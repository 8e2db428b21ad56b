"""What talks to the terminal while a command runs: progress, screens one at a time, a piped text."""
