"""Stands in for vLLM, of which SGLang imports one kernel on a CPU without AMX."""
