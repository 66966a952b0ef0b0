# SPDX-License-Identifier: Apache-2.0
#
# The image that `make image` assembles, for those who have a container engine. Its files are
# listed in one place, deployment/image, which both use; docs/image.md says what is in it.
#
#   docker build --target operator .    with a shell and as root, for the GPU Operator
#   docker build --target with-dcgm .   with NVIDIA's libdcgm in it

ARG DCGM=nvcr.io/nvidia/cloud-native/dcgm:4.4.2-1-ubuntu22.04

FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
ARG TARGETARCH
RUN arch=${TARGETARCH:-$(dpkg --print-architecture)}; \
    if [ "$arch" != "$(dpkg --print-architecture)" ]; then \
      case $arch in amd64) machine=x86-64 ;; arm64) machine=aarch64 ;; esac; \
      apt-get update && apt-get install -y --no-install-recommends "gcc-$machine-linux-gnu" "libc6-dev-$arch-cross"; \
    fi
WORKDIR /src
COPY go.mod go.sum ./
COPY deployment/image/go.mod deployment/image/go.sum deployment/image/
RUN go mod download && go -C deployment/image mod download
COPY Makefile LICENSE ./
COPY cmd cmd
COPY etc etc
COPY pkg pkg
COPY deployment/glibc deployment/glibc
COPY deployment/image deployment/image
ARG VERSION=unknown
ARG REVISION=unknown
ARG SOURCE_DATE_EPOCH=0
RUN arch=${TARGETARCH:-$(dpkg --print-architecture)}; \
    make programs "ARCH=$arch" "VERSION=$VERSION" "REVISION=$REVISION" && \
    go -C deployment/image build -buildvcs=false -o /assemble . && \
    for variant in "" operator; do \
      /assemble rootfs -arch "$arch" -variant "$variant" -programs "bin/linux-$arch" -created "$SOURCE_DATE_EPOCH" -out "/rootfs$variant" || exit 1; \
    done

# libnvidia-ml and libdcgm are loaded while the programs run and are no part of the image:
# the NVIDIA container runtime mounts libnvidia-ml; libdcgm.so.4 with its modules is mounted
# from the node, or copied in by the target with-dcgm.
FROM scratch AS gpumeter
COPY --from=build /rootfs/ /
ARG VERSION=unknown
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="gpumeter" \
      org.opencontainers.image.description="The electricity meter of a GPU node: a drop-in replacement of dcgm-exporter and of NVIDIA's device plugin that attributes every share of every GPU." \
      org.opencontainers.image.source="https://github.com/gpumeter/gpumeter" \
      org.opencontainers.image.url="https://github.com/gpumeter/gpumeter" \
      org.opencontainers.image.documentation="https://github.com/gpumeter/gpumeter/tree/main/docs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
# NVIDIA's container runtime gives a container GPUs and the driver's libraries by these.
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_DISABLE_REQUIRE=true
WORKDIR /
# A user without rights. The kubelet's sockets are open to root only: a DaemonSet that maps
# GPUs to pods, or that runs the device plugin, sets runAsUser: 0.
USER 65532:65532
EXPOSE 9400
ENTRYPOINT ["/usr/bin/gpumeter-exporter"]

FROM gpumeter AS operator
COPY --from=build /rootfsoperator/ /
WORKDIR /tmp
USER 0:0

FROM ${DCGM} AS dcgm
RUN libraries=/usr/lib/$(uname -m)-linux-gnu; mkdir -p "/dcgm$libraries" && cp -a "$libraries"/libdcgm* "/dcgm$libraries/"

FROM gpumeter AS with-dcgm
COPY --from=dcgm /dcgm/ /

FROM gpumeter
