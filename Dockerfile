# Two images from one build: `--target stream` and `--target trainer`.
#
# torch comes from the package index in force: pip's own settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, …) can be given as
# build arguments, and an index with CPU wheels makes the images some gigabytes smaller.

FROM python:3.11-slim-bookworm AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/freshet
ENV PATH=/opt/freshet/bin:$PATH
WORKDIR /src
# Dependencies first: a change of our own code leaves this layer alone.
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN mkdir freshet_graph \
    && touch freshet_graph/__init__.py \
    && pip install -c constraints.txt '.[stream,trainer]' \
    && pip uninstall --yes freshet-graph
# Links to the three packages.
COPY freshet_graph freshet_graph
COPY schemas schemas
COPY stream stream
COPY trainer trainer
RUN pip wheel --no-deps --wheel-dir /wheels . \
    && pip install --no-deps /wheels/freshet_graph-*.whl


FROM python:3.11-slim-bookworm AS runtime
# OpenMP for torch and numba; nothing else of the system is needed.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
# Kernels are compiled below and kept; the store and checkpoints live on volumes under /data.
RUN mkdir -p /var/cache/freshet/numba /data/store /data/checkpoints \
    && chown -R 10001:10001 /var/cache/freshet /data
COPY --from=build /opt/freshet /opt/freshet
ENV PATH=/opt/freshet/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/data \
    NUMBA_CACHE_DIR=/var/cache/freshet/numba \
    FRESHET_STREAM_METRICS__HOST=0.0.0.0 \
    FRESHET_TRAINER_METRICS__HOST=0.0.0.0
USER 10001:10001
WORKDIR /data
# For this kind of processor: on another, services compile anew when they first start.
RUN freshet-stream warm && freshet-trainer warm
VOLUME ["/data"]
STOPSIGNAL SIGTERM


FROM runtime AS stream
EXPOSE 9108
ENTRYPOINT ["freshet-stream"]
CMD ["run", "--config", "/etc/freshet/stream.yaml"]


FROM runtime AS trainer
EXPOSE 9109 9110
ENTRYPOINT ["freshet-trainer"]
CMD ["run", "--config", "/etc/freshet/trainer.yaml"]
