# SPDX-License-Identifier: Apache-2.0

FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY etc etc
COPY pkg pkg
COPY deployment/glibc deployment/glibc
COPY Makefile .
ARG VERSION=unknown
ARG REVISION=unknown
RUN make build VERSION=${VERSION} REVISION=${REVISION}

# libdcgm and libnvidia-ml are loaded while the program runs and are no part of the image:
# the NVIDIA container runtime mounts libnvidia-ml; libdcgm.so.4 with its modules is mounted
# from the node or copied in by an image built on this one. The base has glibc and libgcc,
# which is all that libdcgm needs.
FROM gcr.io/distroless/cc-debian12:nonroot
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gpumeter-exporter" \
      org.opencontainers.image.description="The electricity meter of a GPU node: a drop-in replacement of dcgm-exporter that attributes every share of every GPU." \
      org.opencontainers.image.source="https://github.com/gpumeter/gpumeter" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY LICENSE /licenses/LICENSE
COPY --from=build /src/bin/gpumeter-exporter /src/bin/gpumeter-device-plugin /src/bin/gpumeter /usr/bin/
# Where dcgm-exporter has its counter files, so that its manifests go on working.
COPY etc/*.csv /etc/dcgm-exporter/
# The image runs as a user without rights (65532). The kubelet's PodResources
# socket, /var/lib/kubelet/pod-resources/kubelet.sock, is open to root only: a
# DaemonSet that maps GPUs to pods sets runAsUser: 0, one that only reads GPUs
# need not. The device plugin, /usr/bin/gpumeter-device-plugin, registers with the
# kubelet and needs root too.
USER 65532:65532
EXPOSE 9400
ENTRYPOINT ["/usr/bin/gpumeter-exporter"]
