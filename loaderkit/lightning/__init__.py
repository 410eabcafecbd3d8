"""The Loader under a Lightning Trainer: DataModules that resume exactly, and callbacks."""
