"""One run from its first step to its last: loop, signals, watchdog, measurements, output folder."""
