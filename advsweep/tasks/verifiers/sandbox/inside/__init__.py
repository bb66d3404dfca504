"""What runs in a sandbox: standard library alone, shipped as text (see `sandbox.script`)."""
