# The gateway without torch: API, classification, policy, decision, recording, operations page.
FROM python:3.11-slim-bookworm

RUN useradd --create-home --uid 10001 breakeven
WORKDIR /srv/breakeven
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY gateway gateway
COPY engine engine
COPY cli cli
COPY migrations migrations
COPY policies policies
COPY alembic.ini ./
# Editable, so that policies and migrations are found beside the packages, as in a checkout.
RUN pip install --no-cache-dir -c constraints.txt -e . && mkdir -p /data && chown breakeven /data

USER breakeven
ENV BREAKEVEN_HOST=0.0.0.0 BREAKEVEN_PORT=8000 BREAKEVEN_DATA_DIR=/data PYTHONUNBUFFERED=1
VOLUME /data
EXPOSE 8000
CMD ["breakeven", "gateway"]
