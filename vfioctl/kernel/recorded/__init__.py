"""recorded"""
