"""MLflow as a tracker of advsweep; it uses advsweep's plug-in points and nothing else of it."""
