# advsweep for CPUs; docs/installation.md has the commands.
FROM python:3.11.14-slim-bookworm AS build
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PROJECT_ENVIRONMENT=/opt/advsweep UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir uv==0.13.9
WORKDIR /src
# Extras of advsweep, such as --build-arg EXTRAS="--extra trl --extra data"
ARG EXTRAS=""
# Dependencies change less often than the code, so they have a layer of their own.
COPY pyproject.toml uv.lock ./
# hadolint ignore=SC2086
RUN --mount=type=cache,target=/root/.cache/uv uv sync --frozen --no-install-project $EXTRAS
# The package itself is the wheel of the release: `make dist`, or that of PyPI, in dist/.
COPY dist/advsweep-*.whl ./
RUN --mount=type=cache,target=/root/.cache/uv \
  uv pip install --python /opt/advsweep --no-deps ./advsweep-*.whl

FROM python:3.11.14-slim-bookworm
RUN useradd --uid 1000 --create-home advsweep && install --directory --owner=advsweep /data
COPY --from=build /opt/advsweep /opt/advsweep
# The store, the runs and the cache of base models are in the working folder.
ENV PATH=/opt/advsweep/bin:$PATH XDG_CACHE_HOME=/data/.cache
USER 1000
WORKDIR /data
VOLUME /data
ENTRYPOINT ["advsweep"]
CMD ["--help"]
