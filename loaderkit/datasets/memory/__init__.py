"""Samples held in memory: arrays, records, shared memory."""
