"""How much of each training step is spent waiting for data, and what to do about it."""

from loaderkit.monitor.monitor import DataWaitMonitor
from loaderkit.monitor.waits import WaitSummary

__all__ = ["DataWaitMonitor", "WaitSummary"]
