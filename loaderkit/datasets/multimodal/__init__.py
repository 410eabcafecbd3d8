"""Rows that name pictures, audio and video: the files of their fields, and documents of texts and pictures as tokens."""
