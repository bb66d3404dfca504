"""The data of a report: runs, columns, filters, groups and evaluations."""
