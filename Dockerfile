# A CPU:          docker build -t bertzoo .
# An NVIDIA GPU:  docker build -t bertzoo --build-arg EXTRA=gpu .    then docker run --gpus all …
# In a folder with your text:  docker run --rm -v "$PWD:/work" bertzoo demo
FROM python:3.12-slim
ARG EXTRA=
COPY . /bertzoo
RUN pip install --no-cache-dir uv \
  && uv pip install --system --no-cache -c /bertzoo/constraints.txt "/bertzoo${EXTRA:+[$EXTRA]}"
WORKDIR /work
ENTRYPOINT ["bertzoo"]
