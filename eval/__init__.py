"""Suites, editors under test, judges, statistics and reports."""
