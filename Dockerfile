# Two images: `docker build --target stream .` and `docker build --target trainer .`
#
# The trainer's is about as large as its torch. Build arguments with pip's own names (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL) say
# where packages come from; an index that has torch for processors only saves gigabytes.

# Any image with `python` (3.11 to 3.14) and pip.
ARG BASE=python:3.11-slim-bookworm


# Images get /opt/freshet, an environment without pip: the base's pip installs into it.
FROM ${BASE} AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv --without-pip /opt/freshet
ENV PIP_PYTHON=/opt/freshet/bin/python
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./


FROM build AS wheel
# Links to the three packages.
COPY freshet_graph freshet_graph
COPY schemas schemas
COPY stream stream
COPY trainer trainer
RUN pip wheel --no-deps --wheel-dir /wheels .


FROM ${BASE} AS runtime
# Kernels are compiled below and kept; the store and checkpoints live on volumes under /data.
RUN mkdir -p /etc/freshet /var/cache/freshet/numba /data/store /data/checkpoints \
    && chown -R 10001:10001 /var/cache/freshet /data
ENV PATH=/opt/freshet/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/data \
    NUMBA_CACHE_DIR=/var/cache/freshet/numba
LABEL org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.licenses="Apache-2.0"
WORKDIR /data
VOLUME ["/data"]
STOPSIGNAL SIGTERM


FROM build AS stream-packages
# Dependencies first: a change of our own code leaves their layer alone.
RUN mkdir freshet_graph \
    && touch freshet_graph/__init__.py \
    && pip install -c constraints.txt '.[stream]' \
    && pip uninstall --yes freshet-graph
COPY --from=wheel /wheels /wheels
RUN pip install --no-deps /wheels/*.whl


FROM runtime AS stream
LABEL org.opencontainers.image.title="freshet-stream" \
    org.opencontainers.image.description="Reads edge events from Kafka into a store of partitioned snapshots"
COPY --from=stream-packages /opt/freshet /opt/freshet
ENV FRESHET_STREAM_METRICS__HOST=0.0.0.0
USER 10001:10001
# For this kind of processor: on another, the service compiles again when it first starts.
RUN freshet-stream warm
EXPOSE 9108
# Fails when the process hangs (metrics.hung_after_s).
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --retries=6 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9108/healthz', timeout=5)"]
ENTRYPOINT ["freshet-stream"]
CMD ["run", "--config", "/etc/freshet/stream.yaml"]


FROM build AS trainer-packages
# Triton comes with a torch for GPUs, and only torch.compile uses it, which needs a compiler that images do not have.
RUN mkdir freshet_graph \
    && touch freshet_graph/__init__.py \
    && pip install -c constraints.txt '.[trainer]' \
    && pip uninstall --yes freshet-graph triton
COPY --from=wheel /wheels /wheels
RUN pip install --no-deps /wheels/*.whl


FROM runtime AS trainer
LABEL org.opencontainers.image.title="freshet-trainer" \
    org.opencontainers.image.description="Trains temporal graph networks on a store while it grows"
COPY --from=trainer-packages /opt/freshet /opt/freshet
ENV FRESHET_TRAINER_METRICS__HOST=0.0.0.0
USER 10001:10001
RUN freshet-trainer warm
EXPOSE 9109 9110
# Rank 0's, which fails when any rank hangs.
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --retries=6 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9109/healthz', timeout=5)"]
ENTRYPOINT ["freshet-trainer"]
CMD ["run", "--config", "/etc/freshet/trainer.yaml"]
