"""Loggers of training frameworks. Each needs its framework, which is imported with its module."""
