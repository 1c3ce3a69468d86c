# The images of Lockstep, one target each:
#   docker build --target extender -t lockstep .
#   docker build --target nodeagent -t lockstep-nodeagent .
FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS source
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .

# Static: the extender needs no C library.
FROM source AS build-extender
ARG TARGETOS TARGETARCH
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags='-s -w' -o /out/ ./cmd/extender

# NVML is opened at run time, which takes the C library: so this one is built on the
# platform that it is for.
FROM golang:1.26-bookworm AS build-nodeagent
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=1 CGO_CFLAGS="-O2 -Wno-deprecated-declarations" \
    go build -trimpath -ldflags='-s -w' -o /out/ ./cmd/nodeagent

FROM gcr.io/distroless/base-debian12:nonroot AS nodeagent
COPY --from=build-nodeagent /out/nodeagent /usr/local/bin/
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/nodeagent"]

FROM gcr.io/distroless/static-debian12:nonroot AS extender
COPY --from=build-extender /out/extender /usr/local/bin/
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/extender"]
