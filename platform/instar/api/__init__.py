"""The API: native REST and the OpenAI-compatible door, thin over the service's own functions."""
