# Three images: `engine` (the pinned vLLM), `campaign` (engine, plus the runner in an environment of its own) and
# `report` (no engine, no GPU). Every base can be replaced: --build-arg ENGINE_IMAGE=… --build-arg PYTHON_IMAGE=…
# Both must hold the same minor version of CPython (3.12 here); the build ends with a check that shows it.
ARG ENGINE_IMAGE=vllm/vllm-openai:v0.23.0@sha256:6d8429e38e3747723ca07ee1b17972e09bb9c51c4032b266f24fb1cc3b22ed8f
ARG PYTHON_IMAGE=python:3.12-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254

# The runner's packages, hash-checked; a folder that both images copy.
FROM ${PYTHON_IMAGE} AS packages
COPY requirements/run.txt /tmp/run.txt
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
      --target /opt/campaign/packages -r /tmp/run.txt \
 && python3 -m compileall -q /opt/campaign/packages

# The source tree as it is installed, its commit if the checkout tells, and the model shapes.
FROM ${PYTHON_IMAGE} AS source
WORKDIR /opt/campaign/source
COPY . .
RUN sh container/git-commit.sh .git > GIT_COMMIT && rm -rf .git container/git-commit.sh \
 && python3 tools/make_models.py /opt/campaign/models && chmod -R a+rX /opt/campaign

FROM ${ENGINE_IMAGE} AS engine

FROM engine AS campaign
ARG ENGINE_IMAGE
# The engine's own environment stays as it is (the runner has a virtual environment, and PATH is not touched), but for
# byte code: no user but root could keep it, and every measured start would compile thousands of modules.
RUN python3 -c 'import compileall as c, sys; [c.compile_dir(p, maxlevels=20, quiet=2, workers=0) for p in sys.path if p]' \
 && python3 -m venv --without-pip /opt/campaign/venv
COPY --from=packages /opt/campaign/packages /opt/campaign/packages
COPY --from=source /opt/campaign/models /campaign/models
COPY --from=source /opt/campaign/source /opt/campaign/source
RUN sh /opt/campaign/source/container/install.sh && campaign --version
WORKDIR /campaign
# root only until the entrypoint has become the user who owns the results
ENTRYPOINT ["/opt/campaign/source/container/entrypoint.sh"]
CMD ["campaign", "run", "--report", "out/report"]
LABEL org.opencontainers.image.title="eager-cost campaign" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.description="vLLM 0.23.0 and the measurement campaign of enforce_eager" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${ENGINE_IMAGE}"

# The same source; what it lacks is the engine.
FROM ${PYTHON_IMAGE} AS report
ARG PYTHON_IMAGE
RUN python3 -m venv --without-pip /opt/campaign/venv
COPY --from=packages /opt/campaign/packages /opt/campaign/packages
COPY --from=source /opt/campaign/source /opt/campaign/source
RUN sh /opt/campaign/source/container/install.sh && campaign --version
WORKDIR /campaign
ENTRYPOINT ["/opt/campaign/source/container/entrypoint.sh"]
CMD ["campaign", "--help"]
LABEL org.opencontainers.image.title="eager-cost report" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.description="Analysis and report of a measurement campaign; no engine, no GPU, no network" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"
