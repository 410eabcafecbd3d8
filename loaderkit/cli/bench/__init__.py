"""`loaderkit bench`: measure engines and worker counts, and what each part of a batch costs."""

from loaderkit.cli.bench.command import add_to
from loaderkit.cli.bench.costs import Cost, Costs, measure_costs
from loaderkit.cli.bench.report import Report
from loaderkit.cli.bench.subject import Setting, Subject, add_subject, subject_from, subject_of
from loaderkit.cli.bench.throughput import Measured, advise, settings_of, turns

__all__ = [
    "Cost",
    "Costs",
    "Measured",
    "Report",
    "Setting",
    "Subject",
    "add_subject",
    "add_to",
    "advise",
    "measure_costs",
    "settings_of",
    "subject_from",
    "subject_of",
    "turns",
]
