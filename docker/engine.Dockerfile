# The inference engine. CPU wheels of torch by default; for a GPU build with --build-arg TORCH_INDEX=<the CUDA index>.
FROM python:3.11-slim-bookworm

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN useradd --create-home --uid 10001 breakeven
WORKDIR /srv/breakeven
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN pip install --no-cache-dir -c constraints.txt --index-url "${TORCH_INDEX}" torch
COPY gateway gateway
COPY engine engine
COPY cli cli
COPY migrations migrations
RUN pip install --no-cache-dir -c constraints.txt -e '.[engine]' && mkdir -p /models && chown breakeven /models

USER breakeven
ENV BREAKEVEN_MODELS_DIR=/models OMP_WAIT_POLICY=passive PYTHONUNBUFFERED=1
VOLUME /models
EXPOSE 8100
CMD ["breakeven", "engine", "--host", "0.0.0.0", "--port", "8100"]
