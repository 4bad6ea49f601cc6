# undrift with Flower, for the server and the sites of a deployment, on CPUs.
#
#   docker build --tag undrift .
#
# pip takes packages from its default index. PIP_INDEX_URL names another one. PIP_EXTRA_INDEX_URL adds
# one: name PyTorch's index of CPU builds there, else torch brings several gigabytes of CUDA libraries.
#
#   docker build --tag undrift --build-arg PIP_EXTRA_INDEX_URL=… .

ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/undrift
# In a layer of their own: packages change less often than the code.
COPY constraints.txt requirements-flower.txt ./
RUN /opt/undrift/bin/pip install -c constraints.txt torch && \
    /opt/undrift/bin/pip install --require-hashes -r requirements-flower.txt
COPY pyproject.toml README.md LICENSE ./
COPY docs/reproductions docs/reproductions
COPY src src
RUN /opt/undrift/bin/pip install --no-deps .

FROM python:${PYTHON}-slim
COPY --from=build /opt/undrift /opt/undrift
# Caches go to /tmp, so that the container also works with another user and a read-only file system.
ENV PATH=/opt/undrift/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /work
USER 10001:10001
EXPOSE 8000
# Whether the server listens. A site listens nowhere: its container ends if the site fails.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 8000), 3).close()"]
ENTRYPOINT ["undrift"]
CMD ["--help"]
