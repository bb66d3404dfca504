"""advsweep's estimators inside the trainers of other projects.

Each module imports one project, or describes the shape of what its trainer hands over; nothing
else of advsweep imports them.
"""
