"""A simulated Android phone behind a real adb server, and its tasks."""
