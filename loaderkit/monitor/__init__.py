"""How much of each training step is spent waiting for data, and what to do about it."""

from loaderkit.monitor.monitor import DataWaitMonitor
from loaderkit.monitor.remedy import remedy, workers_needed
from loaderkit.monitor.waits import Sums, WaitSummary

__all__ = ["DataWaitMonitor", "Sums", "WaitSummary", "remedy", "workers_needed"]
