"""Learns and extends vocabularies."""
