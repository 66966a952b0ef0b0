#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds what a Kubernetes node is made of, from the Go module proxy, in the versions of
# the go.mod files beside this script, and prints the folder that has it:
#
#   kubelet-1.35 kubelet-1.36 kubelet-1.37
#   kube-apiserver kube-scheduler kube-controller-manager kubectl etcd
#   containerd containerd-shim-runc-v2 ctr
#
# The folder is kept in the user's cache and made again when Go or one of the modules has
# changed: about 15 minutes on two cores with nothing cached, a minute or less where Go
# still has the packages. With --check it only says whether the folder is there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

jobs=${E2E_JOBS:-2}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpumeter/e2e
modules=(kubernetes-1.35 kubernetes-1.36 kubernetes-1.37 etcd containerd)

export CGO_ENABLED=0 GOFLAGS="-mod=readonly -buildvcs=false" GOWORK=off

key=$({ go version; cat build.sh; for m in "${modules[@]}"; do cat "$m"/go.mod "$m"/go.sum; done; cat kubernetes-1.37/main.go; } |
	sha256sum | cut -c1-16)
folder=$cache/$key
if [ -d "$folder" ]; then
	echo "$folder"
	exit 0
fi
if [ "${1:-}" = --check ]; then
	echo "not built yet: $folder" >&2
	exit 1
fi

mkdir -p "$cache"
# Two builds at once would take twice the memory and time for the same files.
exec 9> "$cache/lock"
flock 9
if [ -d "$folder" ]; then
	echo "$folder"
	exit 0
fi
work=$(mktemp -d "$cache/build-XXXXXX")
trap 'rm -rf "$work"' EXIT

# build MODULE FILE PACKAGE [LDFLAGS [FLAG...]]
build() {
	local module=$1 file=$2 package=$3 ldflags=${4:-} start=$SECONDS
	shift $(($# < 4 ? $# : 4))
	nice -n 19 go -C "$module" build -p "$jobs" -trimpath "$@" -ldflags "-s -w $ldflags" -o "$work/$file" "$package"
	echo "built $file in $((SECONDS - start)) s" >&2
}

# version MODULE PATH is the version that the module's go.mod has of a module.
version() { sed -nE "s#^(require)?\s*$2 (v[^ ]+).*#\2#p" "$1/go.mod" | head -1; }

# A kubelet that does not know its version says v0.0.0-master, and the API server takes that for too old.
stamp() {
	local version=$1 package
	for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
		printf -- '-X %s.gitVersion=%s -X %s.gitMajor=1 -X %s.gitMinor=%s -X %s.gitTreeState=clean ' \
			$package "$version" $package $package "$(cut -d. -f2 <<< "$version")" $package
	done
}

for minor in 1.35 1.36; do
	build kubernetes-$minor kubelet-$minor k8s.io/kubernetes/cmd/kubelet \
		"$(stamp "$(version kubernetes-$minor k8s.io/kubernetes)")"
done
build kubernetes-1.37 kubernetes . "$(stamp "$(version kubernetes-1.37 k8s.io/kubernetes)")"
for name in kubelet-1.37 kube-apiserver kube-scheduler kube-controller-manager kubectl; do
	ln -s kubernetes "$work/$name"
done
build etcd etcd go.etcd.io/etcd/server/v3
for name in containerd containerd-shim-runc-v2 ctr; do
	build containerd $name github.com/containerd/containerd/v2/cmd/$name \
		"-X github.com/containerd/containerd/v2/version.Version=$(version containerd github.com/containerd/containerd/v2)" \
		-tags no_btrfs,no_devmapper,no_zfs,no_tracing
done

chmod 755 "$work"
mv "$work" "$folder"
trap - EXIT
# What an earlier version left.
find "$cache" -mindepth 1 -maxdepth 1 -type d ! -name "$key" -exec rm -rf {} +
echo "$folder"
